"""What the lifecycle of licenses works with, made from a deployment.

Belongs here: wiring. Does not: rules, requests. The AWS SDK is imported where it is used, for the UI needs none of it.
"""

from typing import TYPE_CHECKING

from metering_dagster.core.errors import SettingsError
from metering_dagster.settings import Mode

if TYPE_CHECKING:
    from metering_dagster.licenses.stores.events_queue import EventsQueue
    from metering_dagster.licenses.stores.subscriber_rows import Subscribers
    from metering_dagster.metering.services.deployment import Deployment

NO_QUEUE = "MARKETPLACE_EVENTS_QUEUE_URL is not set"
SHADOW = (
    "METERING_MODE=shadow: what is received from the queue is received by nobody else, so that no event is taken away "
    "from the pipeline that writes"
)


def events_queue_of(deployment: "Deployment") -> "EventsQueue":
    """Return the queue of lifecycle events; `SettingsError` where none is named, or in shadow mode."""
    from metering_dagster.licenses.stores.events_queue import EventsQueue

    url = deployment.settings.events_queue_url
    if url is None:
        raise SettingsError(f"{NO_QUEUE}. Nothing was received. Name the queue of the lifecycle events there.")
    if deployment.mode is Mode.SHADOW:
        raise SettingsError(f"{SHADOW}. Nothing was received. Apply events where METERING_MODE is live or dry-run.")
    return EventsQueue(deployment.clients.sqs(), url)


def subscribers_of(deployment: "Deployment") -> "Subscribers":
    """Return the subscribers table as the lifecycle writes it."""
    from metering_dagster.licenses.stores.subscriber_rows import Subscribers

    read = deployment.tables.subscribers
    return Subscribers(read.client, read.name, deployment.settings.now)
