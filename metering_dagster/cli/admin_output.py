"""What init and status say, as text for people and as JSON for programs.

Belongs here: wording and layout. Does not: finding out, exit codes.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from metering_dagster.admin.rules.outlook import HourOutlook, Outlook, State
from metering_dagster.admin.services.init import TableReport, price
from metering_dagster.admin.services.status import JUDGED_ROWS, Surroundings
from metering_dagster.core import hours
from metering_dagster.core.masking import mask_lines

_UNSEEN = (
    "hours further back (--days), hours of the future and rows whose meteringPending names no hour (the age-out's "
    "whole sweeps look for both), what is not pending any more"
)
_COLUMNS = (13, 8, 8, 8, 10)


def init_text(reports: Sequence[TableReport]) -> str:
    """Return what came of each table, and what a person is to do."""
    lines = []
    for report in reports:
        target = report.target
        where = f"{target.client.meta.region_name} at {address(target.client.meta.endpoint_url)}"
        lines.append(f"{target.shape.setting} {target.name} ({where}): {_state(report)}")
        lines += [f"  added its index {name}, {price(report.throughput)}" for name in report.indexes]
        for difference in report.differs:
            lines += [f"  DIFFERS {difference.what}", f"    do: {difference.todo}"]
    if any(report.differs for report in reports):
        lines.append("What differs was left as it is.")
    else:
        lines.append("All is as needed.")
    return mask_lines(lines)


def _state(report: TableReport) -> str:
    if report.created:
        return "created with its indexes; paid on demand, by what is read, written and stored"
    if report.differs:
        return "there, but not as needed"
    return "there" if report.indexes else "there, as needed"


def init_json(reports: Sequence[TableReport]) -> dict[str, object]:
    """Return the same for programs."""
    return {
        "good": not any(report.differs for report in reports),
        "tables": [
            {
                "setting": report.target.shape.setting,
                "table": report.target.name,
                "region": report.target.client.meta.region_name,
                "endpoint": address(report.target.client.meta.endpoint_url),
                "created": report.created,
                "indexes_added": report.indexes,
                "index_throughput": report.throughput,
                "differs": [{"what": each.what, "do": each.todo} for each in report.differs],
            }
            for report in reports
        ],
    }


def status_text(place: Surroundings, found: Outlook) -> str:
    """Return a head, a line for each hour with something pending, what it comes to, what was looked at."""
    clock = " (the clock is frozen)" if place.is_clock_frozen else ""
    lines = [
        f"{found.now:%Y-%m-%d %H:%M} UTC{clock}, mode {place.mode}",
        f"DynamoDB {place.region} at {address(place.dynamodb)}: {place.usage_table}, {place.aggregated_table}",
        f"metering at {address(place.metering)}",
        "",
    ]
    if found.standings:
        lines += [
            _line(("hour (UTC)", "rows", "of these", "of these", "aggregates")),
            _line(("", "", "held", "zero", "")),
        ]
        lines += [_line(_cells(standing)) + "  " + _meaning(standing) for standing in found.standings]
        lines += ["", *_totals(found)]
    else:
        lines.append("nothing is pending")
    lines += ["", f"looked at: {_looked_at(found)}", f"not looked at: {_UNSEEN}"]
    return mask_lines(lines)


def _cells(standing: HourOutlook) -> tuple[str, ...]:
    pending = standing.pending
    told = ("?" if count is None else str(count) for count in (pending.held, pending.zero))
    return (standing.bucket, str(pending.rows), *told, str(pending.aggregates))


def _line(cells: Sequence[str]) -> str:
    return "  ".join(
        cell.ljust(width) if index == 0 else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, _COLUMNS, strict=True))
    ).rstrip()


def _meaning(standing: HourOutlook) -> str:
    if standing.state is State.WAITING and standing.opens_at is not None and standing.closes_at is not None:
        return f"waits: billable again from {_short(standing.opens_at)} to {_short(standing.closes_at)}"
    if standing.opens_at is not None:
        return f"open until {_short(standing.opens_at)}"
    if standing.closes_at is not None:
        return f"billable until {_short(standing.closes_at)}{', last call' if standing.is_last_call else ''}"
    return "PAST its window: the age-out ends it" + ("" if standing.is_expirable else ", from 06:00 on")


def _totals(found: Outlook) -> list[str]:
    lines = [f"oldest pending hour: {found.oldest.bucket}"] if found.oldest else []
    cutoff = found.next_cutoff
    if cutoff is None:
        lines.append("next cutoff: none, for nothing pending can be billed")
    else:
        lines.append(f"next cutoff: {_short(cutoff)}, in {_span(cutoff - found.now)}")
    lines += [f"TOO LATE: {_names(found.past)} can no longer be billed"] if found.past else []
    lines += [f"HURRY: {_names(found.closing)} will be past within the hour"] if found.closing else []
    if found.unjudged:
        lines.append(f"?: not told apart in {_names(found.unjudged)}, for at most {JUDGED_ROWS} rows are read for it")
    return lines


def _names(standings: Sequence[HourOutlook]) -> str:
    names = [standing.bucket for standing in standings]
    return ", ".join(names) if len(names) <= 5 else f"{', '.join(names[:4])} and {len(names) - 4} more hours"


def _looked_at(found: Outlook) -> str:
    first, last = found.looked_at[0], found.looked_at[-1]
    return f"{len(found.looked_at)} hours, {hours.bucket(first)} to {hours.bucket(last)}, in both tables"


def status_json(place: Surroundings, found: Outlook) -> dict[str, object]:
    """Return the same for programs; instants are ISO-8601 in UTC."""
    cutoff = found.next_cutoff
    return {
        "good": found.is_good,
        "now": _iso(found.now),
        "clock_frozen": place.is_clock_frozen,
        "mode": place.mode,
        "region": place.region,
        "endpoints": {"dynamodb": address(place.dynamodb), "metering": address(place.metering)},
        "tables": {"usage": place.usage_table, "aggregated": place.aggregated_table},
        "hours": [_hour_json(standing) for standing in found.standings],
        "oldest_pending": found.oldest.bucket if found.oldest else None,
        "next_cutoff": _iso(cutoff) if cutoff else None,
        "seconds_to_next_cutoff": int((cutoff - found.now).total_seconds()) if cutoff else None,
        "past": [standing.bucket for standing in found.past],
        "closing_within_an_hour": [standing.bucket for standing in found.closing],
        "looked_at": {
            "first": hours.bucket(found.looked_at[0]),
            "last": hours.bucket(found.looked_at[-1]),
            "hours": len(found.looked_at),
        },
        "not_looked_at": _UNSEEN,
    }


def _hour_json(standing: HourOutlook) -> dict[str, object]:
    pending = standing.pending
    return {
        "hour": standing.bucket,
        "rows": pending.rows,
        "held": pending.held,
        "zero": pending.zero,
        "aggregates": pending.aggregates,
        "state": standing.state.value,
        "opens_at": _iso(standing.opens_at) if standing.opens_at else None,
        "closes_at": _iso(standing.closes_at) if standing.closes_at else None,
        "last_call": standing.is_last_call,
    }


def address(url: str) -> str:
    """Return the endpoint without whatever a person may have put before its host."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _short(instant: datetime) -> str:
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ")


def _iso(instant: datetime) -> str:
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _span(span: timedelta) -> str:
    minutes = int(span.total_seconds()) // 60
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
