"""A cron expression as Dagster reads it: whether it ticks in every hour. Pure.

Belongs here: the meaning of the five fields. Does not: which setting holds one; whether Dagster takes it.
"""

import re

_MINUTE, _HOUR, _DAY, _MONTH = (0, 59), (0, 23), (1, 31), (1, 12)
_WEEKDAY = (0, 6)
_MONTHS = {name: number for number, name in enumerate(
    ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), start=1
)}  # fmt: skip
_WEEKDAYS = {
    name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))
} | {"7": 0}  # fmt: skip
_PART = re.compile(r"(?P<first>\*|[0-9]{1,2}|[a-z]{3})(-(?P<last>[0-9]{1,2}|[a-z]{3}))?(/(?P<step>[0-9]{1,2}))?")


def ticks_every_hour(expression: str) -> bool:
    """Return whether the expression ticks at least once in each hour of each day, in UTC.

    Raises `ValueError` where it is not five fields of numbers, names, `*`, lists, ranges and steps.
    """
    minute, hour, day, month, weekday = _fields(expression)
    _values(minute, _MINUTE, {})
    days = len(_values(day, _DAY, {})) == 31
    weekdays = len(_values(weekday, _WEEKDAY, _WEEKDAYS)) == 7
    # Cron takes either of two restricted fields; where one of them is open, it takes the other alone.
    either = not _is_open(day, weekday, is_full=days) and not _is_open(weekday, day, is_full=weekdays)
    return (
        len(_values(hour, _HOUR, {})) == 24
        and len(_values(month, _MONTH, _MONTHS)) == 12
        and (days or weekdays if either else days and weekdays)
    )


def _fields(expression: str) -> list[str]:
    fields = expression.lower().split()
    if len(fields) != 5:
        raise ValueError("not five fields")
    return fields


def _is_open(field: str, other: str, *, is_full: bool) -> bool:
    """Return whether the field stands for `*`. One that lists all values does so only beside a `*` in the other."""
    return "*" in field.split(",") or (is_full and "*" in other)


def _values(field: str, bounds: tuple[int, int], names: dict[str, int]) -> set[int]:
    """Return the numbers that the field allows."""
    low, high = bounds
    found: set[int] = set()
    for text in field.split(","):
        part = _PART.fullmatch(text)
        if part is None or (part["first"] == "*" and part["last"]) or part["step"] in ("0", "00"):
            raise ValueError(f"cannot be read: {text}")
        step = int(part["step"] or 1)
        if part["first"] == "*":
            found.update(range(low, high + 1, step))
            continue
        first = _number(part["first"], bounds, names)
        last = high if part["last"] is None else _number(part["last"], bounds, names)
        if part["last"] is None and part["step"] is None:
            found.add(first)
        elif first < last:
            found.update(range(first, last + 1, step))
        elif first == last:
            found.update(range(low, high + 1, step))  # Dagster's reading: from a value round to itself
        else:
            found.update(range(first, high + 1, step))
            # How a step goes on beyond the end is not for us to say: what is missing makes it slower, never faster.
            found.update(range(low, last + 1) if step == 1 else ())
    return found


def _number(text: str, bounds: tuple[int, int], names: dict[str, int]) -> int:
    number = names.get(text)
    if number is None:
        if not text.isdigit():
            raise ValueError(f"not a number: {text}")
        number = int(text)
    if not bounds[0] <= number <= bounds[1]:
        raise ValueError(f"out of range: {text}")
    return number
