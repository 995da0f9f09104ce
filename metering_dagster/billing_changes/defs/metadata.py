"""The metadata of a day of `billing_changes`: operators read it in the UI, the sensor reads it back.

Belongs here: a report as Dagster's metadata. Does not: deciding anything. Account ids stay masked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

import dagster as dg

from metering_dagster.billing_changes.rules.cells import Signal
from metering_dagster.billing_changes.rules.day_diff import CellChange, DayReport, money_differences
from metering_dagster.core.masking import markdown_list, mask_text, printable

READ_AT = "read_at"
"""When the day was read, by the database's clock; ISO 8601 to the microsecond."""
STATE = "state"
"""A digest of the rows and stamps of the day's cells; empty if there are none."""
FIRST = "first"
"""The `since` of a day's first report: everything in it is new."""
_SHOWN_ROWS = 20
"""The number of rows shown, touched ones if there are any: the event log keeps them twice, for good."""
_MONEY = dg.TableSchema([
    dg.TableColumn("of", "string", description="Do not add up tenants and resource groups: a tenant's money includes "
                   "that of its groups. Each counts once, however many subscriptions claim it."),
    dg.TableColumn("currency", "string"),
    dg.TableColumn("moved", "string", description="The sum of the differences, now less before, of changed cells."),
    dg.TableColumn("moved_up_or_down", "string", description="The sum of the same differences without signs."),
])  # fmt: skip


@dataclass(frozen=True)
class Horizon:
    """Range of days within which ingests are detected."""

    days: int
    first_day: date


def of_report(report: DayReport, horizon: Horizon, why: str) -> dict[str, dg.MetadataValue]:
    """Build a day's metadata: changes first, then counts that plot over the days, then what the report rests on."""
    touched = report.touched
    signals = [signal for signal in Signal if any(signal in row.signals for row in touched)]
    money = _differences_of_money(report.rows)
    shown: dict[str, dg.MetadataValue] = {"changed_cells": dg.MetadataValue.int(len(touched))}
    if money:
        shown["money_moved"] = dg.MetadataValue.table(money, schema=_MONEY)
    if report.rows:
        shown["table"] = dg.MetadataValue.table([_record(row) for row in (touched or report.rows)[:_SHOWN_ROWS]])
    else:
        shown["nothing"] = dg.MetadataValue.text(f"No subscription has a row on {report.day}, in either table.")
    return shown | {
        "rows": dg.MetadataValue.int(len(report.rows)),
        "new_cells": dg.MetadataValue.int(sum(row.amounts_before is None for row in touched)),
        "amounts_changed": dg.MetadataValue.int(sum(row.changed for row in report.rows)),
        "vanished": dg.MetadataValue.int(sum(row.vanished for row in touched)),
        "signals": dg.MetadataValue.text(", ".join(signals)),
        "why": dg.MetadataValue.text(mask_text(why)),
        "since": dg.MetadataValue.text(_instant(report.since) if report.since else FIRST),
        "horizon": dg.MetadataValue.int(horizon.days),
        "detects": _sentences(_detects(report)),
        "does_not_detect": _sentences(_does_not_detect(report, horizon)),
        READ_AT: dg.MetadataValue.text(_instant(report.read_at)),
        STATE: dg.MetadataValue.text(report.state),
    }


def _differences_of_money(rows: Sequence[CellChange]) -> list[dg.TableRecord]:
    """Return the differences of tenants and of resource groups apart: a fact may belong to one of each."""
    kinds = {
        "tenants": [row for row in rows if not row.cell.subscription.is_resource_group],
        "resource groups": [row for row in rows if row.cell.subscription.is_resource_group],
    }
    return [
        dg.TableRecord(
            {"of": of, "currency": printable(currency), "moved": _amount(total), "moved_up_or_down": _amount(gross)}
        )
        for of, alike in kinds.items()
        for currency, (total, gross) in money_differences(alike).items()
    ]


def _detects(report: DayReport) -> list[str]:
    if report.since is None:
        return [f"every cell that either table held of {report.day}: this is its first report"]
    since = _instant(report.since)
    return [
        f"cells of {report.day} whose rows or stamps differ from those read at {since}, with the same amount or "
        "another",
        f"cells that were in a table at {since}, and are now in neither",
    ]


def _does_not_detect(report: DayReport, horizon: Horizon) -> list[str]:
    limits = [
        f"days before {horizon.first_day}, which are older than the horizon of {horizon.days} days: the sensor does "
        "not poll them, but an operator can materialize any day",
        f"ingests not committed at {_instant(report.read_at)}: the sensor requests another run of the day for them",
        "rows that were written again with the same stamp",
    ]
    if report.day < horizon.first_day:
        limits.insert(0, f"later changes of {report.day}: it is older than the horizon")
    return limits


def _record(row: CellChange) -> dg.TableRecord:
    one = row.cell.subscription
    return dg.TableRecord({
        "subscription": mask_text(one.name or one.id), "external_id": mask_text(one.external_id),
        "provider": mask_text(one.provider),
        "last_ingested_at": _instant(row.last_ingested_at) if row.last_ingested_at else "no stamp",
        "signals": ", ".join(row.signals), "amount": _amount(row.amount), "amount_before": _amount(row.amount_before),
        "currency": printable(row.currency or ""), "touched": row.touched, "changed": row.changed,
        "vanished": row.vanished,
    })  # fmt: skip


def _amount(amount: Decimal | None) -> str:
    """Return the amount with at least two decimals, without further zeros."""
    if amount is None:
        return ""
    whole, _, decimals = f"{amount:f}".partition(".")
    return f"{whole}.{decimals.rstrip('0'):0<2}"


def _instant(instant: datetime) -> str:
    return f"{instant:%Y-%m-%dT%H:%M:%S.%fZ}"


def _sentences(sentences: Sequence[str]) -> dg.MetadataValue:
    return dg.MetadataValue.md(markdown_list(sentences))
