"""A table and its indexes, in memory.

Belongs here: items in the order of their keys, sparse indexes that follow their table later, what a key must be. Does
not: requests and answers (dynamodb), expressions.

A change reaches an index after a delay that is drawn when the item is written, each change its own: so an index may
show a later write of one item before an earlier one of another, as DynamoDB's do. The writes of one
item keep their order.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from zlib import crc32

from tests.simulation.memory.values import InvalidError, Item, size_of

Key = tuple[str, str]
"""Hash and range; of a table without a range key the latter is empty."""
Position = Any
"""In a table the range key itself; in an index (range, a number that mixes equals, the item's hash and range)."""
Lag = Callable[[str, str], float]
"""After how many seconds what is written now reaches this index (table, index)."""
Watcher = Callable[[str, Item | None, Item | None], None]
"""Told of each change: the table, the item before and after."""

LONGEST_HASH, LONGEST_RANGE = 2048, 1024
_EMPTY = (
    "One or more parameter values are not valid. The AttributeValue for a key attribute cannot contain an empty string "
    "value. Key: "
)


class Entry(NamedTuple):
    """An item, and how many bytes it takes."""

    item: Item
    size: int


class _Change(NamedTuple):
    """One that an index does not show before `visible_at`; what it showed for this item until then."""

    visible_at: float
    key: Key
    before: tuple[Position, Entry] | None


@dataclass(slots=True)
class Shelf:
    """The items that share a hash key, in order."""

    order: list[Position] = field(default_factory=list)
    entries: dict[Position, Entry] = field(default_factory=dict)
    log: list[_Change] = field(default_factory=list)

    def put(self, position: Position, entry: Entry) -> None:
        """Put it there, whatever stood there."""
        if position not in self.entries:
            insort(self.order, position)
        self.entries[position] = entry

    def take(self, position: Position) -> None:
        """Take it away, if it is there."""
        if self.entries.pop(position, None) is not None:
            del self.order[bisect_left(self.order, position)]

    def shown(self, now: float) -> tuple[list[Position], Mapping[Position, Entry]]:
        """What a reader sees now."""
        if self.log:
            self.log = [change for change in self.log if change.visible_at > now]
        if not self.log:
            return self.order, self.entries
        before: dict[Key, tuple[Position, Entry] | None] = {}
        for change in self.log:
            before.setdefault(change.key, change.before)
        old = dict(each for each in before.values() if each is not None)
        order = sorted([*(place for place in self.order if place[2:] not in before), *old])
        return order, {**self.entries, **old}


_NOTHING = Shelf()


class Index:
    """A global secondary index: sparse, and a little behind."""

    def __init__(self, name: str, hash_key: str, range_key: str | None, projected: tuple[str, ...] | None) -> None:
        """`projected`: the attributes that it carries, keys included; None for all."""
        self.name, self.hash_key, self.range_key, self.projected = name, hash_key, range_key, projected
        self._shelves: dict[str, Shelf] = {}
        self._late: dict[Key, float] = {}

    def shelf(self, hash_value: str) -> Shelf:
        """The items filed under this value."""
        return self._shelves.get(hash_value, _NOTHING)

    def hashes(self) -> list[str]:
        """The values under which items are filed, or were."""
        return sorted(self._shelves)

    def position(self, key: Key, item: Item) -> Position:
        """Where an item stands that the index holds."""
        rank = item[self.range_key]["S"] if self.range_key else ""
        return rank, crc32(f"{key[0]}\0{key[1]}".encode()), *key

    def check(self, item: Item, refusal: type[InvalidError]) -> None:
        """What an item says in the index's keys must be fit for a key."""
        for name, longest in ((self.hash_key, LONGEST_HASH), (self.range_key, LONGEST_RANGE)):
            if name is None or name not in item:
                continue
            text = item[name].get("S")
            if text is None:
                raise refusal(
                    f"One or more parameter values were invalid: Type mismatch for Index Key {name} Expected: S "
                    f"Actual: {next(iter(item[name]))} IndexName: {self.name}"
                )
            if not text:
                raise refusal(f"{_EMPTY}{name}, IndexName: {self.name}")
            if len(text.encode()) > longest:
                raise refusal(f"One or more parameter values were invalid: Size of hashkey has exceeded {longest}")

    def follow(self, key: Key, old: Item | None, new: Entry | None, now: float, lag: float) -> None:
        """Take over a change of the table."""
        before = self._place(key, old)
        after = self._place(key, new.item if new else None)
        if before is None and after is None:
            return
        entry = self._entry(new) if new is not None and after is not None else None
        held = self._shelves[before[0]].entries[before[1]] if before is not None else None
        if before == after and held == entry:
            return
        visible_at = max(now + lag, self._late.get(key, now))
        late = visible_at > now
        if late:
            self._late[key] = visible_at
        else:
            self._late.pop(key, None)
        if before is not None and held is not None:
            shelf = self._shelves[before[0]]
            if late:
                shelf.log.append(_Change(visible_at, key, (before[1], held)))
            if before != after:
                shelf.take(before[1])
        if after is not None and entry is not None:
            shelf = self._shelves.get(after[0])
            if shelf is None:
                shelf = self._shelves[after[0]] = Shelf()
            if late and (before is None or before[0] != after[0]):
                shelf.log.append(_Change(visible_at, key, None))
            shelf.put(after[1], entry)

    def _place(self, key: Key, item: Item | None) -> tuple[str, Position] | None:
        if item is None or self.hash_key not in item:
            return None
        if self.range_key is not None and self.range_key not in item:
            return None
        return item[self.hash_key]["S"], self.position(key, item)

    def _entry(self, new: Entry) -> Entry:
        if self.projected is None:
            return new
        carried = {name: new.item[name] for name in self.projected if name in new.item}
        return Entry(carried, size_of(carried))


class Table:
    """Items by their keys, with the indexes that follow them."""

    history: list[tuple[float, Key, Entry | None]] | None = None
    """When something changed, and what stood there before, once that is to be kept."""

    def __init__(self, name: str, hash_key: str, range_key: str | None, description: Mapping[str, Any]) -> None:
        self.name, self.hash_key, self.range_key = name, hash_key, range_key
        self.keys = (hash_key, range_key) if range_key else (hash_key,)
        self.description = description
        self.indexes: dict[str, Index] = {}
        self.watchers: list[Watcher] = []
        self._shelves: dict[str, Shelf] = {}

    def key_of(self, item: Mapping[str, Any], *, alone: bool = False) -> Key:
        """The key of an item, or a key by itself: then nothing else may be there."""
        try:
            hashed = item[self.hash_key]["S"]
            ranged = item[self.range_key]["S"] if self.range_key else ""
        except KeyError:
            raise InvalidError(self._misfit(item, alone)) from None
        if alone and len(item) != len(self.keys):
            raise InvalidError("The provided key element does not match the schema")
        if not hashed or (self.range_key and not ranged):
            raise InvalidError(f"{_EMPTY}{self.hash_key if not hashed else self.range_key}")
        if len(hashed.encode()) > LONGEST_HASH:
            raise InvalidError("One or more parameter values were invalid: Size of hashkey has exceeded the maximum "
                               "size limit of2048 bytes")  # fmt: skip
        if len(ranged.encode()) > LONGEST_RANGE:
            raise InvalidError("One or more parameter values were invalid: Aggregated size of all range keys has "
                               "exceeded the size limit of 1024 bytes")  # fmt: skip
        return hashed, ranged

    def _misfit(self, item: Mapping[str, Any], alone: bool) -> str:
        if alone:
            return "The provided key element does not match the schema"
        for name in self.keys:
            if name not in item:
                return f"One or more parameter values were invalid: Missing the key {name} in the item"
        wrong = next(name for name in self.keys if "S" not in item[name])
        actual = next(iter(item[wrong]))
        return f"One or more parameter values were invalid: Type mismatch for key {wrong} expected: S actual: {actual}"

    def shelf(self, hash_value: str) -> Shelf:
        """The items of this hash key."""
        return self._shelves.get(hash_value, _NOTHING)

    def hashes(self) -> list[str]:
        """The hash keys that occur, or did."""
        return sorted(self._shelves)

    def position(self, key: Key, item: Item) -> Position:
        """Where an item stands."""
        return key[1]

    def get(self, key: Key) -> Entry | None:
        """The item of this key."""
        shelf = self._shelves.get(key[0])
        return None if shelf is None else shelf.entries.get(key[1])

    def items(self) -> Iterator[Item]:
        """All items as they stand, which are not to be changed."""
        for shelf in self._shelves.values():
            for entry in shelf.entries.values():
                yield entry.item

    def before(self, moment: float) -> dict[Key, Entry | None]:
        """What stood at this moment wherever something has changed since."""
        found: dict[Key, Entry | None] = {}
        for at, key, old in self.history or ():
            if at > moment:
                found.setdefault(key, old)
        return found

    def check(self, item: Item, refusal: type[InvalidError]) -> None:
        """What an item says in the keys of the indexes must be fit for a key."""
        for index in self.indexes.values():
            index.check(item, refusal)

    def replace(self, key: Key, new: Entry | None, now: float, lag: Lag | None) -> None:
        """Let this stand there; None: nothing."""
        shelf = self._shelves.get(key[0])
        if shelf is None:
            if new is None:
                return
            shelf = self._shelves[key[0]] = Shelf()
        old = shelf.entries.get(key[1])
        if self.history is not None:
            self.history.append((now, key, old))
        if new is None:
            shelf.take(key[1])
        else:
            shelf.put(key[1], new)
        before = old.item if old is not None else None
        for index in self.indexes.values():
            index.follow(key, before, new, now, lag(self.name, index.name) if lag else 0.0)
        for watcher in self.watchers:
            watcher(self.name, before, new.item if new is not None else None)
