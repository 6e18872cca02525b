"""Waiting for something that blocks (a request to SkyPilot's server, a log) without being deaf to signals meanwhile."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Late(Exception):
    """It did not come in time; it may still come."""


class Pending(Generic[T]):
    """A call in a thread of its own. The thread may outlive us: nothing that must be tidied up may be left to it."""

    def __init__(self, call: Callable[[], T], name: str) -> None:
        self._call = call
        self._found: list[T] = []
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._name = name
        threading.Thread(target=self._work, daemon=True, name=name).start()

    @property
    def done(self) -> bool:
        """Whether it has returned or raised."""
        return self._done.is_set()

    def result(self) -> T:
        """Return what it returned, or raise what it raised; only when `done`."""
        if self._error is not None:
            raise self._error
        return self._found[0]

    def wait(self, tick: Callable[[], None] | None = None, seconds: float = float("inf")) -> T:
        """Wait for it; `tick`, which may raise, is called several times a second.

        Raises:
            Late: it took longer than `seconds`.
        """
        until = time.monotonic() + seconds
        while not self._done.wait(0.2):
            if tick is not None:
                tick()
            if time.monotonic() > until:
                raise Late(f"{self._name}: no answer within {seconds:.0f} s")
        return self.result()

    def _work(self) -> None:
        try:
            self._found.append(self._call())
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()
