"""Who hears of an alert: the log, an SNS topic, a webhook.

Belongs here: sending one alert over one channel, within seconds; what a refusal says. Does not: what is sent
(alert_text), when, and what becomes of an alert that was not taken (cursor). The webhook's address is a secret: only
its host shows.
"""

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any, Protocol
from urllib.parse import urlsplit

from metering_dagster.alerting.rules.alert_text import Alert, as_json, subject_line, text
from metering_dagster.core.addresses import is_loopback
from metering_dagster.core.errors import CallerError, MeteringError, UnreachableError
from metering_dagster.core.masking import mask_text

ATTEMPTS = 2
ANSWER_SECONDS = 4.0
PAUSE_SECONDS = 0.5
_GROUP = "metering"
KEPT = "The alert is in the log and is sent again by the next tick."


class Channel(Protocol):
    """One way to be heard."""

    @property
    def name(self) -> str:
        """By which it is remembered who has been told."""

    def send(self, alert: Alert) -> None:
        """Deliver it: `UnreachableError` where later may be better, another `MeteringError` where it is refused."""


class LogChannel:
    """The log, which takes everything."""

    name = "log"

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say

    def send(self, alert: Alert) -> None:
        """Say it."""
        self._say(text(alert))


class SnsChannel:
    """A topic of SNS. `client` makes the SDK's client, when there is something to send."""

    name = "sns"

    def __init__(self, topic_arn: str, client: Callable[[], Any]) -> None:
        self.topic_arn, self._make = topic_arn, client
        self._client: Any = None

    def send(self, alert: Alert) -> None:
        """Publish it."""
        from botocore.exceptions import BotoCoreError, ClientError

        self._client = self._client or self._make()
        try:
            self._client.publish(**self._request(alert))
        except (BotoCoreError, ClientError) as error:
            raise self._in_words(error) from None

    def _request(self, alert: Alert) -> Mapping[str, Any]:
        request = {"TopicArn": self.topic_arn, "Subject": subject_line(alert), "Message": text(alert)}
        if self.topic_arn.endswith(".fifo"):
            return request | {"MessageGroupId": _GROUP, "MessageDeduplicationId": alert.key}
        return request

    def _in_words(self, error: Exception) -> MeteringError:
        from botocore.exceptions import ClientError

        from metering_dagster.core.aws.dynamodb import CALLER_CODES, is_credentials_error

        name = self.topic_arn.rsplit(":", 1)[-1]
        where = f"The SNS topic {name} (METERING_ALERTS_TOPIC_ARN) in {self.topic_arn.split(':')[3]}"
        if is_credentials_error(error):
            return CallerError(f"{where}: no usable AWS credentials: {str(error).rstrip('.')}. {KEPT} Set them.")
        if not isinstance(error, ClientError):
            why = mask_text(str(error)).rstrip(".")
            return UnreachableError(f"{where} cannot be reached: {why}. {KEPT} Check the network.")
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        why = f"{code}: {mask_text(str(error.response.get('Error', {}).get('Message', ''))).rstrip('.')}"
        if code in CALLER_CODES or code in ("AuthorizationError", "AuthorizationErrorException"):
            return CallerError(f"{where} refuses the caller: {why}. {KEPT} Allow sns:Publish, or renew credentials.")
        if code.startswith("NotFound"):
            return CallerError(f"{where} does not exist: {why}. {KEPT} Create it, or name another one.")
        if status >= 500 or "Throttl" in code:
            return UnreachableError(f"{where} does not take the alert now: {why}. {KEPT}")
        return CallerError(f"{where} refuses the alert: {why}. {KEPT} Mend the topic's policy or settings.")


class WebhookChannel:
    """An HTTP address that takes JSON by POST, as chat systems offer."""

    name = "webhook"

    def __init__(
        self,
        url: str,
        *,
        answer_seconds: float = ANSWER_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._url, self._answer_seconds, self._sleep = url, answer_seconds, sleep
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        if is_loopback(url):
            handlers.append(urllib.request.ProxyHandler({}))  # a proxy of the machine is no way to itself
        self._opener = urllib.request.build_opener(*handlers)
        self.where = f"The webhook at {urlsplit(url).hostname} (METERING_ALERTS_WEBHOOK_URL)"

    def send(self, alert: Alert) -> None:
        """Post it; what is unreachable is tried once more."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._post(alert)
            except UnreachableError:
                if attempt == ATTEMPTS:
                    raise
                self._sleep(PAUSE_SECONDS)
        return None

    def _post(self, alert: Alert) -> None:
        request = urllib.request.Request(
            self._url,
            data=json.dumps(as_json(alert)).encode(),
            headers={"Content-Type": "application/json", "User-Agent": "metering-dagster"},
            method="POST",
        )
        # None of these errors goes on as a cause: some of them repeat the address.
        try:
            self._opener.open(request, timeout=self._answer_seconds).close()
        except urllib.error.HTTPError as answer:
            answer.close()
            raise self._refusal(answer.code) from None
        except urllib.error.URLError as error:
            raise self._unreachable(error.reason) from None
        except (OSError, HTTPException) as error:
            raise self._unreachable(error) from None

    def _refusal(self, status: int) -> MeteringError:
        if status >= 500 or status in (408, 425, 429):
            return UnreachableError(f"{self.where} does not take the alert now: it answers {status}. {KEPT}")
        if 300 <= status < 400:
            return CallerError(
                f"{self.where} refuses the alert: it answers {status}, and a redirect is not followed. {KEPT} "
                "Name the address that it leads to."
            )
        return CallerError(
            f"{self.where} refuses the alert: it answers {status}. {KEPT} Renew the address, it may have been revoked."
        )

    def _unreachable(self, reason: object) -> UnreachableError:
        why = type(reason).__name__
        if isinstance(reason, TimeoutError):
            why = f"no answer within {self._answer_seconds:g} s"
        elif isinstance(reason, ssl.SSLCertVerificationError):
            why = f"its certificate is not trusted: {reason.verify_message}"
        elif isinstance(reason, OSError) and reason.strerror:
            why = reason.strerror
        return UnreachableError(f"{self.where} cannot be reached: {why}. {KEPT} Check the network and the setting.")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected POST would arrive as a GET without its body, and tell the address to somebody else."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none: the answer counts as it is."""
