"""DynamoDB's expressions, from text to a tree.

Belongs here: tokens, the grammar of paths, operands, conditions, projections and updates, reserved words. Does not:
what a tree means (conditions, updates).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ministack.services._dynamodb_keywords import AWS_KEYWORDS

from tests.simulation.memory.values import InvalidError

Path = tuple[str | int, ...]
"""A name, and where it goes on: names of a map, places of a list."""
Node = tuple[Any, ...]
"""What it is, and of what: ("=", operand, operand), ("path", Path), ("value", ":name"), ("size", Path)."""

_TOKEN = re.compile(r"\s*(?:([:#]?[A-Za-z_0-9]+)|(<=|>=|<>|[=<>(),.\[\]+-]))")
_FUNCTIONS = {"attribute_exists": 1, "attribute_not_exists": 1, "attribute_type": 2, "begins_with": 2, "contains": 2}
_COMPARISONS = frozenset({"=", "<>", "<", "<=", ">", ">="})
_SECTIONS = frozenset({"SET", "REMOVE", "ADD", "DELETE"})


@dataclass
class Parser:
    """One expression being read. Which names and values it uses is noted on the way."""

    text: str
    names: Mapping[str, str]
    used_names: set[str] = field(default_factory=set)
    used_values: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._tokens: list[str] = []
        place, end = 0, len(self.text.rstrip())
        while place < end:
            found = _TOKEN.match(self.text, place)
            if found is None:
                raise InvalidError(f'Invalid expression: Syntax error; token: "{self.text[place:].strip()[:1]}"')
            self._tokens.append(found[1] or found[2])
            place = found.end()
        self._place = 0

    # The three kinds of expression.

    def condition(self) -> Node:
        """The whole of it, as a condition."""
        found = self._either()
        self._end()
        return found

    def projection(self) -> list[Path]:
        """The whole of it, as a list of paths."""
        found = [self._path()]
        while self._take(","):
            found.append(self._path())
        self._end()
        for place, path in enumerate(found):
            _no_overlap(path, found[:place])
        return found

    def update(self) -> dict[str, list[tuple[Path, Any]]]:
        """The whole of it, as the sections of an update; each names a path once."""
        sections: dict[str, list[tuple[Path, Any]]] = {}
        while self._place < len(self._tokens):
            section = self._next().upper()
            if section not in _SECTIONS or section in sections:
                raise self._error(self._tokens[self._place - 1])
            sections[section] = [self._clause(section)]
            while self._take(","):
                sections[section].append(self._clause(section))
        if not sections:
            raise InvalidError("Invalid UpdateExpression: The expression can not be empty;")
        paths = [path for clauses in sections.values() for path, _ in clauses]
        for place, path in enumerate(paths):
            _no_overlap(path, paths[:place])
        return sections

    def _clause(self, section: str) -> tuple[Path, Any]:
        path = self._path()
        if section == "REMOVE":
            return path, None
        if section in ("ADD", "DELETE"):
            return path, self._value()
        self._need("=")
        left = self._new_value()
        for sign in "+-":
            if self._take(sign):
                return path, (sign, left, self._new_value())
        return path, left

    def _new_value(self) -> Node:
        name = self._peek()
        if name in ("if_not_exists", "list_append") and self._peek(1) == "(":
            self._place += 2
            first: Any = self._path() if name == "if_not_exists" else self._new_value()
            self._need(",")
            second = self._new_value()
            self._need(")")
            return name, first, second
        return self._operand()

    # Conditions.

    def _either(self) -> Node:
        found = self._all()
        while self._take_word("OR"):
            found = ("or", found, self._all())
        return found

    def _all(self) -> Node:
        found = self._negated()
        while self._take_word("AND"):
            found = ("and", found, self._negated())
        return found

    def _negated(self) -> Node:
        if self._take_word("NOT"):
            return "not", self._negated()
        return self._atom()

    def _atom(self) -> Node:
        if self._take("("):
            found = self._either()
            self._need(")")
            return found
        name = self._peek()
        if name in _FUNCTIONS and self._peek(1) == "(":
            self._place += 2
            arguments = [self._operand()]
            while self._take(","):
                arguments.append(self._operand())
            self._need(")")
            if len(arguments) != _FUNCTIONS[name]:
                raise InvalidError(f"Invalid expression: Incorrect number of operands for {name}")
            return name, *arguments
        left = self._operand()
        sign = self._next()
        if sign in _COMPARISONS:
            return sign, left, self._operand()
        if sign.upper() == "BETWEEN":
            low = self._operand()
            if not self._take_word("AND"):
                raise self._error(self._peek())
            return "between", left, low, self._operand()
        if sign.upper() == "IN":
            self._need("(")
            among = [self._operand()]
            while self._take(","):
                among.append(self._operand())
            self._need(")")
            return "in", left, among
        raise self._error(sign)

    def _operand(self) -> Node:
        name = self._peek()
        if name.startswith(":"):
            return "value", self._value()
        if name == "size" and self._peek(1) == "(":
            self._place += 2
            path = self._path()
            self._need(")")
            return "size", path
        return "path", self._path()

    def _value(self) -> str:
        name = self._next()
        if not name.startswith(":"):
            raise self._error(name)
        self.used_values.add(name)
        return name

    def _path(self) -> Path:
        path: list[str | int] = [self._name()]
        while True:
            if self._take("."):
                path.append(self._name())
            elif self._take("["):
                place = self._next()
                if not place.isdecimal():
                    raise self._error(place)
                path.append(int(place))
                self._need("]")
            else:
                return tuple(path)

    def _name(self) -> str:
        name = self._next()
        if name.startswith("#"):
            self.used_names.add(name)
            if name not in self.names:
                raise InvalidError(f"An expression attribute name used in the document path is not defined; {name}")
            return self.names[name]
        if not (name[0].isalpha() or name[0] == "_"):
            raise self._error(name)
        if name.upper() in AWS_KEYWORDS:
            raise InvalidError(f"Attribute name is a reserved keyword; reserved keyword: {name}")
        return name

    # Tokens.

    def _peek(self, ahead: int = 0) -> str:
        place = self._place + ahead
        return self._tokens[place] if place < len(self._tokens) else ""

    def _next(self) -> str:
        name = self._peek()
        if not name:
            raise self._error("<EOF>")
        self._place += 1
        return name

    def _take(self, token: str) -> bool:
        if self._peek() == token:
            self._place += 1
            return True
        return False

    def _take_word(self, word: str) -> bool:
        if self._peek().upper() == word:
            self._place += 1
            return True
        return False

    def _need(self, token: str) -> None:
        if not self._take(token):
            raise self._error(self._peek() or "<EOF>")

    def _end(self) -> None:
        if self._peek():
            raise self._error(self._peek())

    def _error(self, token: str) -> InvalidError:
        return InvalidError(f'Invalid expression: Syntax error; token: "{token}"')


def _no_overlap(path: Path, others: list[Path]) -> None:
    for other in others:
        shorter = min(len(path), len(other))
        if path[:shorter] == other[:shorter]:
            raise InvalidError(f"Two document paths overlap with each other; path one: {other}, path two: {path}")
