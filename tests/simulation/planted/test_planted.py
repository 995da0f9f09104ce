"""Each planted bug is seen by the judge, and the same worlds show nothing without it.

Belongs here: one world for each bug, known to show it. Does not: the search from seed 1 on (`__main__`).
"""

import pytest

from tests.simulation.planted.bugs import BUGS
from tests.simulation.planted.hunt import ALL, hunt, judged
from tests.simulation.planted.more_bugs import MORE
from tests.simulation.planted.stranger_bugs import NEEDS, STRANGERS

FOUND = {
    "write_back_before_the_call": (1, "a"),
    "unconditional_clean_up": (1, "b"),
    "billable_at_24_hours": (3, "f"),
    "one_page_read": (1, "a"),
    "fault_of_the_service_taken_for_a_refusal": (1, "c"),
    "expiry_without_a_condition": (13, "b"),
    "counted_rows_forgotten": (1, "c"),
    "hold_ended_too_early": (1, "d"),
    "repeated_event_moves_the_expiry": (5, "e"),
    "probe_error_taken_for_nothing_to_do": (28, "d"),
}
"""A seed that shows it, and the invariants one of which the judge names (docs/guarantees.md, "Planted bugs")."""
MORE_FOUND = {
    "called_open_for_too_long": (1, "d"),
    "called_closed_too_early": (1, "d"),
    "no_grace_at_a_months_end": (12, "d"),
    "no_last_call_of_what_is_held": (1, "d"),
    "unprocessed_records_forgotten": (6, "de"),
    "allocations_dropped": (1, "a"),
    "late_rows_taken_for_counted": (1, "c"),
    "no_receipt": (1, "a"),
    "unreadable_event_deleted": (1, "e"),
}
"""The same of those of more_bugs."""
STRANGERS_FOUND = {
    "healing_left_out_at_the_last_visit": (2, "d"),
    "healing_left_out_where_a_row_waits": (2, "d"),
    "healed_with_what_stands_there_now": (2, "a"),
    "others_rows_judged_by_our_contract": (2, "c"),
    "stated_lateness_forgotten": (2, "c"),
    "good_rows_left_rejected": (5, "d"),
    "restored_rows_not_counted_again": (7, "a"),
    "empty_allocations_rejected": (1, "c"),
    "unprocessed_keys_forgotten": (2, "cd"),
    "dry_run_sends": (10, "a"),
    "shadow_writes": (1, "b"),
    "former_agreements_end_stays": (10, "e"),
    "identity_not_claimed": (1, "a"),
    "region_not_looked_at": (4, "a"),
    "answers_matched_by_position": (3, "a"),
    "astray_not_scanned": (1, "b"),
    "expired_on_a_months_last_day": (8, "d"),
    "rejected_within_the_first_hour": (3, "c"),
}
"""The same of those of stranger_bugs."""
EVERY = FOUND | MORE_FOUND | STRANGERS_FOUND
NEARBY = 12
"""So many worlds from there on are tried: where a change of the simulation moves what a seed draws."""
pytestmark = pytest.mark.services


def test_there_are_ten_and_each_is_known_to_be_found():
    assert len(BUGS) == 10
    assert FOUND.keys() == BUGS.keys()
    assert MORE_FOUND.keys() == MORE.keys()
    assert STRANGERS_FOUND.keys() == STRANGERS.keys()
    assert NEEDS.keys() == STRANGERS.keys()


@pytest.mark.parametrize("name", ALL)
def test_the_judge_sees_it(name):
    seed, invariants = EVERY[name]
    find = hunt(name, range(seed, seed + NEARBY))
    assert find is not None, f"look for it again: .venv/bin/python -m tests.simulation.planted {name}"
    assert find.invariant in invariants, find.words


@pytest.mark.parametrize("seed", sorted({seed for seed, _ in EVERY.values()}))
def test_nothing_is_seen_there_without_a_bug(seed):
    assert judged(None, seed) is None
