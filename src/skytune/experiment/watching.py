"""What is watched while cells run: that each is still there (so that a killed start is paid for in the table), and that
the money lasts."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..config import ComputeConfig
from ..job import JobDir
from ..launch import Launcher
from ..training.preemption import FLAG_FILE
from .plan import LEAST_S, Planned
from .store import ResultsStore

log = logging.getLogger(__name__)

LOOK = 1.0
"""Seconds between looks at the money."""

NOTE = 5.0
"""Seconds between notes that a cell still runs."""


class Running:
    """A cell that runs now."""

    def __init__(self, planned: Planned) -> None:
        self.planned = planned
        self.began = time.monotonic()
        self.job: Path | None = None
        self.stopped = ""
        """Why it was told to end."""

    @property
    def jobdir(self) -> JobDir | None:
        """The job directory, None before there is one."""
        return None if self.job is None else JobDir(self.job)

    def usd(self, seconds_more: float = 0.0) -> float:
        """Dollars of this start so far, and of so many seconds more."""
        return (self.planned.usd(time.monotonic() - self.began + seconds_more)) or 0.0

    def stop(self, reason: str) -> None:
        """Ask its workers to save and end: they look for this file once a step."""
        self.stopped = self.stopped or reason
        if self.job is not None:
            (self.job / FLAG_FILE).touch()


class Watch:
    """A thread that looks at everything that runs, from `with` to its end."""

    def __init__(self, store: ResultsStore, max_usd: float | None, spent: float) -> None:
        self.store, self.max_usd = store, max_usd
        self.spent = spent
        """Dollars of all starts that have ended."""
        self.stopping = ""
        """Why everything is told to end."""
        self.dearest: dict[str, float] = {}
        """By machine, the most that a cell has cost on it: what the next one may cost, if nothing better is known."""
        self.running: dict[str, Running] = {}
        self._lock = threading.RLock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True, name="experiment-watch")

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def refuses(self, planned: Planned) -> str:
        """Return why a cell must not begin now; empty where it may."""
        if self.stopping:
            return self.stopping
        if self.max_usd is None:
            return ""
        with self._lock:
            used = self.spent + sum(running.usd(self._ahead(running)) for running in self.running.values())
        guesses = (
            planned.usd(planned.forecast.seconds),
            self.dearest.get(str(planned.cell.machine)),
            planned.usd(LEAST_S),
        )
        expected = next((guess for guess in guesses if guess), 0.0)
        if used + expected <= self.max_usd:
            return ""
        return (
            f"budget: {used:.4g} USD are used, this cell needs about {expected:.2g} more, {self.max_usd:g} is the limit"
        )

    def begin(self, planned: Planned) -> Running:
        """Note that a cell begins."""
        with self._lock:
            self.store.start(planned.cell.name)
            running = self.running[planned.cell.name] = Running(planned)
        return running

    def seen(self, cell: str, **facts: Any) -> None:
        """Note that a cell still runs, or how it ended."""
        with self._lock:
            self.store.seen(cell, **facts)

    def end(self, running: Running, usd: float) -> None:
        """Note that a cell has ended, and how many dollars all its starts have cost."""
        with self._lock:
            self.running.pop(running.planned.cell.name, None)
            self.spent += max(0.0, usd - running.planned.spent)
            machine = str(running.planned.cell.machine)
            self.dearest[machine] = max(usd, self.dearest.get(machine, 0.0))

    def stop(self, reason: str) -> None:
        """Ask everything that runs to save and end, and let nothing begin."""
        with self._lock:
            self.stopping = self.stopping or reason
            for running in self.running.values():
                running.stop(self.stopping)

    def _ahead(self, running: Running) -> float:
        """Return the seconds that a cell may go on spending after it is told to end."""
        return LOOK + running.planned.cell.config.launch.timeouts.stop

    def _look(self) -> None:
        noted = time.monotonic()
        while not self._end.wait(LOOK):
            note = time.monotonic() - noted > NOTE
            with self._lock:
                for name in list(self.running):
                    if note:
                        self.store.seen(name)
                used = self.spent + sum(running.usd(self._ahead(running)) for running in self.running.values())
                if self.stopping:
                    self.stop(self.stopping)  # again: a worker that had just begun did not see it
                elif self.max_usd is not None and used > self.max_usd:
                    self.stop(f"budget: {self.max_usd:g} USD would be exceeded")
            noted = time.monotonic() if note else noted


class Watched:
    """A launcher that tells where the job lies as soon as it has it."""

    def __init__(self, launcher: Launcher, tell: Callable[[JobDir], None]) -> None:
        self.launcher, self.tell = launcher, tell

    def run(self, job: JobDir, compute: ComputeConfig) -> None:
        """See `Launcher`; `tell` may refuse."""
        self.tell(job)
        self.launcher.run(job, compute)
