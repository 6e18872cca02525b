"""Answers that are waited for together and not for ever: a call in a thread that nobody has to wait for."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Late(Exception):
    """It did not come in time."""


class Later(Generic[T]):
    """A call that is being made; the process may end before it has returned."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._found: list[T] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def by(self, moment: float) -> T:
        """Return what it returned, or raise what it raised.

        Args:
            moment: of `time.monotonic()`, until which it is waited for.

        Raises:
            Late: it has not returned by then.
        """
        self._thread.join(max(0.0, moment - time.monotonic()))
        if self._thread.is_alive():
            raise Late
        if self._error is not None:
            raise self._error
        return self._found[0]

    def _work(self) -> None:
        try:
            self._found.append(self._call())
        except Exception as error:
            self._error = error
