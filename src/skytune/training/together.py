"""Processes that wait for each other while some do what may take long: reading or writing a store, waiting for a lease.
In one collective operation they would wait no longer than the process group's timeout."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from .devices import World

T = TypeVar("T")

EVERY_SECONDS = 2.0
"""How often they say that they are still at it."""


def main_does(world: "World", function: Callable[[], T]) -> T:
    """Call `function` on rank 0 and return its result, which pickle can take, on every process (collective).

    Raises:
        whatever `function` raises, on rank 0; the others lose their peer.
    """
    if world.size == 1:
        return function()
    if not world.main:
        answer: list[T] = []
        while not answer:
            answer = _from_main(None)
        return answer[0]
    work = _Work(function)
    while True:
        found = work.found(EVERY_SECONDS)
        _from_main(found)
        if found:
            return found[0]


def all_do(world: "World", function: Callable[[], T]) -> T:
    """Call `function` on every process, return once it is done on all (collective).

    Raises:
        whatever `function` raises, on the process where it does; the others lose their peer.
    """
    if world.size == 1:
        return function()
    from accelerate.utils import gather_object

    work = _Work(function)
    while True:
        found = work.found(EVERY_SECONDS)
        if all(gather_object([bool(found)])):
            return found[0]


class _Work(Generic[T]):
    """A function in a thread of its own."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._found: list[T] = []
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True, name="work")
        self._thread.start()

    def found(self, timeout: float) -> list[T]:
        """Return what it returned in a list, which is empty where it has not yet; raise what it raised."""
        self._thread.join(timeout)
        if self._failed:
            raise self._failed[0]
        return list(self._found)

    def _run(self) -> None:
        try:
            self._found.append(self._function())
        except BaseException as error:
            self._failed.append(error)


def _from_main(values: list[T] | None) -> list[T]:
    """Return rank 0's list on every process."""
    from accelerate.utils import broadcast_object_list

    box = [list(values or [])]
    broadcast_object_list(box)
    return box[0]
