"""Which cron expressions tick in every hour: as Dagster's own reading of them has it."""

from dagster._utils.schedules import is_valid_cron_string
from dagster._vendored.croniter import croniter
from hypothesis import assume, given
from hypothesis import strategies as st

from metering_dagster.core.cron import ticks_every_hour

DAY, WEEKDAY = 2, 4


def fields(low: int, high: int) -> st.SearchStrategy[str]:
    """A field of a cron expression, often one that allows all values."""
    number = st.integers(low, high).map(str)
    step = st.sampled_from(["", "", "/1", "/2"])
    part = st.one_of(
        st.just("*"), st.just(f"{low}-{high}"), number, st.builds("*{}".format, step),
        st.builds("{}-{}{}".format, number, number, step), st.builds("{}/{}".format, number, st.sampled_from([1, 2])),
    )  # fmt: skip
    return st.just("*") | st.lists(part, min_size=1, max_size=2).map(",".join)


def by_croniter(expression: str) -> bool:
    """Whether it ticks in every hour by the values into which Dagster's library expands the fields."""
    expanded = croniter.expand(expression)[0]
    full = ["*" in values or len(values) == size for values, size in zip(expanded, (60, 24, 31, 12, 7), strict=True)]
    restricted = expanded[DAY][0] != "*" and expanded[WEEKDAY][0] != "*"
    days = full[DAY] or full[WEEKDAY] if restricted else full[DAY] and full[WEEKDAY]
    return full[1] and full[3] and days


@given(st.tuples(fields(0, 59), fields(0, 23), fields(1, 31), fields(1, 12), fields(0, 7)).map(" ".join))
def test_nothing_is_taken_for_hourly_that_dagster_does_not_tick_hourly(expression):
    try:
        assume(is_valid_cron_string(expression))
    except ValueError:
        assume(False)
    is_hourly = ticks_every_hour(expression)
    assert is_hourly <= by_croniter(expression)
    if "/2" not in expression:  # a step across the end of its field is taken for slower than it is
        assert is_hourly == by_croniter(expression)
