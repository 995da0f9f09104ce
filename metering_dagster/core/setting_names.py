"""Names of settings that nobody reads: mistyped ones, and those of other versions. Pure.

Belongs here: telling a typo from a name of somebody else's. Does not: which settings there are, what they mean.
"""

import re
from collections.abc import Iterable

BEGINNINGS = ("METERING", "BILLING")
"""The first words of our own names."""
_TYPOS, _TYPOS_OF_SHORT, _SHORT = 2, 1, 4
"""Letters that differ, without the first word; one only in names of up to four letters."""
_OF_KUBERNETES = re.compile(
    r"[A-Z0-9_]+_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_[A-Z]+)?)"
)


def is_ours(name: str) -> bool:
    """Return whether the name begins as our settings do, in whatever case."""
    return name.upper().startswith(tuple(f"{word}_" for word in BEGINNINGS))


def is_of_kubernetes(name: str, value: str) -> bool:
    """Return whether Kubernetes set this in the container by itself, for a Service whose name begins as ours do:
    METERING_UI_SERVICE_HOST and so on for the Service `metering-ui`.
    """
    return bool(_OF_KUBERNETES.fullmatch(name)) or (name.endswith("_PORT") and "://" in value)


def meant(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that this one is close to, so that a typo is likely; None if there is none.

    Close: another case; another first word of ours, or a mistyped one, before the same rest; or behind the first word
    two letters at most that differ, or the same words in another order or number (LOCK_HOUR, HOURS_LOCK). Its first
    words alone (METERING_LOCK), and one without such a beginning behind ours (METERING_PRODUCT_CODE), as well.
    """
    upper = name.upper()
    word, _, rest = upper.partition("_")
    found = []
    for other in known:
        first, _, tail = other.partition("_")
        if first not in BEGINNINGS:
            if rest == other or (first == "AWS" and rest == tail):
                found.append((_TYPOS, other))  # one that has no such beginning
            continue
        if word == first and rest and tail.startswith(f"{rest}_"):
            found.append((_TYPOS, other))
            continue
        if word == first:
            apart = min(_distance(rest, tail), _distance(_stems(rest), _stems(tail)))
            if apart <= (_TYPOS_OF_SHORT if len(tail) <= _SHORT else _TYPOS):
                found.append((apart, other))
        elif rest == tail and (word in BEGINNINGS or _distance(word, first) <= _TYPOS):
            found.append((_TYPOS, other))
    return min(found)[1] if found else None


def _stems(words: str) -> str:
    """Return the words without their plurals, in the order of the alphabet."""
    return "_".join(sorted(re.sub(r"IES$", "Y", word).removesuffix("S") for word in words.split("_")))


def _distance(one: str, other: str) -> int:
    """Return how many letters to insert, delete, replace or swap with their neighbor make one text of the other."""
    if abs(len(one) - len(other)) > _TYPOS:
        return _TYPOS + 1
    before, row = list[int](), list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        before, last, row = row, before, [i]
        for j, there in enumerate(other, start=1):
            least = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != there))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == there:
                least = min(least, last[j - 2] + 1)
            row.append(least)
    return row[-1]
