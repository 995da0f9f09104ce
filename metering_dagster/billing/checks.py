"""The checks of a day of `billing_changes`, answered in the step that reads it.

Belongs here: what each check asks, and the words of the answer. Does not: reading (changes).

All of them warn: what they find is reported all the same, or is nobody's that asks for it.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import dagster as dg

from metering_dagster.billing.cells import Claims, Group, Tenant, key_of
from metering_dagster.masking import mask_text

if TYPE_CHECKING:
    from metering_dagster.billing.changes import OddStamps

CHECKS: Mapping[str, str] = {
    "groups_are_claimed": "Every resource group in the day's facts is named by a subscription.",
    "stamps_are_sound": "Every row of the day has a stamp, and none is ahead of the database's clock.",
    "no_gap": "The sensor was never away for longer than it looks back, nor did the day leave the horizon meanwhile.",
}
_EXAMPLES = 5


def specs(asset: dg.AssetKey, partitions: dg.PartitionsDefinition[str]) -> list[dg.AssetCheckSpec]:
    """The checks, one result for each day."""
    return [
        dg.AssetCheckSpec(name, asset=asset, description=description, partitions_def=partitions)
        for name, description in CHECKS.items()
    ]


def groups_are_claimed(groups: Sequence[Group], claims: Claims) -> dg.AssetCheckResult:
    """`groups`: those that the day's facts hold. Spellings of one group count once."""
    unclaimed: dict[tuple[str, str], Group] = {}
    for group in groups:
        if not claims.of(group):
            unclaimed.setdefault((key_of(group.integration_id), key_of(group.resource_group)), group)
    examples = [_owner_text(group) for group in unclaimed.values()][:_EXAMPLES]
    return _result(
        "groups_are_claimed",
        not unclaimed,
        f"No subscription names these resource groups: {len(unclaimed)}, such as {'; '.join(examples)}. Their costs "
        "are reported with their tenants alone. Add a subscription for each that somebody asks for.",
        {"unclaimed_groups": len(unclaimed), "examples": "; ".join(examples)},
    )


def stamps_are_sound(odd: "OddStamps") -> dg.AssetCheckResult:
    """A row without a stamp is found by the reconcile alone; one ahead of the clock is reported more than once."""
    examples = [
        f"{one.signal} of {_owner_text(one.owner)}: {one.rows} rows "
        + ("without a stamp" if one.newest is None else f"up to {one.newest:%Y-%m-%dT%H:%M:%S.%fZ}")
        for one in odd.examples[:_EXAMPLES]
    ]
    return _result(
        "stamps_are_sound",
        not odd.unstamped and not odd.future,
        f"Rows without a stamp: {odd.unstamped}. Rows stamped ahead of the database's clock: {odd.future}. "
        f"{'; '.join(examples)}. Mend the job that writes them, or the clock of its machine.",
        {"unstamped_rows": odd.unstamped, "future_rows": odd.future, "examples": "; ".join(examples)},
    )


def no_gap(gap: str) -> dg.AssetCheckResult:
    """`gap`: the sensor's words about how long it was away, empty if it was not."""
    return _result("no_gap", not gap, gap, {"gap": gap} if gap else {})


def _owner_text(owner: Tenant | Group) -> str:
    if isinstance(owner, Tenant):
        return f"tenant {mask_text(owner.scope_id)}"
    return mask_text(f"{owner.resource_group} ({owner.integration_id})")


def _result(name: str, passed: bool, words: str, metadata: Mapping[str, int | str]) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        check_name=name,
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN,
        description=None if passed else words,
        metadata=dict(metadata),
    )
