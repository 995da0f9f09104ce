"""The checks of a day of `billing_changes`, evaluated in the step that reads the day.

Belongs here: the condition of each check, and its message. Does not: reading (stores/queries).

A failed check warns only: its rows are reported all the same, or belong to no subscription.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import dagster as dg

from metering_dagster.billing_changes.rules.cells import EARLIEST_STAMP, Claims, Group, TenantScope, owner_key
from metering_dagster.billing_changes.rules.feed_response import instant_text
from metering_dagster.core.dagster_previews import used_knowingly
from metering_dagster.core.masking import mask_text

if TYPE_CHECKING:
    from metering_dagster.billing_changes.stores.queries import InvalidStamps

CHECKS: Mapping[str, str] = {
    "groups_are_claimed": "Every tenant and resource group with rows on the day has a subscription.",
    "stamps_are_sound": "Every row of the day has a stamp: none before the year 2000, none ahead of the database's "
    "clock.",
    "no_gap": "The sensor polled without a gap longer than BILLING_OVERLAP_MINUTES. In a gap, days may leave the "
    "horizon unread.",
}
_EXAMPLES = 5


def specs(asset: dg.AssetKey, partitions: dg.PartitionsDefinition[str]) -> list[dg.AssetCheckSpec]:
    """Return the specs of the checks, with one result for each day."""
    with used_knowingly():  # checks by partition
        return [
            dg.AssetCheckSpec(name, asset=asset, description=description, partitions_def=partitions)
            for name, description in CHECKS.items()
        ]


def groups_are_claimed(tenants: Sequence[TenantScope], groups: Sequence[Group], claims: Claims) -> dg.AssetCheckResult:
    """Check that subscriptions claim all `tenants` and `groups` of the day. Spellings of one owner count once."""
    no_tenants, no_groups = _unclaimed(tenants, claims), _unclaimed(groups, claims)
    messages = []
    if no_tenants:
        messages.append(
            f"No subscription names these tenants: {_counted(no_tenants)}. Their costs are reported with their "
            "resource groups alone, where these are named. A tenant's subscription has its scope_id as id."
        )
    if no_groups:
        messages.append(
            f"No subscription names these resource groups: {_counted(no_groups)}. Their costs are reported with their "
            "tenants alone."
        )
    return _result(
        "groups_are_claimed",
        not messages,
        " ".join([*messages, "Add a subscription for each that a consumer needs."]),
        {
            "unclaimed_tenants": len(no_tenants),
            "unclaimed_groups": len(no_groups),
            "examples": "; ".join(_owner_text(one) for one in (*no_tenants[:_EXAMPLES], *no_groups[:_EXAMPLES])),
        },
    )


def stamps_are_sound(found: "InvalidStamps") -> dg.AssetCheckResult:
    """Check that every row of the day has a stamp between the year 2000 and the database's clock.

    Only the reconcile finds a row without a stamp; a row ahead of the clock is reported more than once. A writer that
    stamps in local time is ahead east of Greenwich. West of it the writer is behind, which no check can notice.
    """
    examples = [
        f"{one.signal} of {_owner_text(one.owner)}: {one.rows} rows "
        + ("without a stamp" if one.newest is None else f"up to {instant_text(one.newest)}")
        for one in found.examples[:_EXAMPLES]
    ]
    return _result(
        "stamps_are_sound",
        not found.unstamped and not found.early and not found.future,
        f"Rows without a stamp: {found.unstamped}. Rows stamped before the year {EARLIEST_STAMP:%Y}: {found.early}. "
        f"Rows stamped ahead of the database's clock: {found.future}. {'; '.join(examples)}. Stamps must be the time "
        "of the ingest in UTC: fix the job that writes them, or the clock of its machine.",
        {
            "unstamped_rows": found.unstamped,
            "early_rows": found.early,
            "future_rows": found.future,
            "examples": "; ".join(examples),
        },
    )


def no_gap(gap: str) -> dg.AssetCheckResult:
    """Check that there was no time without polls. `gap`: the message about it; empty if there was none."""
    gap = mask_text(gap)
    return _result("no_gap", not gap, gap, {"gap": gap} if gap else {})


def _unclaimed(owners: Sequence[TenantScope | Group], claims: Claims) -> Sequence[TenantScope | Group]:
    found: dict[tuple[str, ...], TenantScope | Group] = {}
    for owner in owners:
        if not claims.of(owner):
            found.setdefault(owner_key(owner), owner)
    return list(found.values())


def _counted(owners: Sequence[TenantScope | Group]) -> str:
    return f"{len(owners)}, such as {'; '.join(_owner_text(owner) for owner in owners[:_EXAMPLES])}"


def _owner_text(owner: TenantScope | Group) -> str:
    if isinstance(owner, TenantScope):
        return f"tenant {mask_text(owner.scope_id)}"
    return mask_text(f"{owner.resource_group} ({owner.integration_id})")


def _result(name: str, passed: bool, message: str, metadata: Mapping[str, int | str]) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        check_name=name,
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN,
        description=None if passed else message,
        metadata=dict(metadata),
    )
