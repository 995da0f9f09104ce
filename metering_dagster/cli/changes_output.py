"""What the feed answers, as a table for people, as JSON and as CSV for programs.

Belongs here: wording and layout. Does not: what is answered (feed_response), exit codes.
"""

import json
import re
from collections.abc import Iterable, Sequence
from datetime import date, datetime

from metering_dagster.billing_changes.rules.feed_response import (
    COLUMNS,
    AnswerRow,
    FeedResponse,
    Meta,
    instant_text,
    record,
)
from metering_dagster.core.masking import mask_text

_WIDEST = 50
_CONSUMERS_ONLY = ("reported_at", "amounts", "vanished")
_FORMULA_STARTS = tuple("=+-@\t\r\n\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}"
                        "\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}")  # fmt: skip
"""What a spreadsheet takes for the beginning of a formula, or drops before it."""
_AMOUNTS = re.compile(r"(?:-?\d+(?:\.\d+)? [A-Z]{3}(?:, |$))+", re.ASCII)
"""Amounts as `record` writes them: no spreadsheet can read more into them."""
_QUOTED = re.compile(r'[",\r\n]')


def answer_json(answer: FeedResponse) -> str:
    """Return `{"rows": […], "meta": {…}}` (domain: the billing-changes signal). Amounts are text, since they
    are exact.
    """
    return json.dumps(
        {"rows": [_row_json(row, answer.meta) for row in answer.rows], "meta": _meta_json(answer.meta)}, indent=2
    )


def meta_text(answer: FeedResponse) -> str:
    """Return the meta block alone as JSON."""
    return json.dumps(_meta_json(answer.meta), indent=2)


def acknowledged(consumer: str, token: str, moved: bool, *, as_json: bool) -> str:
    """Return what came of an acknowledgement."""
    if as_json:
        return json.dumps({"consumer": consumer, "token": token, "moved": moved})
    if moved:
        return f"{consumer} has taken what came with {token}; it is given what is newer."
    return f"{consumer} had taken all that came with {token} already; nothing was moved."


def _meta_json(meta: Meta) -> dict[str, object]:
    """Return the meta block for programs. What only a named consumer is told is left out of the others' answers."""
    told: dict[str, object] = {
        "since": _plain(meta.since),
        "horizon": meta.horizon,
        "first_day": _plain(meta.first_day),
        "changed_cells": meta.changed_cells,
        "signals": list(meta.signals),
        "detects": list(meta.detects),
        "does_not_detect": list(meta.does_not_detect),
        "complete_until": _plain(meta.complete_until),
        "repull_by_hand": [
            {"first_day": _plain(each.first_day), "last_day": _plain(each.last_day), "why": each.why}
            for each in meta.repull_by_hand
        ],
        "read_at": _plain(meta.read_at),
    }
    if meta.consumer is not None:
        told |= {
            "consumer": meta.consumer,
            "token": meta.token,
            "looked_at": _plain(meta.looked_at),
            "pending": [str(day) for day in meta.pending],
            "damaged": list(meta.damaged),
        }
    return told


def _row_json(row: AnswerRow, meta: Meta) -> dict[str, object]:
    told = {name: _plain(value) for name, value in record(row).items() if name in columns(meta)}
    told["signals"] = list(row.signals)
    if row.amounts is not None:
        told["amounts"] = {currency: f"{amount:f}" for currency, amount in row.amounts}
    return told


def answer_csv(answer: FeedResponse) -> str:
    """Return the rows as CSV under a header; what is not known is empty.

    Others write names and identifiers. A spreadsheet would run one that looks like a formula: it gets an apostrophe.
    Amounts below zero stay as they are.
    """
    names = columns(answer.meta)
    lines = [_csv_line(names)]
    for row in answer.rows:
        told = record(row)
        lines.append(_csv_line("" if told[name] is None else _no_formula(str(_plain(told[name]))) for name in names))
    return "".join(lines)


def _no_formula(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA_STARTS) and not _AMOUNTS.fullmatch(text) else text


def _csv_line(cells: Iterable[str]) -> str:
    """Join cells to a line. Python 3.11's writer leaves a carriage return bare, which spreadsheets end a row at."""
    return ",".join('"{}"'.format(cell.replace('"', '""')) if _QUOTED.search(cell) else cell for cell in cells) + "\n"


def answer_text(answer: FeedResponse) -> str:
    """Return a table, and what it tells and does not, for people. Account ids are masked in it."""
    meta = answer.meta
    lines = [*_table(answer.rows, meta), ""] if answer.rows else []
    one = meta.changed_cells == 1
    cells = "1 cell" if one else f"{meta.changed_cells} cells"
    happened = f"{'is' if one else 'are'} new" if meta.consumer else f"{'was' if one else 'were'} ingested again"
    by = f", told by {' and '.join(meta.signals)}" if meta.signals else ""
    lines.append(f"{cells} {happened}{_asked(meta)}{by}.")
    if meta.complete_until is not None:
        lines.append(f"Complete for all that was stamped before {instant_text(meta.complete_until)}.")
    if meta.pending:
        lines.append(f"Moved, and not materialized yet: {', '.join(map(str, meta.pending))}.")
    lines += [f"To re-pull by hand: {_days(one.first_day, one.last_day)}: {one.why}." for one in meta.repull_by_hand]
    lines += ["Detected:", *(f"  {sentence}" for sentence in meta.detects)]
    lines += ["Not detected:", *(f"  {sentence}" for sentence in meta.does_not_detect)]
    if meta.token is not None:
        lines.append(f"Taken? metering-dagster changes --consumer {meta.consumer} --ack {meta.token}")
    return "\n".join(lines)


def _asked(meta: Meta) -> str:
    since = "" if meta.since is None else f" since {instant_text(meta.since)}"
    return f" for {meta.consumer}{since}" if meta.consumer else f"{since}, of days from {meta.first_day} on"


def _days(first: date, last: date) -> str:
    return str(first) if first == last else f"{first} to {last}"


def columns(meta: Meta) -> list[str]:
    """Return the fields of this answer's rows: an answer by `since` has none of what only reports tell."""
    return [name for name in COLUMNS if meta.consumer is not None or name not in _CONSUMERS_ONLY]


def _table(rows: Sequence[AnswerRow], meta: Meta) -> list[str]:
    names = columns(meta)
    table = [names, *([_cell(told[name]) for name in names] for told in map(record, rows))]
    widths = [max(len(line[place]) for line in table) for place in range(len(names))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]


def _cell(value: object) -> str:
    """Return what somebody else wrote stays on its line, and does nothing to a terminal."""
    text = "-" if value is None else {True: "yes", False: "no"}[value] if isinstance(value, bool) else _plain(value)
    shown = mask_text(str(text))
    return shown if len(shown) <= _WIDEST else f"{shown[: _WIDEST - 1]}…"


def _plain(value: object) -> object:
    """Instants and days as text, all else as it is."""
    if isinstance(value, datetime):
        return instant_text(value)
    return str(value) if isinstance(value, date) else value
