"""Processes that wait for rank 0 while it does something that may take long: reading or writing a store, waiting for a
lease. In one collective operation they would wait no longer than the process group's timeout."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from .devices import World

T = TypeVar("T")

EVERY_SECONDS = 2.0
"""How often rank 0 says that it is still at it."""


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
    found: list[T] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            found.append(function())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True, name="rank-0-alone")
    thread.start()
    while True:
        thread.join(EVERY_SECONDS)
        if failed:
            raise failed[0]
        _from_main(found)
        if found:
            return found[0]


def _from_main(values: list[T] | None) -> list[T]:
    """Return rank 0's list on every process."""
    from accelerate.utils import broadcast_object_list

    box = [list(values or [])]
    broadcast_object_list(box)
    return box[0]
