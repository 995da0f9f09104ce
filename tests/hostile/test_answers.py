"""Any answer of the services that their models allow: nothing is billed twice, nothing ends that was not answered.

Belongs here: BatchMeterUsage's answers and error messages, DynamoDB's error messages. Does not: what each error class
means (tests/metering/test_cases_service.py).
"""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from tests.hostile.broken import broken
from tests.hostile.effort import examples
from tests.hostile.secrets import ACCOUNT, IDENTIFIER, LICENSE, OTHER_ACCOUNT, OTHER_LICENSE, assert_nothing_leaks
from tests.hostile.tiny_world import TinyWorld
from tests.items import HOUR, an_aggregate
from tests.simulation.memory.failures import error

SHORT_ACCOUNT = "77351"
PRODUCT = "product-one"
RECORD = {
    "Timestamp": datetime.fromisoformat(f"{HOUR}:00:00+00:00"), "Dimension": "d", "CustomerAWSAccountId": ACCOUNT,
    "LicenseArn": LICENSE, "QuantityAsDecimal": "2",
}  # fmt: skip
RESULT = {"UsageRecord": RECORD, "MeteringRecordId": "id-1", "Status": "Success"}
STATUSES = ["Success", "DuplicateRecord", "CustomerNotSubscribed", "", "success", "Pending"]
CODES = [
    "ThrottlingException", "InternalServiceErrorException", "InvalidUsageDimensionException", "InvalidTagException",
    "InvalidCustomerIdentifierException", "InvalidProductCodeException", "AccessDeniedException", "Surprise", "",
    "ValidationException", "ProvisionedThroughputExceededException", "ResourceNotFoundException", "ExpiredToken",
]  # fmt: skip
MESSAGES = [
    f"account {ACCOUNT}, license {LICENSE}", f"https://u:p@{ACCOUNT}.example.com", "", "\x00", f"[{OTHER_LICENSE}]",
]  # fmt: skip


def without_odd_texts(answer: Any) -> bool:
    """Whether it could have come out of the SDK's parser: of the model's types, though anything may be missing."""
    if not isinstance(answer, dict):
        return False
    results, unprocessed = answer.get("Results", []), answer.get("UnprocessedRecords", [])
    records = [*unprocessed] if isinstance(unprocessed, list) else [None]
    for result in results if isinstance(results, list) else [None]:
        if not isinstance(result, dict) or not isinstance(result.get("Status", ""), str | None):
            return False
        if not isinstance(result.get("MeteringRecordId", ""), str):
            return False
        if "UsageRecord" in result:
            records.append(result["UsageRecord"])
    return all(
        isinstance(record, dict)
        and isinstance(record.get("Timestamp", RECORD["Timestamp"]), datetime)
        and all(
            isinstance(value, str) for name, value in record.items() if name not in ("Timestamp", "UsageAllocations")
        )
        for record in records
    )


INSTANTS = st.sampled_from([
    RECORD["Timestamp"], RECORD["Timestamp"] + timedelta(minutes=9),
    RECORD["Timestamp"].astimezone(timezone(timedelta(hours=5, minutes=30))), datetime(2020, 1, 1, tzinfo=UTC),
])  # fmt: skip
ANSWERS = broken({"Results": [RESULT], "UnprocessedRecords": []}).filter(without_odd_texts) | st.builds(
    lambda results, left: {"Results": results, "UnprocessedRecords": left},
    st.lists(st.builds(lambda status, at: {**RESULT, "Status": status, "UsageRecord": {**RECORD, "Timestamp": at}},
                       st.sampled_from(STATUSES), INSTANTS), max_size=3),
    st.lists(st.just(RECORD), max_size=2),
)  # fmt: skip


def fits(result: Any, item: Any) -> bool:
    """Whether what a result echoes contradicts nothing of the item: what is not echoed may be anything."""
    echo = result.get("UsageRecord") or {}
    arn = item["licenseArn"] if item["licenseArn"].startswith("arn:") else ""
    buyer = item.get("customerIdentifier") or item["customerAWSAccountId"]
    buyers = {echo[name] for name in ("CustomerAWSAccountId", "CustomerIdentifier") if echo.get(name)}
    return (
        (echo.get("LicenseArn") or arn) == arn
        and (echo.get("Dimension") or item["dimension"]) == item["dimension"]
        and (not buyers or buyer in buyers)
    )


def a_world(around: Any, service: str = "metering") -> TinyWorld:
    world = TinyWorld(around={service: around})
    world.put(
        an_aggregate("2", license=LICENSE, account=ACCOUNT, dimension="d"),
        an_aggregate("3", license=PRODUCT, account=OTHER_ACCOUNT, dimension="d", customerIdentifier=IDENTIFIER),
        an_aggregate("4", license=OTHER_LICENSE, account=SHORT_ACCOUNT, dimension="d"),
    )
    return world


@examples(100)
@given(ANSWERS)
@example({"Results": [{"UsageRecord": RECORD}], "UnprocessedRecords": []})
@example({"Results": [{"Status": "Success"}]})
@example({"Results": [{"Status": "Success", "UsageRecord": {"Dimension": "d"}}]})
@example({"Results": [{**RESULT, "MeteringRecordId": ""}, RESULT]})
def test_a_record_ends_as_it_was_answered_or_stays_pending(answer):
    world = a_world(lambda operation, request, call: answer)
    world.meter(HOUR)
    for item in world.items("aggregated"):
        if "meteringPending" not in item and "meteringStatus" in item:
            fitting = [result for result in answer.get("Results", []) if fits(result, item)]
            assert item["meteringStatus"] in {result.get("Status") for result in fitting}, "an answer for another"
    assert_nothing_leaks(*world.said)


@examples(80)
@given(
    code=st.sampled_from(CODES), status=st.sampled_from([400, 403, 500, 503]),
    words=st.sampled_from(["{} is not known", "'{}'", "CustomerAWSAccountId={};", "[{}]", "({}, x)", "{}"]),
)  # fmt: skip
@example(code="Surprise", words="Customer {} is not known", status=400)
def test_no_error_of_the_service_names_a_buyer_in_full(code, words, status):
    def refuse(operation: str, request: Any, call: Any) -> Any:
        named = ("CustomerAWSAccountId", "CustomerIdentifier", "LicenseArn")
        who = [record[name] for record in request["UsageRecords"] for name in named if name in record]
        said = " ".join(words.format(each) for each in who)
        raise error("meteringmarketplace", operation, code, said, status=status)

    world = a_world(refuse)
    assert world.meter(HOUR) or not [item for item in world.items("aggregated") if "meteringPending" in item]
    assert not world.marketplace.bill()
    said = "\n".join(world.said)
    assert_nothing_leaks(said, secrets=(ACCOUNT, LICENSE, OTHER_ACCOUNT, OTHER_LICENSE, IDENTIFIER, SHORT_ACCOUNT))


@examples(60)
@given(
    code=st.sampled_from(CODES), message=st.sampled_from(MESSAGES),
    status=st.sampled_from([400, 500]),
    at=st.integers(1, 12), operation=st.sampled_from(["Query", "BatchGetItem", "TransactWriteItems", "UpdateItem"]),
)  # fmt: skip
def test_an_error_of_the_tables_comes_out_in_words_and_the_next_visit_bills(code, message, status, at, operation):
    calls = 0

    def refuse(name: str, request: Any, call: Any) -> Any:
        nonlocal calls
        calls += name == operation
        if name == operation and calls == at:
            raise error("dynamodb", name, code, message, status=status)
        return call()

    world = a_world(refuse, "dynamodb")
    world.meter(HOUR)
    assert world.meter(HOUR) == ""
    assert sorted(line.quantity for line in world.marketplace.bill()) == ["2", "3", "4"]
    assert_nothing_leaks(*world.said)
