"""Putting other lines into the product's functions, for as long as a test needs them.

Belongs here: how a line of the source is exchanged. Does not: which line (bugs).

What runs is the product's own source with that line exchanged, for whoever has imported the function as well. An edit
whose line the product no longer has is an error, never a plant that does nothing.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType
from typing import Any


@dataclass(frozen=True)
class Edit:
    """Lines of one function of the product, and what is to stand there instead."""

    function: Callable[..., Any]
    lines: Mapping[str, str]
    """What stands there (once, without the indentation of its first line) and what is to."""

    def code(self) -> CodeType:
        """The function's code with the lines exchanged; `LookupError` where one of them is not there exactly once."""
        module = sys.modules[self.function.__module__]
        whole, text = inspect.getsource(module), inspect.getsource(self.function)
        edited = text
        for stands, instead in self.lines.items():
            if text.count(stands) != 1 or whole.count(text) != 1:
                raise LookupError(f"{self.function.__qualname__} has no longer once what is to be edited: {stands}")
            edited = edited.replace(stands, instead)
        name = self.function.__qualname__
        compiled = compile(whole.replace(text, edited), str(module.__file__), "exec", dont_inherit=True)
        return next(code for code in _codes(compiled) if code.co_qualname == name)


@contextmanager
def edited(*edits: Edit) -> Iterator[None]:
    """The product as edited; as it was afterwards."""
    codes = [(edit.function, edit.code()) for edit in edits]
    before = [(function, function.__code__) for function, _ in codes]
    try:
        for function, code in codes:
            function.__code__ = code
        yield
    finally:
        for function, code in before:
            function.__code__ = code


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
