"""The one place where signals are handled: whether this process was asked to stop, and by which of them."""

import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""What asks a process to stop: a person, or a machine's manager."""


class StopRequest:
    """Hears signals from `listen` on, or while it is entered, in the main thread, where they arrive; elsewhere none."""

    def __init__(self, signals: Sequence[signal.Signals] = SIGNALS) -> None:
        self.signals = signals
        self.asked_by: int | None = None
        """The first signal that came."""
        self._before: dict[int, Any] = {}

    def on_signal(self, number: int, first: bool) -> None:
        """Do what is to be done at once, in the middle of anything: for those who need more than to be asked."""

    def listen(self) -> None:
        """Hear signals from now on."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._signalled) for number in self.signals}

    def ignore(self) -> None:
        """Let no signal change anything any more: while Python ends, one would kill it."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def __enter__(self) -> Self:
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _signalled(self, number: int, _: FrameType | None) -> None:
        first = self.asked_by is None
        if first:
            self.asked_by = number
        self.on_signal(number, first)
