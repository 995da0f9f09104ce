"""DynamoDB as every store here uses it: table shapes, pages, transactions, errors in words.

Belongs here: what is the same for all tables. Does not: any table's keys, expressions or meaning.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from boto3.dynamodb.types import TypeDeserializer, TypeSerializer
from botocore import exceptions
from botocore.exceptions import BotoCoreError, ClientError

from metering_dagster.core import clock_skew
from metering_dagster.core.errors import CallerError, ItemRefusedError, MeteringError, TableError, UnreachableError
from metering_dagster.core.masking import mask_text

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

Item = Mapping[str, Any]
"""An item or a key in DynamoDB's typed JSON, `{"name": {"S": "..."}}`."""

BATCH_GET_KEYS = 100
CONFLICT_ATTEMPTS = 8
KEPT = "What was not yet written is still pending."

CALLER_CODES = frozenset({
    "AccessDeniedException", "UnrecognizedClientException", "ExpiredTokenException", "ExpiredToken",
    "InvalidSignatureException", "InvalidClientTokenId", "MissingAuthenticationTokenException",
    "IncompleteSignatureException", "OptInRequired", "SignatureDoesNotMatch", "InvalidAccessKeyId", "AccessDenied",
    "MissingAuthenticationToken", "NotAuthorized", "RequestExpired", "RequestTimeTooSkewed",
})  # fmt: skip
"""AWS refuses the caller itself: permissions, credentials, a clock that is off."""


@dataclass(frozen=True)
class IndexShape:
    """A global secondary index: its keys (all strings) and what it projects beside the keys."""

    name: str
    hash_key: str
    range_key: str | None
    include: tuple[str, ...] | None = None
    """Attributes of an INCLUDE projection; None for ALL, empty for KEYS_ONLY."""


@dataclass(frozen=True)
class TableShape:
    """A table as this project needs it: what a person calls it, its keys (all strings), its indexes."""

    title: str
    setting: str
    hash_key: str
    range_key: str
    indexes: tuple[IndexShape, ...]


def key_names(shape: TableShape | IndexShape) -> list[str]:
    """Return the names of its keys, as `stored_key_names` gives them."""
    return [shape.hash_key] + ([shape.range_key] if shape.range_key else [])


def stored_key_names(schema: Sequence[Any]) -> list[str]:
    """Return the names in a key schema as DynamoDB describes it, the hash key first."""
    return [key["AttributeName"] for key in sorted(schema, key=lambda key: str(key["KeyType"]))]


def _key_schema(hash_key: str, range_key: str | None) -> list[Any]:
    keys = [{"AttributeName": hash_key, "KeyType": "HASH"}]
    return keys + ([{"AttributeName": range_key, "KeyType": "RANGE"}] if range_key else [])


def create_table(client: "DynamoDBClient", name: str, shape: TableShape) -> None:
    """Create the table with its indexes, on demand. Fails as the client does where it exists already."""
    names = {shape.hash_key, shape.range_key}.union(*(key_names(index) for index in shape.indexes))
    client.create_table(
        TableName=name,
        KeySchema=_key_schema(shape.hash_key, shape.range_key),
        AttributeDefinitions=_strings(names),
        BillingMode="PAY_PER_REQUEST",
        GlobalSecondaryIndexes=[_index_definition(index) for index in shape.indexes],
    )


def create_index(
    client: "DynamoDBClient", table: str, index: IndexShape, throughput: Mapping[str, int] | None = None
) -> None:
    """Begin to create an index of a table that exists; `throughput` where that one has provisioned capacity.

    DynamoDB creates one at a time, and fails as the client does while another is under way.
    """
    definition = _index_definition(index) | ({"ProvisionedThroughput": dict(throughput)} if throughput else {})
    client.update_table(
        TableName=table,
        AttributeDefinitions=_strings(key_names(index)),
        GlobalSecondaryIndexUpdates=[{"Create": definition}],
    )


def _index_definition(index: IndexShape) -> Any:
    if index.include is None:
        projection: dict[str, Any] = {"ProjectionType": "ALL"}
    elif index.include:
        projection = {"ProjectionType": "INCLUDE", "NonKeyAttributes": list(index.include)}
    else:
        projection = {"ProjectionType": "KEYS_ONLY"}
    return {
        "IndexName": index.name,
        "KeySchema": _key_schema(index.hash_key, index.range_key),
        "Projection": projection,
    }


def _strings(names: Iterable[str]) -> list[Any]:
    return [{"AttributeName": name, "AttributeType": "S"} for name in sorted(names)]


class _Deserializer(TypeDeserializer):
    """boto3's own refuses a number that is written with more than 38 digits, be they zeros: 1E+100 comes so.

    And its bytes come in a wrapper that cannot be shown as text.
    """

    def _deserialize_n(self, value: str) -> Decimal:
        return Decimal(value)

    def _deserialize_b(self, value: bytes) -> bytes:
        return value


class _Serializer(TypeSerializer):
    """boto3's own refuses what the one above has read."""

    def _serialize_n(self, value: Decimal) -> str:
        return str(value)


plain = _Deserializer().deserialize
"""One attribute as a plain value: numbers as exact decimals, binary as bytes."""
typed = _Serializer().serialize
"""The inverse of `plain`. Floats are refused."""


def value(item: Item, name: str) -> Any:
    """Return the attribute as a plain value; None where it is absent (or NULL, which says as little)."""
    return plain(item[name]) if name in item else None


def stamp(instant: datetime) -> str:
    """Return an instant as the tables keep it in `createdAt` and `updatedAt`: ISO-8601 in UTC, whole seconds, `Z`."""
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pages(call: Callable[..., Any], **request: Any) -> Iterator[Sequence[Item]]:
    """Yield every page of a Query, as lists of items; a page may be empty though more follow."""
    for answer in answers(call, **request):
        yield answer.get("Items", [])


def answers(call: Callable[..., Any], **request: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every answer of a Query that pages; `UnreachableError` where what answers is not DynamoDB."""
    start: dict[str, Any] = {}
    while True:
        answer = call(**request, **start)
        if "Count" not in answer:
            raise UnreachableError(
                f"What answers at AWS_ENDPOINT_URL_DYNAMODB is not DynamoDB: {mask_text(repr(answer))[:200]}. {KEPT}"
            )
        yield answer
        last = answer.get("LastEvaluatedKey")
        if not last:
            return
        start = {"ExclusiveStartKey": last}


def batch_get(client: "DynamoDBClient", table: str, keys: Sequence[Item], **reading: Any) -> Iterator[Item]:
    """Yield the items of these keys that exist, read consistently, in any order; what DynamoDB leaves over is asked
    again.

    `reading` are further parameters of the read, such as a ProjectionExpression.
    """
    for start in range(0, len(keys), BATCH_GET_KEYS):
        wanted: Sequence[Any] = keys[start : start + BATCH_GET_KEYS]
        attempt = 0
        while wanted:
            request: Any = {table: {"Keys": wanted, "ConsistentRead": True, **reading}}
            answer = client.batch_get_item(RequestItems=request)
            if "Responses" not in answer:
                raise UnreachableError(f"What answers at AWS_ENDPOINT_URL_DYNAMODB is not DynamoDB. {KEPT}")
            yield from answer["Responses"].get(table, [])
            left: Any = answer.get("UnprocessedKeys", {}).get(table, {})
            wanted = left.get("Keys", [])
            if wanted:
                attempt += 1
                if attempt > CONFLICT_ATTEMPTS:
                    raise UnreachableError(
                        f"DynamoDB table {mask_text(table)} left {len(wanted)} keys unread after {attempt} attempts "
                        "(throttled). Nothing was written for them; the next run reads them again."
                    )
                time.sleep(pause(attempt))


def pause(attempt: int) -> float:
    """Seconds before the next attempt: doubling up to 2, with jitter, so that rivals part."""
    return random.uniform(0.5, 1.0) * float(min(0.05 * 2**attempt, 2.0))


class Explained:
    """A block whose errors of the AWS SDK come out as `MeteringError`s about this table."""

    def __init__(self, client: "DynamoDBClient", table: str, shape: TableShape, kept: str = KEPT) -> None:
        self.client, self.table, self.shape, self.kept = client, table, shape, kept

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (BotoCoreError, ClientError)):
            raise explain(error, self.client, self.table, self.shape, self.kept) from error


def explain(
    error: Exception, client: "DynamoDBClient", table: str, shape: TableShape, kept: str = KEPT
) -> MeteringError:
    """Put an error of botocore about this table in words: what, where, what was left untouched, what to do."""
    where = place(client, table, shape)
    if is_credentials_error(error):
        said = mask_text(str(error)).rstrip(".")
        return CallerError(f"No usable AWS credentials for {where}: {said}. {kept} Set or renew the credentials.")
    if isinstance(error, ClientError):
        code = error.response.get("Error", {}).get("Code", "")
        message = mask_text(error.response.get("Error", {}).get("Message", "")).rstrip(".")
        if code in CALLER_CODES:
            skew = clock_skew.words(error.response, datetime.now(UTC))
            # A transaction has no permission of its own: it needs those of its writes.
            named = {"TransactWriteItems": "UpdateItem, dynamodb:PutItem and dynamodb:ConditionCheckItem"}.get(
                error.operation_name, error.operation_name
            )
            return CallerError(f"DynamoDB refuses {error.operation_name} on {where}: {code}: {message}. {kept} "
                               f"Renew the credentials, or allow dynamodb:{named}. {skew}".strip())  # fmt: skip
        if code in ("ResourceNotFoundException", "ValidationException"):
            misshapen = shape_error(client, table, shape, kept)
            if misshapen is not None:
                return misshapen
            kind = ItemRefusedError if code == "ValidationException" else TableError
            return kind(f"DynamoDB refuses {error.operation_name} on {where}: {code}: {message}. {kept}")
        return UnreachableError(f"DynamoDB failed {error.operation_name} on {where}: {code}: {message}. {kept} "
                                "The next run tries again.")  # fmt: skip
    if is_connection_error(error):
        return UnreachableError(f"{where} cannot be reached: {mask_text(str(error)).rstrip('.')}. {kept} "
                                "Check the network and AWS_ENDPOINT_URL_DYNAMODB.")  # fmt: skip
    if isinstance(error, BotoCoreError):
        return CallerError(f"The AWS SDK cannot use {where}: {mask_text(str(error)).rstrip('.')}. {kept}")
    raise error


def shape_error(client: "DynamoDBClient", table: str, shape: TableShape, kept: str = KEPT) -> TableError | None:
    """In what the table differs from what is needed, as an error; None where it fits or cannot be described."""
    faults = shape_faults(client, table, shape)
    if not faults:
        return None
    return TableError(
        f"{place(client, table, shape)} is not as it must be: {'; '.join(faults)}. {kept} "
        "Create or mend the table, or name another one in the setting."
    )


def place(client: "DynamoDBClient", table: str, shape: TableShape) -> str:
    """Return which table, and where, for a message."""
    return mask_text(
        f"{shape.title} {table} ({shape.setting}) in {client.meta.region_name} at {client.meta.endpoint_url}"
    )


def created_at(client: "DynamoDBClient", table: str) -> datetime | None:
    """Return when the table was created, in UTC; a restore creates one as well. None where it cannot be described."""
    try:
        created = client.describe_table(TableName=table)["Table"].get("CreationDateTime")
    except (BotoCoreError, ClientError):
        return None  # only a warning hangs on it, and whoever reads or writes next says what is wrong
    return created.astimezone(UTC) if created is not None else None


def is_credentials_error(error: Exception) -> bool:
    """Return whether the SDK found no credentials it could use."""
    return isinstance(error, (
        exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.ProfileNotFound,
        exceptions.CredentialRetrievalError, exceptions.TokenRetrievalError, exceptions.NoAuthTokenError,
        exceptions.SSOError, exceptions.NoRegionError,
    ))  # fmt: skip


def is_connection_error(error: Exception) -> bool:
    """Return whether the endpoint could not be reached, or broke off."""
    return isinstance(error, (exceptions.ConnectionError, exceptions.HTTPClientError))


def shape_faults(client: "DynamoDBClient", table: str, shape: TableShape) -> list[str]:
    """In what the table differs from what is needed, in words; empty where it fits or cannot be described."""
    try:
        found = client.describe_table(TableName=table)["Table"]
    except ClientError as error:
        if error.response["Error"]["Code"] == "ResourceNotFoundException":
            return ["there is no such table"]
        return []  # not allowed to look: the error that led here is told instead
    except BotoCoreError:
        return []
    faults = []
    keys = stored_key_names(found.get("KeySchema", []))
    if keys != key_names(shape):
        faults.append(f"its key is {keys}, not {key_names(shape)}")
    indexes = {index.get("IndexName"): index for index in found.get("GlobalSecondaryIndexes", [])}
    for index in shape.indexes:
        if index.name not in indexes:
            faults.append(f"its index {index.name} is missing")
        elif stored_key_names(indexes[index.name].get("KeySchema", [])) != key_names(index):
            faults.append(f"the key of its index {index.name} is not {key_names(index)}")
    return faults
