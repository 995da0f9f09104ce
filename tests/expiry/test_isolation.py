"""One group's trouble in the age-out is its own: what is raised for it leaves it pending, and stops nothing else."""

import pytest

from metering_dagster.core import hours
from metering_dagster.core.errors import CallerError, UnreachableError
from metering_dagster.expiry.services import endings
from metering_dagster.expiry.services.sweep_report import ROWS_ENDED
from metering_dagster.metering.rules.isolation import GIVE_UP
from metering_dagster.metering.stores.pending_index import PendingIndex
from tests.expiry.sweeping import OLD, OLDER, age_out, sweep_of
from tests.items import HOUR, OTHER_ACCOUNT, OTHER_LICENSE, a_usage, an_aggregate, some_usage
from tests.world import World

ODD = {"license": OTHER_LICENSE, "account": OTHER_ACCOUNT}
STEPS = ["committed", "settle_group", "key_fault", "mend", "end_uncommitted", "judge"]
"""Where the trouble is made: reading what was committed, settling, judging, filing, writing, counting."""


class TroubleError(Exception):
    """Nobody has foreseen it."""


def make_trouble(monkeypatch: pytest.MonkeyPatch, world: World, step: str) -> None:
    """Whatever this step is given of the odd license raises."""
    where = world.deployment.tables.aggregated if step == "committed" else endings
    usual = getattr(where, step)

    def troubled(*given, **more):
        if any(OTHER_LICENSE in repr(each) or OTHER_ACCOUNT in repr(each) for each in given):
            raise TroubleError(f"something of {OTHER_LICENSE} and {OTHER_ACCOUNT}")
        return usual(*given, **more)

    monkeypatch.setattr(where, step, troubled)


@pytest.mark.parametrize("step", STEPS)
def test_a_group_that_raises_stays_pending_and_everything_else_of_the_shard_is_swept(world, monkeypatch, step):
    for n in range(5):
        world.put(*some_usage("1", "2", hour=OLD, dimension=f"d{n}"), *some_usage("3", hour=OLDER, dimension=f"d{n}"))
    hour = HOUR if step == "mend" else OLD  # what is to be mended is filed under another hour
    world.put(*(a_usage(n, "1", hour=hour, filed=OLD, **ODD) for n in range(30)))
    world.put(an_aggregate("7", hour=OLD, dimension="direct"))
    if step == "settle_group":
        world.put(an_aggregate("30", hour=OLD, status="Success", **ODD))
    make_trouble(monkeypatch, world, step)
    swept = age_out(world)
    assert not swept.success
    assert swept.metadata["failed"] == 1
    assert "everything else was swept: 1 could not be ended as raw rows: TroubleError" in swept.message
    assert f"account ****{OTHER_ACCOUNT[-4:]}" in swept.message
    assert world.row_statuses() == {"AggregationExpired": 15, "pending": 30}
    assert swept.metadata["expired_rows"] == 15
    assert world.aggregate(hour=OLD, dimension="direct")["meteringStatus"] == "SubmissionExpired"


def test_a_record_that_raises_stays_pending_alone(world, monkeypatch):
    for n in range(7):
        world.put(an_aggregate("1", hour=OLD, dimension=f"d{n}"))
    world.put(an_aggregate("7", hour=OLD, **ODD), *some_usage("1", hour=OLDER))
    usual = world.deployment.tables.aggregated.record

    def record(ends, now):
        if any(end.license_arn == OTHER_LICENSE for end in ends):
            raise TroubleError
        return usual(ends, now)

    monkeypatch.setattr(world.deployment.tables.aggregated, "record", record)
    swept = age_out(world)
    assert "1 could not be ended as a record: TroubleError" in swept.message
    assert world.record_statuses() == {"SubmissionExpired": 7, "pending": 1}
    assert world.row_statuses() == {"AggregationExpired": 1}
    assert (swept.metadata["expired_records"], swept.metadata["expired_rows"]) == (7, 1)


@pytest.mark.parametrize("part", ["count", "pages", "unreachable"])
def test_an_hour_that_cannot_be_read_is_named_and_the_others_are_swept(world, monkeypatch, part):
    monkeypatch.setattr(hours, "shard_hours", lambda shard, now: [hours.parse_bucket(b) for b in (OLD, OLDER)])
    world.put(*some_usage("1", hour=OLD), *some_usage("2", hour=OLDER))
    world.put(an_aggregate("7", hour=OLDER, dimension="direct"))
    usual = getattr(PendingIndex, part)

    def troubled(self, which, *more, **named):
        if part == "unreachable" or which == OLD:
            raise UnreachableError("no answer")
        return usual(self, which, *more, **named)

    monkeypatch.setattr(PendingIndex, part, troubled)
    swept = age_out(world, whole=True)
    assert not swept.success
    assert "could not be read: UnreachableError: no answer" in swept.message
    expected = {"AggregationExpired": 2} if part == "unreachable" else {"pending": 1, "AggregationExpired": 1}
    assert world.row_statuses() == expected
    assert world.record_statuses() == {"SubmissionExpired": 1}


@pytest.mark.parametrize("error", [CallerError("refused"), KeyboardInterrupt()])
def test_the_callers_own_trouble_stops_the_rest(world, monkeypatch, error):
    world.put(*some_usage("1", hour=OLD), *some_usage("2", hour=OLDER))

    def refuse(*_):
        raise error

    monkeypatch.setattr(endings, "key_fault", refuse)
    with pytest.raises(type(error)):
        sweep_of(world, OLD, OLDER)
    assert world.row_statuses() == {"pending": 2}


def test_twenty_alike_failures_in_a_row_rest_their_cause(world, monkeypatch):
    world.put(*(a_usage(0, "1", hour=OLD, dimension=f"d{n}") for n in range(40)), an_aggregate("7", hour=OLDER))
    world.put(*some_usage("2", hour=OLDER))

    def fail(*_):
        raise TroubleError

    monkeypatch.setattr(endings, "key_fault", fail)
    done = sweep_of(world, OLD, OLDER)
    assert done.failures.total == 40
    assert sum(n for why, n in done.failures.by_why.items() if why.startswith("could not be")) == GIVE_UP
    assert "after 20 alike failures in a row" in done.failures.resting(ROWS_ENDED)
    assert world.row_statuses() == {"pending": 41}
    assert world.record_statuses() == {"SubmissionExpired": 1}, "that is another step"


def test_an_end_that_was_written_before_the_writing_broke_off_is_counted(world):
    world.put(*some_usage(*["1"] * 150, hour=OLD))

    def break_off():
        raise UnreachableError("no answer")

    for _ in range(2):  # after 98 rows, and where the group is tried alone: the second hook does not hear of the first
        world.meanwhile(break_off, at=2)
    told = []
    done = sweep_of(world, tell=lambda bucket, entry: told.append(entry))
    assert world.row_statuses() == {"AggregationExpired": 98, "pending": 52}
    assert (done.total.rows, len(told), done.failures.total) == (98, 98, 1)
    assert sweep_of(world).total.rows == 52


def test_nobody_is_named_in_full(world, monkeypatch):
    world.put(*some_usage("1", hour=OLD, **ODD))
    make_trouble(monkeypatch, world, "end_uncommitted")
    swept = age_out(world)  # which looks for every secret in all that is stored
    assert "TroubleError: something of ****" in swept.message
