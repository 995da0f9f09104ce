"""What must become of the rows beside an aggregate that the pipeline did not make.

Belongs here: the one figure by which such a group is late, and who bears it, in the judge's own arithmetic. Does not:
rows of the pipeline's own commits (judge), who writes such aggregates (sellers, strangers).
"""

from collections.abc import Sequence
from decimal import Decimal

from tests.simulation.books import GroupBook, Total, Version

Verdict = dict[str, tuple[str, Decimal]]
"""For each row that waited, by its key: how it ends, and what it states to be late."""


def verdict(group: GroupBook, total: Total, at: float) -> Verdict:
    """What is to become of the rows that waited then, beside the total that stood there."""
    waiting: list[tuple[str, Version, Decimal]] = []
    figure = Decimal(0)
    for key, row in sorted(group.rows.items()):
        version = row.at(at)
        if version is None or version.gone or version.number is None or row.second is None:
            continue
        status = version.status_at(at)
        if status is None and version.filed is not None:
            waiting.append((key, version, version.number))
        elif status not in {"Aggregated", "LateUsage"}:
            continue
        figure += version.number
        if status == "LateUsage":
            figure -= version.late_by
    if total.number is None:  # nobody can say what is in it
        return {key: ("LateUsage", number) for key, _, number in waiting}
    figure -= total.number
    late = _late(waiting, total, figure)
    return {key: ("LateUsage", late[key]) if key in late else ("Aggregated", Decimal(0)) for key, _, _ in waiting}


def _late(waiting: Sequence[tuple[str, Version, Decimal]], total: Total, figure: Decimal) -> dict[str, Decimal]:
    if figure == 0:
        return {}
    stamps = [version.stamp for _, version, _ in waiting]
    if total.stamped and all(stamp is not None and stamp != total.at for stamp in stamps):
        after = {key: number for key, version, number in waiting if version.stamp and version.stamp > total.at}
        if sum(after.values(), Decimal(0)) == figure:
            return after
    shares: dict[str, Decimal] = {}
    for key, _, number in waiting:
        shares[key] = max(Decimal(0), min(number, figure))
        figure -= shares[key]
    if waiting:
        shares[waiting[-1][0]] += figure
    return shares
