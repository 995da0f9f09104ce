"""Cells of any rows: summed up row by row, whatever pieces the queries found them in."""

from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from metering_dagster.billing_changes.rules.cells import (
    Cell,
    Claims,
    Group,
    Piece,
    Side,
    Signal,
    Subscription,
    TenantScope,
    cells_of,
    instant_of,
    microseconds_of,
    newest_of_days,
    states_of_days,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOON = datetime(2026, 9, 20, 12, tzinfo=UTC)
days = st.integers(0, 2).map(lambda n: date(2026, 9, 1) + timedelta(days=n))
names = st.sampled_from(["rg", "RG", "Rg ", "straße", "STRASSE", "other", " rg"])
stamps = st.none() | st.integers(0, 4).map(lambda n: NOON + n * timedelta(microseconds=333_333))
amounts = st.decimals(-1000, 1000, places=6)
owners = st.one_of(st.builds(TenantScope, names), st.builds(Group, st.sampled_from(["i", "I", "j"]), names))
rows = st.tuples(st.sampled_from(Signal), days, owners, stamps, amounts, st.sampled_from(["EUR", "USD"]))
subscriptions = st.lists(
    st.builds(
        lambda number, integration, name, is_group: Subscription(
            f"{name}" if not is_group else f"group-{number}", integration, name, "Name", "azure", is_group
        ),
        st.integers(0, 99), st.sampled_from(["i", "J"]), names, st.booleans(),
    ), max_size=5, unique_by=lambda one: one.id,
)  # fmt: skip


def same(one: str, other: str) -> bool:
    """As Azure and MySQL's older collations have it: neither case nor blanks at the end."""
    return one.rstrip(" ").casefold() == other.rstrip(" ").casefold()


def claims_by_the_text(one: Subscription, owner: TenantScope | Group) -> bool:
    if isinstance(owner, TenantScope):
        return not one.is_resource_group and same(one.id, owner.scope_id)
    return (
        one.is_resource_group
        and same(one.integration_id, owner.integration_id)
        and same(one.external_id, owner.resource_group)
    )


def side_of(stamp, amount, currency) -> Side:
    micros = 0 if stamp is None else (stamp - EPOCH) // timedelta(microseconds=1)
    return Side(1, int(stamp is None), stamp, micros, ((currency, amount),))


@settings(max_examples=60)
@given(st.lists(rows, max_size=12), subscriptions, st.data())
def test_the_cells_of_any_rows_are_their_sums_in_whatever_pieces_they_came(some, enabled, data):
    pieces = []
    for signal, day, owner, *content in some:
        piece = Piece(signal, day, owner, side_of(*content))
        last = pieces[-1] if pieces else None
        together = last is not None and (last.signal, last.day, last.owner) == (signal, day, owner)
        if last is not None and together and data.draw(st.booleans()):
            pieces[-1] = Piece(signal, day, owner, last.side + piece.side)
        else:
            pieces.append(piece)
    cells = cells_of(pieces, Claims(enabled))
    expected = defaultdict(list)
    for row in some:
        for one in enabled:
            if claims_by_the_text(one, row[2]):
                expected[row[1], one.id].append(row)
    assert cells.keys() == expected.keys()
    assert list(cells) == sorted(cells)
    for key, cell in cells.items():
        check(cell, expected[key])
    newest = newest_of_days(cells)
    for day in {day for day, _ in cells}:
        stamped = [row[3] for key, its in expected.items() if key[0] == day for row in its if row[3] is not None]
        assert newest.get(day) == max(stamped, default=None)


def check(cell: Cell, its: list) -> None:
    """One cell against the rows that make it."""
    assert cell.last_ingested_at == max((row[3] for row in its if row[3] is not None), default=None)
    assert set(cell.sides) == {row[0] for row in its}
    for signal, side in cell.sides.items():
        own = [row for row in its if row[0] is signal]
        stamped = [row[3] for row in own if row[3] is not None]
        assert (side.rows, side.unstamped) == (len(own), len(own) - len(stamped))
        assert side.newest == max(stamped, default=None)
        assert side.stamps == sum((stamp - EPOCH) // timedelta(microseconds=1) for stamp in stamped)
        sums = defaultdict(Fraction)
        for row in own:
            sums[row[5]] += Fraction(row[4])
        assert [(currency, Fraction(amount)) for currency, amount in side.amounts] == sorted(sums.items())
    told = cell.sides.get(Signal.DAILY) or cell.sides[Signal.FACTS]
    assert cell.amounts == told.amounts


@given(st.lists(rows, min_size=1, max_size=8), st.data())
def test_a_days_state_is_another_as_soon_as_a_row_or_a_stamp_is(some, data):
    """And the same for the same rows in any order, whatever they cost."""
    enabled = [Subscription("t", "i", "t", "Name", "azure", is_resource_group=False)]

    def state(these: list) -> dict[date, str]:
        pieces = [Piece(signal, day, TenantScope("t"), side_of(*content)) for signal, day, _, *content in these]
        return states_of_days(cells_of(pieces, Claims(enabled)).values())

    shuffled = data.draw(st.permutations(some))
    dearer = [(*row[:4], row[4] + 1, row[5]) for row in shuffled]
    assert state(dearer) == state(some)
    number = data.draw(st.integers(0, len(some) - 1))
    signal, day, owner, stamp, *cost = some[number]
    moved = None if stamp is not None and data.draw(st.booleans()) else (stamp or NOON) + timedelta(microseconds=1)
    for others in (
        [*some[:number], *some[number + 1 :]],
        [*some[:number], (signal, day, owner, moved, *cost), *some[number + 1 :]],
    ):
        assert state(others).get(day) != state(some)[day]
        assert {d: text for d, text in state(others).items() if d != day} == {
            d: text for d, text in state(some).items() if d != day
        }


@given(st.datetimes(timezones=st.just(UTC)))
def test_an_instant_comes_back_out_of_its_microseconds(instant):
    assert instant_of(microseconds_of(instant)) == instant
    assert microseconds_of(instant) == round(Fraction((instant - EPOCH) // timedelta(microseconds=1)))
