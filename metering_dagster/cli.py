"""The `metering-dagster` command.

Belongs here: arguments, what is printed, exit codes: 0 good, 1 what was checked is not good, 2 it could not be done.
Does not: doing it.
"""

import json
import os
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from metering_dagster.errors import MeteringError

if TYPE_CHECKING:
    from metering_dagster.local.balance import HourBalance
    from metering_dagster.local.demo import Rehearsal

QUANTITIES = ("used", "billed", "held", "rejected", "late")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Meter SaaS usage to AWS Marketplace, hour by hour."""


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print the balance as JSON on standard output.")
def demo(as_json: bool) -> None:
    """Meter a sample day on an embedded stack, and check that nothing is billed twice or lost.

    Needs no AWS account. METERING_NOW pins the clock to an instant of the past.
    """
    from metering_dagster.local import demo as rehearsal
    from metering_dagster.local.home import project_root
    from metering_dagster.settings import past_instant

    try:
        pinned = os.environ.get("METERING_NOW")
        now = past_instant(pinned) if pinned else rehearsal.rehearsal_instant(datetime.now(UTC))
        done = rehearsal.rehearse(project_root(), now, _progress)
    except (MeteringError, ValueError) as error:
        click.echo(f"metering-dagster demo: {error}", err=True)
        sys.exit(2)
    click.echo(json.dumps(_as_json(done), indent=2) if as_json else _as_text(done))
    sys.exit(0 if done.is_good else 1)


def _progress(what: str, done: int, total: int) -> None:
    """On a terminal one line that moves, elsewhere one line a step; always on standard error."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K[{done}/{total}] {what}", err=True, nl=done == total and total > 1)
    else:
        click.echo(f"[{done}/{total}] {what}", err=True)


def _as_json(done: "Rehearsal") -> dict[str, object]:
    balance = done.balance
    return {
        "now": done.now.isoformat(),
        "good": done.is_good,
        "runs": done.runs,
        "failures": list(done.failures),
        "wrong_groups": balance.wrong_groups,
        "total": _hour_json(balance.total),
        "hours": {bucket: _hour_json(hour) for bucket, hour in balance.hours.items()},
    }


def _hour_json(hour: "HourBalance") -> dict[str, object]:
    """Quantities as text: they are exact, and a JSON number is not."""
    return {name: str(v) if name in QUANTITIES else v for name, v in asdict(hour).items()} | {"even": hour.is_even}


def _as_text(done: "Rehearsal") -> str:
    balance = done.balance
    head = ("hour", "rows", "used", "billed", "held", "waiting", "rejected", "late", "")
    lines = [_line(head)]
    lines += [_hour_line(bucket, hour) for bucket, hour in balance.hours.items()]
    lines += ["", _hour_line("all", balance.total), ""]
    lines += [f"WRONG {group}" for group in balance.wrong_groups] + [f"FAILED {run}" for run in done.failures]
    lines.append(
        "held: by a bad row, until it is mended or the hour's last call · waiting: rows of groups that sum to 0"
    )
    if done.is_good:
        lines.append("used = billed + held + waiting + rejected + late in every hour, to the last unit;")
        lines.append("billed = the marketplace's bill, group by group.")
    else:
        lines.append("NOT EVEN: what was used is not all accounted for, or a run failed. See the lines above.")
    return "\n".join(lines)


def _hour_line(bucket: str, hour: "HourBalance") -> str:
    cells = (bucket, str(hour.rows), *(f"{getattr(hour, name):f}" for name in ("used", "billed", "held")))
    mark = "even" if hour.is_even else "UNEVEN"
    return _line((*cells, str(hour.waiting), f"{hour.rejected:f}", f"{hour.late:f}", mark))


def _line(cells: tuple[str, ...]) -> str:
    widths = (13, 5, 15, 15, 13, 7, 13, 11, 6)
    return "  ".join(
        cell.ljust(width) if index == 0 else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )


if __name__ == "__main__":
    main()
