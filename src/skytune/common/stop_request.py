"""The one place where signals are handled: whether this process was asked to stop, and by which of them."""

import _thread
import signal
import sys
import threading
import time
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
        """Let no signal but Ctrl-C change anything any more: while Python ends, one would kill it."""
        for number, handler in self._before.items():
            signal.signal(number, handler if number == signal.SIGINT else signal.SIG_IGN)

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


class Interruption(StopRequest):
    """Raises `KeyboardInterrupt` wherever a signal comes; an error after it (`asked_by`) may be a library's view of it.

    Python drops every exception in what it calls back itself (a weak reference whose object is gone, as each import has
    some; `__del__`), and this one too: it is raised again a moment later.
    """

    def __init__(self, signals: Sequence[signal.Signals]) -> None:
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # in the background of a script
        super().__init__([number for number in signals if number != signal.SIGINT or not ignored])
        self._dropped = False
        self._others = sys.unraisablehook

    def listen(self) -> None:
        """See `StopRequest`."""
        super().listen()
        self._others, sys.unraisablehook = sys.unraisablehook, self._unraisable

    def __exit__(self, *error: object) -> None:
        sys.unraisablehook = self._others
        super().__exit__(*error)

    def on_signal(self, number: int, first: bool) -> None:
        """See `StopRequest`."""
        if first or number == signal.SIGINT or self._dropped:  # managers may send theirs twice
            self._dropped = False
            raise KeyboardInterrupt

    def _unraisable(self, dropped: "sys.UnraisableHookArgs") -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            self._dropped = True
            _thread.start_new_thread(self._again, ())  # `Thread` takes locks, which what was interrupted may hold
        else:
            self._others(dropped)

    def _again(self) -> None:
        time.sleep(0.01)  # the callback has ended by then; if the next one is met, the same happens
        signal.pthread_kill(threading.main_thread().ident or 0, self.asked_by or signal.SIGINT)
