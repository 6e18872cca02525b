"""A call in a thread of its own, for whoever must not be deaf, or wait for ever, meanwhile."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Generic, TypeVar

T = TypeVar("T")


class Late(Exception):
    """It did not come in time; it may still come."""


class Pending(Generic[T]):
    """A call that is being made. Its thread may outlive us: nothing that must be tidied up may be left to it."""

    def __init__(self, call: Callable[[], T], name: str = "a call") -> None:
        self._name = name
        self._future: Future[T] = Future()
        threading.Thread(target=self._work, args=(call,), daemon=True, name=name).start()

    @property
    def done(self) -> bool:
        """Whether it has returned or raised."""
        return self._future.done()

    def result(self) -> T:
        """Return what it returned, or raise what it raised; only when `done`."""
        return self._future.result()

    def wait(self, tick: Callable[[], None] | None = None, seconds: float = float("inf")) -> T:
        """Wait for it; `tick`, which may raise, is called several times a second.

        Raises:
            Late: it took longer than `seconds`.
        """
        until = time.monotonic() + seconds
        while not self.done:
            left = until - time.monotonic()
            if left <= 0:
                raise Late(f"{self._name}: no answer within {seconds:.0f} s")
            wait_for([self._future], min(0.2, left))
            if tick is not None and not self.done:
                tick()
        return self.result()

    def _work(self, call: Callable[[], T]) -> None:
        try:
            self._future.set_result(call())
        except BaseException as error:
            self._future.set_exception(error)
