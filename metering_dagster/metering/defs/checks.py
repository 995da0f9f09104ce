"""The checks of an hour, by partition, answered inside the steps that know (design: names that are fixed).

Belongs here: what each check asks, how severe a no is, and the words of the answer. Does not: finding out.

A check speaks of the hour, not of one run: what earlier runs of it left behind counts, as the ledger remembers it.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import dagster as dg

from metering_dagster.core.dagster_previews import used_knowingly
from metering_dagster.ledger.rules.entries import HourSummary
from metering_dagster.metering.rules.quantities import number_text

if TYPE_CHECKING:
    from metering_dagster.metering.services.aggregation_report import Aggregation
    from metering_dagster.metering.services.submission_report import Submission

AGGREGATED: Mapping[str, str] = {
    "quantity_conserved": "The rows that this run saw add up to what it committed, held, rejected or found late.",
    "no_rejected_rows": "No raw row of the hour is rejected. A rejected row holds its group until you mend it.",
    "no_late_usage": "No row arrived after its group was committed. Such usage cannot be billed in its hour.",
}
METERED: Mapping[str, str] = {
    "all_submitted": "Every pending record was sent and answered, and the service refused none.",
    "no_conflicting_duplicates": "No record was billed before with another quantity: the first one stands for good.",
    "all_subscribed": "Every buyer with usage was subscribed.",
    "hour_closed": "No raw row and no aggregate of the hour is pending.",
}
_WARN, _ERROR = dg.AssetCheckSeverity.WARN, dg.AssetCheckSeverity.ERROR


def specs(asset: str, checks: Mapping[str, str], partitions: dg.PartitionsDefinition[str]) -> list[dg.AssetCheckSpec]:
    """Return the checks of one asset, one result for each partition."""
    with used_knowingly():  # checks by partition
        return [
            dg.AssetCheckSpec(name, asset=asset, description=description, partitions_def=partitions)
            for name, description in checks.items()
        ]


def outs(checks: Mapping[str, str]) -> dict[str, dg.Out]:
    """Return an op's outputs for its checks; a run that is refused, or is none of an asset, answers none of them."""
    return {name: dg.Out(dg.Nothing, is_required=False, description=text) for name, text in checks.items()}


def of_aggregation(done: "Aggregation", standing: HourSummary, rejected_before: int) -> list[dg.AssetCheckResult]:
    """Return `rejected_before`: rows that earlier runs rejected and that still are."""
    late_rows = max(standing.late_rows, done.late_rows)
    rejected = max(rejected_before, done.rejected.total(), done.holding_rows)
    failed = done.failures.total
    return [
        _result(
            "quantity_conserved",
            done.seen == done.accounted and not done.unsettled and not failed,
            _ERROR,
            f"{number_text(done.seen)} seen, {number_text(done.accounted)} accounted for"
            + (f", {len(done.unsettled)} groups not settled" if done.unsettled else "")
            + (f", {failed} groups left as they are, for something was raised" if failed else ""),
            {"seen": float(done.seen), "accounted": float(done.accounted), "unsettled_groups": len(done.unsettled)},
        ),
        _result(
            "no_rejected_rows",
            not rejected and not done.held_groups,
            _WARN,
            f"Rejected rows: {rejected}. Groups that they hold: {done.held_groups}, of "
            f"{number_text(done.held_quantity)}. Write the rows again, mended, or delete them.",
            {"rejected_rows": rejected, "held_groups": done.held_groups, "held_quantity": float(done.held_quantity)},
        ),
        _result(
            "no_late_usage",
            not late_rows,
            _WARN,
            f"Late rows: {late_rows}, of {number_text(max(standing.late, done.late))}. "
            f"Billed too much: {number_text(max(standing.over_billed, done.over_billed))}.",
            {"late_rows": late_rows, "late_quantity": float(max(standing.late, done.late))},
        ),
    ]


def lost_elsewhere(bucket: str, rows: int, found_in: str) -> dg.AssetCheckEvaluation:
    """Return the answer for an hour whose rows were found under another hour's name, too late to be billed."""
    words = f"{rows} rows of {bucket} were filed under {found_in} and found too late: no bill holds them."
    return _late(bucket, words, {"late_rows": rows, "found_in": found_in})


def late_in_flush(bucket: str, done: "Aggregation") -> dg.AssetCheckEvaluation:
    """Return the answer for an hour of which a flush found usage that came after an earlier flush had fixed
    its group.
    """
    words = (
        f"Late rows of deprovisioning licenses: {done.late_rows}, of {number_text(done.late)}: they came after an "
        "earlier flush had billed their groups."
    )
    return _late(bucket, words, {"late_rows": done.late_rows, "late_quantity": float(done.late)})


def _late(bucket: str, words: str, metadata: Mapping[str, int | float | str]) -> dg.AssetCheckEvaluation:
    """Return `no_late_usage` of this hour fails, whoever found that out."""
    return dg.AssetCheckEvaluation(
        asset_key=dg.AssetKey("aggregated_usage"),
        check_name="no_late_usage",
        passed=False,
        severity=_WARN,
        partition=bucket,
        description=words,
        metadata=metadata,
    )


def of_submission(
    closes_at: datetime, done: "Submission", standing: HourSummary, pending: tuple[int, int]
) -> list[dg.AssetCheckResult]:
    """Return `closes_at`: the end of the hour's window; `pending`: raw rows and aggregates that are pending after the
    run.
    """
    left = done.left.total()
    rejected = max(standing.rejected_records, done.rejected.total())
    codes = ", ".join(sorted(done.rejected)) or "see the ledger"
    duplicates = max(standing.duplicates, done.by_status.get("DuplicateRecord", 0))
    strangers = max(standing.not_subscribed, done.by_status.get("CustomerNotSubscribed", 0))
    rows, aggregates = pending
    closes = f"{closes_at:%Y-%m-%dT%H:%MZ}"
    return [
        _result(
            "all_submitted",
            not left and not rejected,
            _ERROR,
            (f"Records rejected: {rejected} ({codes}). " if rejected else "")
            + f"Records left: {left}. {'; '.join(f'{count} because {why}' for why, count in done.left.items())}",
            {"left": left, "rejected": rejected},
        ),
        _result(
            "no_conflicting_duplicates",
            not duplicates,
            _ERROR,
            f"Records billed before with another quantity, which stands: {duplicates}.",
            {"duplicates": duplicates},
        ),
        _result(
            "all_subscribed",
            not strangers,
            _WARN,
            f"Records of buyers who were not subscribed, and not billed: {strangers}.",
            {"not_subscribed": strangers},
        ),
        _result(
            "hour_closed",
            not rows and not aggregates,
            _WARN,
            f"Still pending: raw rows {rows}, aggregates {aggregates}. They can be billed until {closes}.",
            {"pending_rows": rows, "pending_aggregates": aggregates, "next_cutoff": closes},
        ),
    ]


def _result(
    name: str, passed: bool, severity: dg.AssetCheckSeverity, words: str, metadata: Mapping[str, int | float | str]
) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        check_name=name,
        passed=passed,
        severity=severity,
        description=None if passed else words,
        metadata=dict(metadata),
    )
