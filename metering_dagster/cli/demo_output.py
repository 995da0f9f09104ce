"""What a rehearsal says of itself: for people, and as JSON.

Belongs here: words and columns. Does not: printing them (main), the sums (balance), what was due (billing_demo).
"""

from collections.abc import Mapping
from dataclasses import asdict
from decimal import Decimal

from metering_dagster.core.masking import mask
from metering_dagster.devstack.balance import HourBalance
from metering_dagster.devstack.billing_demo import BillingRehearsal
from metering_dagster.devstack.demo import Rehearsal

QUANTITIES = ("used", "billed", "held", "rejected", "late", "expired")


def demo_json(done: Rehearsal) -> dict[str, object]:
    """Everything, for programs."""
    balance = done.balance
    return {
        "now": done.now.isoformat(),
        "good": done.is_good,
        "runs": done.runs,
        "failures": list(done.failures),
        "wrong_groups": balance.wrong_groups,
        "departure": {"status": done.departure.get("subscriptionStatus"), "finalized": done.is_finalized},
        "total": _hour_json(balance.total),
        "hours": {bucket: _hour_json(hour) for bucket, hour in balance.hours.items()},
        "billing": billing_json(done.billing),
    }


def _hour_json(hour: HourBalance) -> dict[str, object]:
    """Quantities as text: they are exact, and a JSON number is not."""
    return {name: str(v) if name in QUANTITIES else v for name, v in asdict(hour).items()} | {"even": hour.is_even}


def demo_text(done: Rehearsal) -> str:
    """Everything, for people."""
    balance = done.balance
    head = ("hour", "rows", "used", "billed", "held", "waiting", "rejected", "late", "expired", "")
    lines = [_line(head)]
    lines += [_hour_line(bucket, hour) for bucket, hour in balance.hours.items()]
    lines += ["", _hour_line("all", balance.total), ""]
    lines += [f"WRONG {group}" for group in balance.wrong_groups] + [f"FAILED {run}" for run in done.failures]
    lines.append(
        "held: by a bad row, until it is mended or the hour's last call · waiting: rows of groups that sum to 0 · "
        "expired: nobody metered it in time"
    )
    status = done.departure.get("subscriptionStatus", "gone")
    lines.append(
        f"License {mask(done.departure.get('licenseArn'))}: deprovisioned by an event, its usage flushed to the last "
        f"minute, now {status}{'' if done.is_finalized else ', NOT FINALIZED'}."
    )
    if done.is_metered:
        lines.append("used = billed + held + waiting + rejected + late + expired in every hour, to the last unit;")
        lines.append("billed = the marketplace's bill, group by group.")
    else:
        lines.append("NOT EVEN: what was used is not all accounted for, or a run failed. See the lines above.")
    return "\n".join([*lines, "", billing_text(done.billing)])


def _hour_line(bucket: str, hour: HourBalance) -> str:
    cells = (bucket, str(hour.rows), *(f"{getattr(hour, name):f}" for name in ("used", "billed", "held")))
    mark = "even" if hour.is_even else "UNEVEN"
    return _line((*cells, str(hour.waiting), f"{hour.rejected:f}", f"{hour.late:f}", f"{hour.expired:f}", mark))


def _line(cells: tuple[str, ...]) -> str:
    widths = (13, 5, 15, 15, 13, 7, 13, 11, 12, 6)
    return "  ".join(
        cell.ljust(width) if index == 0 else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )


def billing_json(done: BillingRehearsal) -> dict[str, object]:
    """Amounts as text: they are exact."""
    return {
        "good": done.is_good,
        "runs": done.runs,
        "failures": list(done.failures),
        "wrong": list(done.wrong),
        "days": done.days,
        "cells": done.cells,
        "moved": [
            {
                "date": cell.day.isoformat(), "subscription_id": cell.subscription_id, "name": cell.name,
                "move": cell.move.value, "before": _amounts_json(cell.before), "now": _amounts_json(cell.now),
            }
            for cell in done.moved
        ],
    }  # fmt: skip


def _amounts_json(amounts: Mapping[str, Decimal]) -> dict[str, str]:
    return {currency: f"{amount:f}" for currency, amount in amounts.items()}


def billing_text(done: BillingRehearsal) -> str:
    """Return a line for each cell that moved, and how much did not."""
    lines = [
        f"Billing data: {done.days} days, {done.cells} cells of a subscription and a day. Some were ingested again:",
        _billing_line("day", "subscription", "", "before", "now"),
    ]
    lines += [
        _billing_line(str(cell.day), cell.name, cell.move, _amounts(cell.before), _amounts(cell.now))
        for cell in done.moved
    ]
    lines += [f"WRONG {each}" for each in done.wrong] + [f"FAILED {run}" for run in done.failures]
    lines.append(f"{len(done.moved)} of {done.cells} cells moved: {done.spared:.1%} need not be pulled again.")
    if not done.is_good:
        lines.append(
            "NOT RIGHT: not exactly what was ingested again is reported, or a run failed. See the lines above."
        )
    return "\n".join(lines)


def _amounts(amounts: Mapping[str, Decimal]) -> str:
    return " + ".join(f"{amount:,.2f} {currency}" for currency, amount in amounts.items()) or "nothing"


def _billing_line(*cells: str) -> str:
    day, name, move, before, now = cells
    return f"{day:<10}  {name:<46}  {move:<8}  {before:>16}  {now:>16}".rstrip()
