"""Which record each result of BatchMeterUsage is about, however odd the answer (domain: what metering is). Pure.

Belongs here: reading an answer of which nothing can be relied on, not even its types. Does not: calling, resending.

The model requires nothing of an answer. A result is matched by what of its record's identity it echoes. By position
only where there are as many results as records and no echo contradicts; and where nothing at all is echoed, only if the
results without an echo do not differ in their status.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from metering_dagster.core import hours
from metering_dagster.metering.rules.aggregate_group import Aggregate
from metering_dagster.metering.rules.statuses import ANSWERS, RecordStatus

_STATUSES: Mapping[object, RecordStatus] = {status.value: status for status in ANSWERS}
_BUYERS = ("CustomerAWSAccountId", "CustomerIdentifier")
_NAMES = ("LicenseArn", *_BUYERS, "Dimension")


@dataclass(frozen=True, slots=True)
class Result:
    """The service's word on one record."""

    aggregate: Aggregate
    status: RecordStatus
    record_id: str


@dataclass(frozen=True, slots=True)
class MeteringResponse:
    """The content of an answer, record by record.

    A record that no readable result is about counts as unprocessed.
    """

    results: tuple[Result, ...]
    unprocessed: tuple[Aggregate, ...]
    fault: str = ""
    """What of the answer could not be read, in words; empty where all could. Names nobody."""


@dataclass(frozen=True, slots=True)
class _Said:
    """One result: its place in the answer, and which records its echo fits."""

    place: int
    status: RecordStatus | None
    """None where it has none that is known."""
    record_id: str
    fits: frozenset[int]
    echoes: bool
    """Whether it echoes anything of an identity."""


def read_answer(
    answer: Any, records: Sequence[Mapping[str, Any]], aggregates: Sequence[Aggregate]
) -> MeteringResponse | str:
    """Match the results of an answer to the records as they were sent, which stand for these aggregates.

    Returns what is wrong, in words, where the answer is none at all.
    """
    if not isinstance(answer, Mapping):
        return f"the answer is {_kind(answer)}, not an object"
    if "Results" not in answer and "UnprocessedRecords" not in answer:
        return "the answer has neither Results nor UnprocessedRecords"
    results = answer.get("Results") or []
    if not isinstance(results, list | tuple):
        return f"Results is {_kind(results)}, not a list"
    faults: list[str] = []
    said = [_read(place, result, records, faults) for place, result in enumerate(results)]
    matched = _matched(said, len(records), faults)
    unsaid = len(records) - len(results) - len(_list(answer.get("UnprocessedRecords")))
    if unsaid > 0:
        faults.append(f"{unsaid} of {len(records)} records are in no list of the answer")
    return MeteringResponse(
        tuple(Result(aggregates[place], status, record_id) for place, (status, record_id) in sorted(matched.items())),
        tuple(aggregate for place, aggregate in enumerate(aggregates) if place not in matched),
        "; ".join(dict.fromkeys(faults)),
    )


def _read(place: int, result: Any, records: Sequence[Mapping[str, Any]], faults: list[str]) -> _Said:
    if not isinstance(result, Mapping):
        faults.append(f"a result is {_kind(result)}")
        result = {}
    elif not isinstance(result.get("Status"), str) or result["Status"] not in _STATUSES:
        faults.append("a result has a status that is not known" if result.get("Status") else "a result has no status")
    status, record_id = result.get("Status"), result.get("MeteringRecordId")
    echo = _echo(result.get("UsageRecord"), faults)
    fits = frozenset(n for n, record in enumerate(records) if _agrees(echo, record))
    if not fits:
        faults.append("a result echoes a record that was not sent")
    return _Said(
        place,
        _STATUSES.get(status) if isinstance(status, str) else None,
        record_id if isinstance(record_id, str) else "",
        fits,
        bool(echo),
    )


def _echo(record: Any, faults: list[str]) -> dict[str, str | datetime]:
    """Return what of an identity an echoed record names, readably."""
    if not isinstance(record, Mapping):
        return {}
    echo: dict[str, str | datetime] = {
        name: record[name] for name in _NAMES if isinstance(record.get(name), str) and record[name]
    }
    instant = record.get("Timestamp")
    if isinstance(instant, datetime) and instant.tzinfo is not None:
        echo["Timestamp"] = hours.floor_hour(instant)
    elif instant is not None:
        faults.append("a Timestamp has no zone" if isinstance(instant, datetime) else "a Timestamp is no instant")
    return echo


def _agrees(echo: Mapping[str, str | datetime], record: Mapping[str, Any]) -> bool:
    """Return whether an echo contradicts nothing of a record that was sent. It may name the buyer in one more way."""
    buyers = {echo[name] for name in _BUYERS if name in echo}
    sent = {record[name] for name in _BUYERS if name in record}
    return (
        (not buyers or bool(buyers & sent))
        and echo.get("LicenseArn", record.get("LicenseArn")) == record.get("LicenseArn")
        and echo.get("Dimension", record["Dimension"]) == record["Dimension"]
        and echo.get("Timestamp", hours.floor_hour(record["Timestamp"])) == hours.floor_hour(record["Timestamp"])
    )


def _matched(said: Sequence[_Said], records: int, faults: list[str]) -> dict[int, tuple[RecordStatus, str]]:
    """Status and id for each record that a result is about, by the record's position."""
    matched: dict[int, tuple[RecordStatus, str]] = {}
    disputed: set[int] = set()
    left: list[tuple[_Said, RecordStatus]] = []
    for one in said:
        if one.status is None or not one.fits:
            continue
        if not one.echoes or len(one.fits) > 1:
            left.append((one, one.status))
            continue
        (place,) = one.fits
        before = matched.setdefault(place, (one.status, one.record_id))
        if before[0] is not one.status:
            disputed.add(place)
            faults.append("two results differ about one record")
    in_order = len(said) == records and all(one.place in one.fits for one in said)
    alike = len({one.status for one in said if not one.echoes}) <= 1
    for one, status in left:
        if in_order and (one.echoes or alike) and one.place not in matched:
            matched[one.place] = status, one.record_id
        else:
            faults.append("a result does not say which record it is about")
    return {place: ended for place, ended in matched.items() if place not in disputed}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _kind(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"
