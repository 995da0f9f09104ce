"""DynamoDB as all stores write it: conditions, updates, transactions, and what is too large."""

from decimal import Decimal

import pytest
from botocore.exceptions import ClientError

from metering_dagster.core.aws.transactions import MAX_ACTIONS
from tests.conftest import DYNAMODB_LOCAL, MINISTACK
from tests.contracts.engines import deviates
from tests.items import a_usage, plain, some_usage

RANGE = "customerAWSAccountId_dimension_timestamp"
ITEM_BYTES = 400 * 1024


def key_of(row):
    return {name: row.values[name] for name in ("licenseArn", RANGE)}


def an_update(world, row, condition=None, update="SET meteringStatus = :s", aliases=None, **values):
    """An update of this row's status, on a condition."""
    sent = {f":{name}": value for name, value in values.items()}
    sent |= {":s": {"S": "done"}} if ":s" in update else {}
    return {
        "TableName": world.names["usage"],
        "Key": key_of(row),
        "UpdateExpression": update,
        **({"ConditionExpression": condition} if condition else {}),
        **({"ExpressionAttributeNames": aliases} if aliases else {}),
        **({"ExpressionAttributeValues": sent} if sent else {}),
    }


def error_of(call, **request):
    """The answer with which a request is refused; it must be."""
    with pytest.raises(ClientError) as refused:
        call(**request)
    return refused.value.response


def code_of(call, **request):
    return error_of(call, **request)["Error"]["Code"]


TAGS = {"L": [{"M": {"Key": {"S": "a"}, "Value": {"S": "b"}}}, {"S": "c"}]}
CONDITIONS = [
    ("quantity = :v", {"v": {"N": "5"}}, True),
    ("quantity = :v", {"v": {"N": "5.00"}}, True),
    ("quantity = :v", {"v": {"N": "5E0"}}, True),
    ("quantity = :v", {"v": {"S": "5"}}, False),
    ("quantity <> :v", {"v": {"S": "5"}}, True),
    ("absent = :v", {"v": {"N": "5"}}, False),
    ("quantity > :v", {"v": {"N": "40"}}, False),
    ("quantity > :v", {"v": {"S": ""}}, False),
    ("attribute_exists(absent)", {}, False),
    ("attribute_not_exists(absent)", {}, True),
    ("attribute_not_exists(quantity) OR attribute_type(quantity, :v)", {"v": {"S": "NULL"}}, False),
    ("attribute_type(nothing, :v)", {"v": {"S": "NULL"}}, True),
    ("tags = :v", {"v": TAGS}, True),
    ("colors = :v", {"v": {"SS": ["red", "blue"]}}, True),
    ("bytes = :v", {"v": {"B": b"\x00\xff"}}, True),
    ("bytes = :v", {"v": {"B": b"\x00"}}, False),
    ("places.one = :v", {"v": {"N": "1"}}, True),
    ("places = :v", {"v": {"M": {"two": {"N": "2.0"}, "one": {"N": "1"}}}}, True),
    ("(absent = :v OR quantity <= :w) AND attribute_exists(licenseArn)", {"v": {"S": ""}, "w": {"N": "5"}}, True),
    ("NOT quantity = :v", {"v": {"N": "5"}}, False),
    ("begins_with(dimension, :v)", {"v": {"S": "api"}}, True),
    ("quantity IN (:v, :w)", {"v": {"N": "4"}, "w": {"N": "5"}}, True),
]


@pytest.mark.parametrize(("condition", "values", "holds"), CONDITIONS, ids=str)
def test_a_write_happens_where_its_condition_holds_and_only_there(world, condition, values, holds):
    row = a_usage(0, "5", tags=TAGS, colors={"SS": ["blue", "red"]}, bytes={"B": b"\x00\xff"}, nothing={"NULL": True},
                  places={"M": {"one": {"N": "1"}, "two": {"N": "2"}}})  # fmt: skip
    world.put(row)
    before = world.dump()
    if holds:
        world.client.update_item(**an_update(world, row, condition, **values))
        assert world.row(0)["meteringStatus"] == "done"
    else:
        asked = an_update(world, row, condition, **values)
        assert code_of(world.client.update_item, **asked) == "ConditionalCheckFailedException"
        assert world.dump() == before


@pytest.mark.parametrize("value", [{"L": TAGS["L"][::-1]}, {"L": TAGS["L"][:1]}, {"L": []}], ids=["order", "end", "no"])
def test_lists_are_equal_in_all_of_their_elements_alone(world, request, value):
    deviates(request, MINISTACK, "takes any two lists for equal")
    row = a_usage(0, tags=TAGS)
    world.put(row)
    asked = an_update(world, row, "tags = :v", v=value)
    assert code_of(world.client.update_item, **asked) == "ConditionalCheckFailedException"


def test_a_refused_write_shows_what_stands_there_where_it_was_asked_to(world):
    world.put(a_usage(0, "5"))
    wants = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    stands = error_of(world.client.update_item, **an_update(world, a_usage(0), "quantity > :v", v={"N": "5"}), **wants)
    assert stands["Item"] == a_usage(0, "5").values
    absent = error_of(world.client.update_item, **an_update(world, a_usage(1), "quantity > :v", v={"N": "5"}), **wants)
    assert "Item" not in absent
    unasked = error_of(world.client.update_item, **an_update(world, a_usage(0), "quantity > :v", v={"N": "5"}))
    assert "Item" not in unasked


def test_an_update_makes_what_is_not_there_unless_its_condition_says_otherwise(world):
    world.client.update_item(**an_update(world, a_usage(0)))
    assert world.row(0).keys() == {"licenseArn", RANGE, "meteringStatus"}
    asked = an_update(world, a_usage(1), "attribute_exists(licenseArn)")
    assert code_of(world.client.update_item, **asked) == "ConditionalCheckFailedException"
    assert world.row(1) == {}


def test_removing_what_is_not_there_is_no_fault_and_an_addition_begins_at_what_stands(world):
    world.put(a_usage(0, "5"))
    asked = an_update(world, a_usage(0), update="SET quantity = quantity + :v REMOVE absent", v={"N": "0.10"})
    answer = world.client.update_item(**asked, ReturnValues="UPDATED_NEW")
    assert plain(answer["Attributes"]) == {"quantity": Decimal("5.1")}


def test_an_update_changes_what_its_index_shows(world):
    world.put(a_usage(0))
    world.client.update_item(**an_update(world, a_usage(0), update="REMOVE meteringPending"))
    assert world.deployment.tables.usage.count_pending("2026-11-28T10") == 0
    world.client.update_item(**an_update(world, a_usage(0), update="SET meteringPending = :s"))
    assert world.deployment.tables.usage.count_pending("done") == 1


@pytest.mark.parametrize(("update", "values", "aliases"), [
    ("SET quantity = :v", {}, None), ("SET quantity = :s", {"unused": {"N": "1"}}, None),
    ("SET quantity = :s", {}, {"#unused": "x"}), ("SET licenseArn = :s", {}, None), ("SET quantity", {}, None),
], ids=str)  # fmt: skip
def test_a_malformed_update_is_refused_whatever_stands_there(world, request, update, values, aliases):
    if update == "SET quantity":
        deviates(request, MINISTACK, "takes an assignment of nothing")
    world.put(a_usage(0))
    before = world.dump()
    asked = an_update(world, a_usage(0), update=update, aliases=aliases, **values)
    assert code_of(world.client.update_item, **asked) == "ValidationException"
    assert world.dump() == before


def test_a_reserved_word_is_refused_where_it_has_no_alias(world):
    world.put(a_usage(0))
    asked = an_update(world, a_usage(0), update="SET timestamp = :s")
    assert code_of(world.client.update_item, **asked) == "ValidationException"


def test_one_path_twice_in_an_update_is_refused(world, request):
    deviates(request, MINISTACK, "takes paths that overlap")
    world.put(a_usage(0, places={"M": {}}))
    asked = an_update(world, a_usage(0), update="SET places = :v, places.one = :s", v={"M": {}})
    assert code_of(world.client.update_item, **asked) == "ValidationException"


@pytest.mark.parametrize("value", [{"N": "5"}, {"S": ""}, {"NULL": True}], ids=str)
def test_what_cannot_be_a_key_of_an_index_is_not_put(world, value):
    values = a_usage(0, filed=value).values
    assert code_of(world.client.put_item, TableName=world.names["usage"], Item=values) == "ValidationException"


@pytest.mark.parametrize("value", [{"N": "5"}, {"S": ""}], ids=str)
def test_nor_is_it_set_by_an_update(world, request, value):
    if value == {"N": "5"}:
        deviates(request, DYNAMODB_LOCAL, "keeps a number in an index key on update")
    world.put(a_usage(0))
    asked = an_update(world, a_usage(0), update="SET meteringPending = :v", v=value)
    assert code_of(world.client.update_item, **asked) == "ValidationException"


def a_transaction(world, *rows, refused=(), **more):
    """Updates of these rows; of the refused ones with a condition that does not hold."""
    conditions = {True: "attribute_not_exists(licenseArn)", False: "attribute_exists(licenseArn)"}
    return [{"Update": an_update(world, row, conditions[place in refused]) | more} for place, row in enumerate(rows)]


@pytest.mark.parametrize("refused", [{0}, {4}, {1, 3}, set(range(5))], ids=str)
def test_a_transaction_that_fails_in_part_says_where_and_writes_nothing(world, refused):
    rows = some_usage(*"12345")
    world.put(*rows)
    before = world.dump()
    answer = error_of(world.client.transact_write_items, TransactItems=a_transaction(world, *rows, refused=refused))
    assert answer["Error"]["Code"] == "TransactionCanceledException"
    codes = [reason["Code"] for reason in answer["CancellationReasons"]]
    assert codes == ["ConditionalCheckFailed" if place in refused else "None" for place in range(5)]
    assert world.dump() == before


def test_each_kind_of_action_has_its_place_among_the_reasons(world):
    world.put(*some_usage("1", "2", "3"))
    before, table, absent = world.dump(), world.names["usage"], "attribute_not_exists(licenseArn)"
    answer = error_of(world.client.transact_write_items, TransactItems=[
        {"Put": {"TableName": table, "Item": a_usage(7).values, "ConditionExpression": absent}},
        {"Put": {"TableName": table, "Item": a_usage(0, "9").values, "ConditionExpression": absent}},
        {"ConditionCheck": {"TableName": table, "Key": key_of(a_usage(1)), "ConditionExpression": absent}},
        {"Delete": {"TableName": table, "Key": key_of(a_usage(2))}},
    ])  # fmt: skip
    codes = [reason["Code"] for reason in answer["CancellationReasons"]]
    assert codes == ["None", "ConditionalCheckFailed", "ConditionalCheckFailed", "None"]
    assert world.dump() == before


def test_a_reason_shows_what_stands_there_where_it_was_asked_to(world):
    world.put(a_usage(0, "5"))
    rows = [a_usage(0), a_usage(1)]
    asked = a_transaction(world, *rows, refused={0}, ReturnValuesOnConditionCheckFailure="ALL_OLD")
    first, second = error_of(world.client.transact_write_items, TransactItems=asked)["CancellationReasons"]
    assert first["Item"] == a_usage(0, "5").values
    assert "Item" not in second


def test_a_transaction_takes_a_hundred_actions(world):
    rows = some_usage(*["1"] * (MAX_ACTIONS + 1))
    world.put(*rows)
    asked = a_transaction(world, *rows)
    assert code_of(world.client.transact_write_items, TransactItems=asked) == "ValidationException"
    assert world.row_statuses() == {"pending": MAX_ACTIONS + 1}
    world.client.transact_write_items(TransactItems=asked[:MAX_ACTIONS])
    assert sum("meteringStatus" in row for row in world.rows()) == MAX_ACTIONS


def test_no_item_is_written_twice_in_a_transaction(world):
    world.put(a_usage(0))
    asked = a_transaction(world, a_usage(0), a_usage(0))
    assert code_of(world.client.transact_write_items, TransactItems=asked) == "ValidationException"


def sized(row, size):
    """The row, filled up to so many bytes."""
    values = row.values | {"filler": {"S": ""}}
    taken = sum(len(name) + len(value.get("S", "1+")) for name, value in values.items())
    values["filler"] = {"S": "x" * (size - taken)}
    return values


def test_an_item_of_400_kilobytes_is_put_and_one_of_more_is_not(world):
    table = world.names["usage"]
    world.client.put_item(TableName=table, Item=sized(a_usage(0), ITEM_BYTES - 16))
    too_large = sized(a_usage(1), ITEM_BYTES + 16)
    assert code_of(world.client.put_item, TableName=table, Item=too_large) == "ValidationException"
    assert len(world.rows()) == 1


def test_no_update_grows_an_item_past_400_kilobytes(world):
    world.client.put_item(TableName=world.names["usage"], Item=sized(a_usage(0), ITEM_BYTES - 16))
    assert code_of(world.client.update_item, **an_update(world, a_usage(0))) == "ValidationException"


def test_in_a_transaction_an_item_that_grows_too_large_is_told_by_its_place(world, request):
    deviates(request, MINISTACK, "lets an update in a transaction grow an item past 400 KB")
    world.put(a_usage(0))
    world.client.put_item(TableName=world.names["usage"], Item=sized(a_usage(1), ITEM_BYTES - 16))
    before = world.dump()
    asked = a_transaction(world, a_usage(0), a_usage(1))
    answer = error_of(world.client.transact_write_items, TransactItems=asked)
    assert [reason["Code"] for reason in answer["CancellationReasons"]] == ["None", "ValidationError"]
    assert world.dump() == before


def test_a_transaction_of_more_than_four_megabytes_is_refused_whole(world):
    table = world.names["usage"]
    puts = [{"Put": {"TableName": table, "Item": sized(a_usage(n), 390 * 1024)}} for n in range(11)]
    assert code_of(world.client.transact_write_items, TransactItems=puts) == "ValidationException"
    assert world.rows() == []
    world.client.transact_write_items(TransactItems=puts[:10])
    assert len(world.rows()) == 10


@pytest.mark.parametrize(("license", "sort_key"), [
    ("l" * 2_049, "k"), ("l", "k" * 1_025), ("", "k"), ("l", ""),
], ids=["long license", "long key", "no license", "no key"])  # fmt: skip
def test_a_key_that_is_too_long_or_empty_is_refused(world, license, sort_key):
    values = a_usage(0).values | {"licenseArn": {"S": license}, RANGE: {"S": sort_key}}
    assert code_of(world.client.put_item, TableName=world.names["usage"], Item=values) == "ValidationException"
