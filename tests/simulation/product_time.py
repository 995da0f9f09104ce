"""The product's own time, threads and chance, replaced by the simulation's.

Belongs here: which names of the product's modules are swapped, for as long as a world lives. Does not: the clock itself
(kernel). Nothing is swapped in Python's own modules, which the tests around go on using.
"""

import importlib
import pkgutil
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.simulation.kernel import Kernel

_ROOMS = ("metering_dagster.metering", "metering_dagster.expiry", "metering_dagster.licenses")
_ALONE = ("metering_dagster.core.aws.dynamodb", "metering_dagster.core.aws.transactions")


class Inline:
    """An executor that does everything at once, in the caller's own process."""

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> "Inline":
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Done before it returns."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args))
        except Exception as error:  # noqa: BLE001  # it is the future's result
            future.set_exception(error)
        return future

    def map(self, function: Callable[..., Any], *these: Iterable[Any]) -> Iterator[Any]:
        """One after the other."""
        return iter([function(*args) for args in zip(*these, strict=False)])

    def shutdown(self, **_: object) -> None:
        """Nothing is left to do."""


class _Event:
    """An event on which nobody but the only thread there is waits."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self._is_set = kernel, False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float) -> bool:
        if not self._is_set:
            self.kernel.sleep(seconds)
        return self._is_set


def _modules() -> list[ModuleType]:
    """Return all modules that tell time, but for those of Dagster: they take seconds to import, and none runs here."""
    found = [importlib.import_module(name) for name in _ALONE]
    for room in _ROOMS:
        package = importlib.import_module(room)
        names = [entry.name for entry in pkgutil.walk_packages(package.__path__, f"{room}.")]
        found += [importlib.import_module(name) for name in names if ".defs" not in name]
    return found + [module for name, module in sys.modules.items() if name == "metering_dagster.metering.defs.ops"]


@contextmanager
def simulated(kernel: Kernel, chance: random.Random) -> Iterator[None]:
    """For the product, time is the kernel's, chance comes from the seed, and threads are none."""
    instead = {
        time: SimpleNamespace(sleep=kernel.sleep, time=lambda: kernel.now, monotonic=lambda: kernel.now),
        threading: SimpleNamespace(Lock=threading.Lock, Event=lambda: _Event(kernel)),
        random: chance,
        ThreadPoolExecutor: Inline,
    }
    before: list[tuple[ModuleType, str, object]] = []
    for module in _modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, ModuleType | type) and value in instead:
                before.append((module, name, value))
                setattr(module, name, instead[value])
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
