"""Every case of the collection that concerns an hour has its test, and no test names a case that is not there.

Those that concern billing changes are shown to have theirs beside them.
"""

import re
from pathlib import Path

CASES = {
    "non_success_is_never_success", "good_beside_bad_dimension", "two_bad_in_one_batch", "throttled_is_pending",
    "internal_error_is_transient", "unprocessed_are_sent_again", "answer_lost_after_billing", "no_permission",
    "crash_between_commit_and_cleanup", "late_row_after_commit", "seller_overwrites_a_counted_second",
    "overwrite_between_read_and_finalise", "one_bad_row_holds_the_hour", "one_bad_row_never_mended", "zero_waits",
    "fractions_are_exact", "number_forms", "sum_too_large", "hash_in_dimension", "misfiled_row",
    "key_and_attributes_disagree", "previous_month", "many_pages", "same_hour_twice_at_once", "allocations",
    "request_over_1_mb", "aggregate_over_400_kb", "two_products", "host_time_zone", "seller_repeats_a_put",
    "aggregate_made_by_others", "wrong_product_code", "shadow_beside_live",
    "stale_behind_a_gap", "expiry_meets_success",
    "late_license_updated", "agreement_ended_alone", "bad_event_body", "detail_type_suffix",
    "deprovision_in_time", "finaliser_race",
}  # fmt: skip
BILLING = {
    "same_amount_again", "both_tables", "frozen_column", "resource_group_case", "two_subscriptions_one_resource_group",
    "no_subscriptions", "late_commit", "same_second", "stamp_precision", "future_stamp", "null_stamp", "client_zone",
    "reingested_twice", "horizon", "old_day_by_hand", "many_resource_groups", "server_gone", "deleted_cell",
    "formula_in_csv", "sentinel_stamps", "cursor_reads_what_it_wrote", "column_precision", "strict_server",
    "wide_poll_times_out", "local_time_writer", "lagging_replica",
}  # fmt: skip
MARK = re.compile(r'^@pytest\.mark\.case\("([a-z0-9_]+)"\)$', re.MULTILINE)


def test_each_case_has_its_test():
    marked = {name for file in Path(__file__).parents[1].rglob("test_*.py") for name in MARK.findall(file.read_text())}
    assert marked - BILLING == CASES
