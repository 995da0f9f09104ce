"""The judge: was everything that was used billed once, or is there a reason why not, to the last unit?

Belongs here: comparing what sellers wrote with how rows, records, licenses and queue ended, and with the marketplace's
own bill. Pure. Does not: looking all that up (evidence). Nothing of the project is imported here.

Which rows a group's commit counted is worked out from how each row ended, and not from what the project remembers of
it. One thing cannot be seen: whether a row was counted that its seller wrote over while it was still pending. Then the
bill must be explained by some choice of such rows; their quantities have six decimals, so no second choice fits.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from tests.crash.journal import PENDING, Group, RowKey, Written

USED, BILLED, REJECTED, LATE, EXPIRED, REFUSED = "used", "billed", "rejected", "late", "expired", "refused"
COLUMNS = (USED, BILLED, REJECTED, LATE, EXPIRED, REFUSED)
ENDS = {"RejectedClientSide": REJECTED, "LateUsage": LATE, "AggregationExpired": EXPIRED}
COUNTED, NOT_SUBSCRIBED = "Aggregated", "CustomerNotSubscribed"
MOST_RECORDS, MOST_BYTES, MOST_CALLS = 25, 1_000_000, 10
CLOCKS_APART = 0.001
"""Seconds, of the clock that a process sleeps by and the one that it reads."""
WINDOW_HOURS = 24
NOTHING = Decimal(0)
Content = tuple[Decimal, str | None]
Item = Mapping[str, Any]


@dataclass(frozen=True)
class Evidence:
    """All that there is at the end."""

    written: Sequence[Written]
    rows: Sequence[Item]
    """Of the usage table, with plain values."""
    records: Sequence[Item]
    """Of the aggregated table, without the project's own items beside them."""
    subscribers: Sequence[Item]
    bill: Sequence[Item]
    """As the sandbox says it."""
    calls: Sequence[Item]
    slots: Sequence[tuple[float, float]]
    """Of the quota, all that processes sent calls in: when it begins, and when its call was let go."""
    buyers: Mapping[str, str | None]
    """Each license, and when it ended."""
    lock_hours: int
    in_queue: int = 0
    buried: int = 0


@dataclass
class Verdict:
    """Sums by hour, and everything that is not as it ought to be."""

    hours: dict[str, dict[str, Decimal]] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    row_states: Counter[str] = field(default_factory=Counter)
    record_states: Counter[str] = field(default_factory=Counter)
    groups: int = 0
    lines: int = 0
    calls: int = 0
    most_records: int = 0
    most_in_a_second: int = 0
    """By the slots that they were sent in."""
    most_arriving: int = 0
    """In a second by the marketplace's stamps: what a machine holds up on the way crowds what comes behind it, and no
    quota can call it back. So this is told, and not judged."""

    @property
    def totals(self) -> dict[str, Decimal]:
        """The sums of all hours."""
        return {name: sum((sums[name] for sums in self.hours.values()), NOTHING) for name in COLUMNS}

    def add(self, hour: str, column: str, quantity: Decimal) -> None:
        """Count into an hour's sum."""
        self.hours.setdefault(hour, dict.fromkeys(COLUMNS, NOTHING))[column] += quantity

    def table(self) -> str:
        """The sums as text, an hour a line."""
        lines = [f"{'hour':13} " + " ".join(f"{name:>16}" for name in COLUMNS)]
        for hour, sums in [*sorted(self.hours.items()), ("all", self.totals)]:
            lines.append(f"{hour:13} " + " ".join(f"{sums[name]:>16f}" for name in COLUMNS))
        return "\n".join(lines)


def judge(evidence: Evidence) -> Verdict:
    """The verdict; green where it has no differences."""
    verdict = Verdict()
    histories: dict[RowKey, list[Written]] = defaultdict(list)
    totals: dict[Group, Written] = {}
    for entry in evidence.written:
        if entry.is_total:
            totals[entry.group] = entry
        else:
            histories[entry.key].append(entry)
    rows = _by_key(evidence.rows, "customerAWSAccountId_dimension_timestamp")
    records = _by_key(evidence.records, "account_dimension_hour")
    bill = _lines(evidence.bill, verdict)
    groups: dict[Group, list[list[Written]]] = defaultdict(list)
    for history in histories.values():
        groups[history[0].group].append(history)
    for group in sorted({*groups, *totals, *bill, *map(_group_of, records)}):
        record = records.get((group[0], "#".join(group[1:])))
        line = bill.get(group)
        _judge_record(group, record, line, evidence, verdict)
        if group in totals:
            _judge_total(totals[group], record, verdict)
        else:
            _Rows(group, groups.get(group, []), rows, evidence, verdict).judge(record, line)
    unknown = set(rows) - set(histories)
    verdict.differences += [f"nobody wrote the row {_named(key)}" for key in sorted(unknown)]
    for hour, sums in sorted(verdict.hours.items()):
        if sums[USED] != sum(sums[name] for name in COLUMNS[1:]):
            verdict.differences.append(f"{hour}: what was used is not what became of it: {_shown(sums)}")
    _judge_calls(evidence.calls, evidence.slots, verdict)
    _judge_licenses(evidence, verdict)
    return verdict


def _by_key(items: Iterable[Item], sort: str) -> dict[RowKey, Item]:
    return {(str(item["licenseArn"]), str(item[sort])): item for item in items}


def _group_of(key: RowKey) -> Group:
    account, *dimension, hour = key[1].split("#")
    return key[0], account, "#".join(dimension), hour


def _lines(bill: Sequence[Item], verdict: Verdict) -> dict[Group, Item]:
    """The bill by group; a group with two lines is billed twice."""
    found: dict[Group, Item] = {}
    for line in bill:
        group = tuple(str(line[n]) for n in ("license_arn", "customer_aws_account_id", "dimension", "hour"))
        assert len(group) == 4
        if group in found:
            verdict.differences.append(
                f"{_named(group)} is billed twice: {found[group]['quantity']}, {line['quantity']}"
            )
        if line["product_code"] is not None:
            verdict.differences.append(f"{_named(group)} is billed with a product's code beside its license")
        found[group] = line
        verdict.add(group[3], BILLED, Decimal(line["quantity"]))
        verdict.lines += 1
    return found


def _judge_record(group: Group, record: Item | None, line: Item | None, evidence: Evidence, verdict: Verdict) -> None:
    """A record is `Success` exactly where there is a line, of its quantity."""
    if record is None:
        if line is not None:
            verdict.differences.append(f"{_named(group)} is billed, and there is no record of it")
        return
    verdict.groups += 1
    status = PENDING if "meteringPending" in record else str(record.get("meteringStatus"))
    verdict.record_states[status] += 1
    if (status == "Success") is not (line is not None):
        verdict.differences.append(f"{_named(group)}: the record is {status}, billed is {line and line['quantity']}")
    elif line is not None and (Decimal(line["quantity"]), line["metering_record_id"]) != (
        record["quantity"], record.get("meteringRecordId"),
    ):  # fmt: skip
        verdict.differences.append(f"{_named(group)}: aggregated is {record['quantity']}, billed {line['quantity']}")
    elif status == NOT_SUBSCRIBED and evidence.buyers.get(group[0]) is not None:
        verdict.add(group[3], REFUSED, record["quantity"])
    elif status != "Success":
        verdict.differences.append(f"{_named(group)}: the record ended as {status}")


def _judge_total(total: Written, record: Item | None, verdict: Verdict) -> None:
    verdict.add(total.hour, USED, total.quantity)
    if record is None or record["quantity"] != total.quantity:
        verdict.differences.append(f"{_named(total.group)}: the seller's total is not what stands there")


class _Rows:
    """The rows of one group."""

    def __init__(
        self,
        group: Group,
        histories: Sequence[Sequence[Written]],
        rows: Mapping[RowKey, Item],
        evidence: Evidence,
        verdict: Verdict,
    ) -> None:
        self.group, self.histories, self.rows = group, histories, rows
        self.evidence, self.verdict = evidence, verdict

    def judge(self, record: Item | None, line: Item | None) -> None:
        """Every row has ended rightly, and those that were counted are what the record says."""
        counted: dict[str, Content] = {}
        open_choices: list[tuple[str, list[Content]]] = []
        for history in self.histories:
            certain, possible = self._counted(history)
            second = history[0].timestamp
            if len(certain) > 1:
                self._differ(f"the second {second} was counted with different quantities")
            if certain:
                counted[second] = certain.pop()
            elif possible:
                open_choices.append((second, possible))
        committed = None if record is None else Decimal(record["quantity"])
        if committed is not None:
            left = committed - sum((quantity for quantity, _ in counted.values()), NOTHING)
            chosen = _choice(open_choices, left)
            if chosen is None:
                self._differ(f"its record says {committed}, and {left} of that no row explains")
            else:
                counted |= chosen
        elif counted:
            self._differ("rows of it are aggregated, and there is no record")
        self._judge_reasons(counted)
        self._judge_allocations(counted, line)
        for history in self.histories:
            self._judge_row(history, counted.get(history[0].timestamp), is_committed=committed is not None)

    def _counted(self, history: Sequence[Written]) -> tuple[set[Content], list[Content]]:
        """What of a second was counted for sure; else what may have been."""
        ends = [*(later.before for later in history[1:]), self._state(history[-1])]
        good = [(entry, end) for entry, end in zip(history, ends, strict=True) if not (entry.fault or entry.deletes)]
        certain = {entry.content for entry, end in good if end == COUNTED}
        possible = [entry.content for entry, end in good if end == PENDING]
        return certain, list(dict.fromkeys(possible))

    def _state(self, entry: Written) -> str | None:
        row = self.rows.get(entry.key)
        if row is None:
            return None
        return PENDING if "meteringPending" in row else str(row.get("meteringStatus"))

    def _judge_row(self, history: Sequence[Written], counted: Content | None, *, is_committed: bool) -> None:
        last, state = history[-1], self._state(history[-1])
        if last.deletes:
            if state is not None:
                self._differ(f"the row {last.timestamp} was deleted, and is there")
            return
        if state is None:
            self._differ(f"the row {last.timestamp} is lost")
            return
        self.verdict.row_states[state] += 1
        self.verdict.add(last.hour, USED, last.quantity)
        if last.fault is None and self.rows[last.key].get("quantity") != last.quantity:
            self._differ(f"the row {last.timestamp} does not say what its seller wrote")
        if state == COUNTED:
            if counted != last.content:
                self._differ(f"the row {last.timestamp} is {state}, and was not counted so")
        elif state in ENDS:
            # Of a second that was counted before, only what it differs by is to be accounted for.
            already = counted[0] if counted is not None else NOTHING
            self.verdict.add(last.hour, ENDS[state], last.quantity - already)
            if not self._may_end_so(last, state, is_committed=is_committed):
                self._differ(f"the row {last.timestamp}, written {last.hours_late} hours late, must not end as {state}")
        else:
            self._differ(f"the row {last.timestamp} has not ended: {state}")

    def _may_end_so(self, last: Written, state: str, *, is_committed: bool) -> bool:
        """Whether a row that was not counted has an excuse."""
        if state == "RejectedClientSide":
            return last.fault is not None and last.fault == self.rows[last.key].get("meteringStatusReason")
        if state == "AggregationExpired":
            return last.hours_late >= WINDOW_HOURS and not is_committed
        ended = self.evidence.buyers.get(last.license)
        return is_committed and (last.hours_late >= self.evidence.lock_hours or (ended is not None and last.at > ended))

    def _judge_reasons(self, counted: Mapping[str, Content]) -> None:
        """What a counted row says of its group is right."""
        total = sum((quantity for quantity, _ in counted.values()), NOTHING)
        words = f"Aggregated total quantity {_text(total)} from {len(counted)} raw usage records"
        for history in self.histories:
            row = self.rows.get(history[-1].key, {})
            if row.get("meteringStatus") == COUNTED and "meteringPending" not in row:
                said = str(row.get("meteringStatusReason"))
                if said != words:
                    self._differ(f"the row {history[-1].timestamp} says {said!r} instead of {words!r}")

    def _judge_allocations(self, counted: Mapping[str, Content], line: Item | None) -> None:
        """The bill's allocations are those of the counted rows, and the untagged rest."""
        if line is None:
            return
        teams: dict[str | None, Decimal] = defaultdict(Decimal)
        for quantity, team in counted.values():
            teams[team] += quantity
        billed = {
            next((tag["Value"] for tag in part.get("Tags", [])), None): Decimal(part["AllocatedUsageQuantityAsDecimal"])
            for part in line["allocations"] or []
        }
        wanted = {team: quantity for team, quantity in teams.items() if quantity} if set(teams) - {None} else {}
        if {team: quantity for team, quantity in billed.items() if quantity} != wanted:
            self._differ(f"its allocations are billed as {billed}, used as {wanted}")

    def _differ(self, words: str) -> None:
        self.verdict.differences.append(f"{_named(self.group)}: {words}")


def _choice(open_choices: Sequence[tuple[str, list[Content]]], left: Decimal) -> dict[str, Content] | None:
    """Contents of some of these seconds, one each at most, that sum to what is left; None if there are none."""
    reached: dict[Decimal, dict[str, Content]] = {NOTHING: {}}
    for second, contents in open_choices:
        for total, chosen in list(reached.items()):
            for content in contents:
                reached.setdefault(total + content[0], chosen | {second: content})
    return reached.get(left)


def _judge_calls(calls: Sequence[Item], slots: Sequence[tuple[float, float]], verdict: Verdict) -> None:
    verdict.most_in_a_second = _most_in_a_second([begins for begins, _ in slots])
    verdict.most_arriving = _most_in_a_second([call["monotonic"] for call in calls])
    verdict.calls = len(calls)
    if len(calls) > len(slots):
        verdict.differences.append(f"{len(calls) - len(slots)} calls were sent without a slot of the quota")
    if len({begins for begins, _ in slots}) < len(slots):
        verdict.differences.append("a slot of the quota was used twice")
    if any(let_go < begins - CLOCKS_APART for begins, let_go in slots):
        verdict.differences.append("a call was let go before its slot of the quota")
    verdict.most_records = max((call["records"] for call in calls), default=0)
    if verdict.most_records > MOST_RECORDS:
        verdict.differences.append(f"a call carried {verdict.most_records} records")
    if max((call["bytes"] for call in calls), default=0) >= MOST_BYTES:
        verdict.differences.append("a call was too large")
    if verdict.most_in_a_second > MOST_CALLS:
        verdict.differences.append(f"{verdict.most_in_a_second} calls have slots within one second")


def _most_in_a_second(times: Sequence[float]) -> int:
    """In the most crowded sliding second."""
    stamps, first, most = sorted(times), 0, 0
    for place, stamp in enumerate(stamps):
        while stamp - stamps[first] >= 1.0:
            first += 1
        most = max(most, place - first + 1)
    return most


def _judge_licenses(evidence: Evidence, verdict: Verdict) -> None:
    states = {str(row["licenseArn"]): row for row in evidence.subscribers}
    for license, ended in evidence.buyers.items():
        row = states.pop(license, {})
        wanted = "active" if ended is None else "inactive"
        if row.get("subscriptionStatus") != wanted:
            found = row.get("subscriptionStatus")
            verdict.differences.append(f"license ...{license[-4:]} is {found}, and ought to be {wanted}")
        if {"deprovisioningPendingFlag", "deprovisioningExpiry"} & set(row):
            verdict.differences.append(f"the flush window of license ...{license[-4:]} was never closed")
    verdict.differences += [f"license ...{license[-4:]} is nobody's" for license in states]
    if evidence.in_queue or evidence.buried:
        verdict.differences.append(f"events: {evidence.in_queue} were never applied, {evidence.buried} were given up")


def _named(key: Sequence[str]) -> str:
    return f"...{key[0][-4:]} {' '.join(key[2:]) or key[1]}"


def _shown(sums: Mapping[str, Decimal]) -> str:
    return ", ".join(f"{name} {quantity}" for name, quantity in sums.items())


def _text(quantity: Decimal) -> str:
    return format(quantity.normalize(), "f")
