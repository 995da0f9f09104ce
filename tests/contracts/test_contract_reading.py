"""DynamoDB as all stores read it: pages, what an index may be asked, batches, numbers."""

from decimal import Decimal
from itertools import pairwise

import pytest
from botocore.exceptions import ClientError

from metering_dagster.core.aws.dynamodb import BATCH_GET_KEYS
from tests.conftest import MINISTACK
from tests.contracts.engines import deviates
from tests.items import HOUR, LICENSE, OTHER_LICENSE, a_usage, an_aggregate, some_usage

RANGE = "customerAWSAccountId_dimension_timestamp"


def pages_of(world, after_each=lambda page: None, **how):
    """The pages of a license's rows, in the table unless an index is named."""
    asked = {"KeyConditionExpression": "licenseArn = :it", "ExpressionAttributeValues": {":it": {"S": LICENSE}}}
    if "IndexName" in how:
        asked = {"KeyConditionExpression": "meteringPending = :it", "ExpressionAttributeValues": {":it": {"S": HOUR}}}
    request, found = {"TableName": world.names["usage"], **asked, **how}, []
    while True:
        answer = world.client.query(**request)
        found.append(answer)
        after_each(answer)
        if "LastEvaluatedKey" not in answer:
            return found
        request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]


def sort_keys(pages):
    return [item[RANGE]["S"] for page in pages for item in page["Items"]]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("index", [{}, {"IndexName": "metering_pending"}], ids=["table", "index"])
def test_pages_of_a_limit_hold_no_more_and_lead_to_every_item_once(world, limit, index):
    world.put(*some_usage(*["1"] * 7))
    found = pages_of(world, Limit=limit, **index)
    assert all(page["ScannedCount"] <= limit for page in found)
    assert sorted(sort_keys(found)) == [row.sort_key for row in some_usage(*["1"] * 7)]
    assert len(found) in {-(-7 // limit), 7 // limit + 1}, "a full last page may be followed by an empty one"


def test_a_page_of_the_index_ends_with_the_keys_of_index_and_table(world):
    world.put(*some_usage("1", "2", "3"))
    first = pages_of(world, IndexName="metering_pending", Limit=2)[0]
    assert first["LastEvaluatedKey"].keys() == {"meteringPending", "licenseArn", RANGE}


def test_rows_of_a_table_come_in_the_order_of_their_bytes(world):
    world.put(*(a_usage(0, dimension=name) for name in ("b", "a", "é", "Z", "a#", "\U0001f600", "\uffee")))
    keys = sort_keys(pages_of(world))
    assert [key.encode() for key in keys] == sorted(key.encode() for key in keys)


@pytest.mark.parametrize("index", [{}, {"IndexName": "metering_pending"}], ids=["table", "index"])
def test_a_page_goes_on_behind_an_item_that_is_gone_by_then(world, index):
    rows = some_usage(*["1"] * 9)
    world.put(*rows)
    by_key = {row.sort_key: row for row in rows}
    found = pages_of(world, lambda page: [world.delete(by_key[key]) for key in sort_keys([page])], Limit=2, **index)
    assert sorted(sort_keys(found)) == sorted(by_key)


def test_a_page_ends_at_a_megabyte_or_with_the_item_that_passes_it(world, request):
    deviates(request, MINISTACK, "answers with all there is, however much: it pages by Limit alone")
    world.put(*(a_usage(second, filler="x" * 300_000) for second in range(8)))
    found = pages_of(world)
    assert {page["Count"] for page in found[:-1]} <= {3, 4}  # DynamoDB Local hands out the one that passes it as well
    assert len(found) > 1
    assert len(sort_keys(found)) == 8


def test_a_count_is_paged_as_the_items_are(world, request):
    deviates(request, MINISTACK, "answers with all there is, however much: it pages by Limit alone")
    world.put(*(a_usage(second, filler="x" * 300_000) for second in range(8)))
    found = pages_of(world, Select="COUNT")
    assert len(found) > 1
    assert sum(page["Count"] for page in found) == 8
    assert not any(page.get("Items") for page in found)


def test_what_is_filtered_out_has_been_read(world):
    world.put(*some_usage("1", "2", "3", "4"))
    asked = {":it": {"S": LICENSE}, ":two": {"N": "2"}}
    found = pages_of(world, Limit=2, FilterExpression="quantity > :two", ExpressionAttributeValues=asked)
    assert [(page["ScannedCount"], page["Count"]) for page in found][:2] == [(2, 0), (2, 2)]


def test_an_index_shows_what_has_both_of_its_keys_and_carries_what_it_projects(world):
    world.put(a_usage(0, "5", filler="x"), a_usage(1, filed=None), a_usage(2, filed="2026-11-28T11"))
    (page,) = pages_of(world, IndexName="metering_pending")
    (item,) = page["Items"]
    assert item.keys() == {"licenseArn", RANGE, "meteringPending", "customerAWSAccountId", "dimension"}


def test_an_index_comes_in_the_order_of_licenses(world):
    world.put(*(a_usage(0, license=license) for license in (f"{LICENSE}b", OTHER_LICENSE, f"{LICENSE}a")))
    pages = pages_of(world, IndexName="metering_pending", Limit=1)
    licenses = [item["licenseArn"]["S"] for page in pages for item in page["Items"]]
    assert all(one < next_one for one, next_one in pairwise(licenses))


def refusal(call, **request):
    """The code with which a request is refused; it must be."""
    with pytest.raises(ClientError) as refused:
        call(**request)
    return refused.value.response["Error"]["Code"]


def test_an_index_cannot_be_read_consistently(world):
    condition = {"KeyConditionExpression": "meteringPending = :h", "ExpressionAttributeValues": {":h": {"S": HOUR}}}
    asked = {"TableName": world.names["usage"], "IndexName": "metering_pending", **condition, "ConsistentRead": True}
    assert refusal(world.client.query, **asked) == "ValidationException"


def test_a_table_that_is_not_there_is_said_by_its_code(world):
    asked = {"TableName": "nowhere", "Key": {"licenseArn": {"S": "a"}, RANGE: {"S": "b"}}}
    assert refusal(world.client.get_item, **asked) == "ResourceNotFoundException"


def keys_of(rows):
    return [{name: row.values[name] for name in ("licenseArn", RANGE)} for row in rows]


def test_a_batch_takes_a_hundred_keys_once_each(world):
    rows = some_usage(*["1"] * (BATCH_GET_KEYS + 1))
    world.put(*rows)
    table, keys = world.names["usage"], keys_of(rows)
    answer = world.client.batch_get_item(RequestItems={table: {"Keys": keys[:BATCH_GET_KEYS]}})
    assert len(answer["Responses"][table]) == BATCH_GET_KEYS
    assert refusal(world.client.batch_get_item, RequestItems={table: {"Keys": keys}}) == "ValidationException"


def test_a_key_twice_in_a_batch_is_refused(world):
    keys = keys_of([a_usage(0), a_usage(0)])
    asked = {world.names["usage"]: {"Keys": keys}}
    assert refusal(world.client.batch_get_item, RequestItems=asked) == "ValidationException"


@pytest.mark.lengthy
def test_a_batch_of_more_than_sixteen_megabytes_leaves_keys_for_the_next(world, request):
    deviates(request, MINISTACK, "answers for all keys of a batch, however much it is")
    items = [an_aggregate("1", dimension=f"d{number}", filler="x" * 380_000) for number in range(50)]
    world.put(*items[:25])
    world.put(*items[25:])
    table = world.names["aggregated"]
    keys = [{name: item.values[name] for name in ("licenseArn", "account_dimension_hour")} for item in items]
    answer = world.client.batch_get_item(RequestItems={table: {"Keys": keys}})
    left = answer["UnprocessedKeys"][table]["Keys"]
    assert len(answer["Responses"][table]) + len(left) == 50
    assert left


@pytest.mark.parametrize(("written", "read"), [
    ("5.00", "5"), ("5E0", "5"), ("-0", "0"), ("0.10", "0.1"), ("9999999999.999999", "9999999999.999999"),
    ("1234567890123456789012345678.9012345678", "1234567890123456789012345678.9012345678"), ("1E+100", "1E+100"),
])  # fmt: skip
def test_a_number_keeps_its_value_to_the_last_of_38_digits(world, written, read):
    world.put(a_usage(0, written))
    assert world.row(0)["quantity"] == Decimal(read)


@pytest.mark.parametrize("text", ["1" * 39, "1E+126", "five", "", "NaN", "Infinity"])
def test_what_is_no_number_of_dynamodb_is_refused(world, text):
    values = a_usage(0, text).values
    assert refusal(world.client.put_item, TableName=world.names["usage"], Item=values) == "ValidationException"
