"""Runs one cell of an experiment or of a search in a job directory of its own. It is watched that the cell is still
there (so that a killed start is paid for in the table), and that time and money last."""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..common.text import duration
from ..config import ComputeConfig, NotReachable, Preempted, RunConfig, UserError
from ..data import Prepared
from ..distributed.preemption import FLAG_FILE
from ..job import JobDir
from ..launch import Launcher
from ..launch.remote.attempts import RemoteLauncher
from ..launch.run_job import JobResult
from ..pricing.cost import Attempt, Cost
from .dataset_cache import DATA, MODEL, Splits, model_print, too_few
from .plan import LEAST_S, Planned
from .store import BESIDES, ResultsStore, attempts_of, recorded_by
from .table import done_row, ended_row

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

    def __init__(
        self,
        store: ResultsStore,
        max_usd: float | None = None,
        spent: float = 0.0,
        deadline: float | None = None,
        limit: str = "",
    ) -> None:
        self.store, self.max_usd = store, max_usd
        self.spent = spent
        """Dollars of all starts that have ended."""
        self.deadline = deadline
        """`time.monotonic` at which nothing may run any more, None for never."""
        self.limit = limit
        """The key that sets the deadline, with its value."""
        self.besides: Callable[[], float] = lambda: 0.0
        """Dollars that are no cell's, and not among `spent` yet."""
        self.stopping = ""
        """Why everything is told to end."""
        self.dearest: dict[str, float] = {}
        """By machine, the most that a cell has cost on it: what the next one may cost, if nothing better is known."""
        self.running: dict[str, Running] = {}
        self._lock = threading.RLock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True, name="experiment-watch")

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
        if self.deadline is not None:
            left = self.deadline - time.monotonic()
            needed = max(planned.forecast.seconds or LEAST_S, LOOK + planned.cell.config.launch.timeouts.stop)
            if left < needed:
                return (
                    f"budget: {duration(max(0.0, left))} are left of {self.limit}, this needs about {duration(needed)}"
                )
        if self.max_usd is None:
            return ""
        used = self._used()
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

    def besides_cells(self, attempt: Attempt) -> None:
        """Write down what was paid for no cell's sake."""
        with self._lock:
            self.store.start(BESIDES)
            self.store.seen(BESIDES, ended=attempt.ended, recorded=[asdict(attempt)])
            self.spent += attempt.usd or 0.0

    def _used(self) -> float:
        """Return the dollars that are gone, or will be once all that runs is told to end."""
        with self._lock:
            running = sum(running.usd(self._ahead(running)) for running in self.running.values())
            return self.spent + running + self.besides()

    def _ahead(self, running: Running) -> float:
        """Return the seconds that a cell may go on spending after it is told to end."""
        return LOOK + running.planned.cell.config.launch.timeouts.stop

    def _poll(self) -> None:
        noted = time.monotonic()
        while not self._end.wait(LOOK):
            note = time.monotonic() - noted > NOTE
            with self._lock:
                for name in list(self.running):
                    if note:
                        self.store.seen(name)
                used = self._used()
                if self.stopping:
                    self.stop(self.stopping)  # again: a worker that had just begun did not see it
                elif self.max_usd is not None and used > self.max_usd:
                    self.stop(f"budget: {self.max_usd:g} USD would be exceeded")
                elif self.deadline is not None and self.running:
                    ahead = max(self._ahead(running) for running in self.running.values())
                    if time.monotonic() + ahead > self.deadline:
                        self.stop(f"budget: {self.limit} would be exceeded")
            noted = time.monotonic() if note else noted


class Watched:
    """A launcher that tells where the job lies as soon as it has it."""

    def __init__(self, launcher: Launcher, tell: Callable[[JobDir], None]) -> None:
        self.launcher, self.tell = launcher, tell

    def run(self, job: JobDir, compute: ComputeConfig) -> None:
        """See `Launcher`; `tell` may refuse."""
        self.tell(job)
        self.launcher.run(job, compute)


INTERRUPTED = "interrupted"
"""Why cells stop that run at once with one that was interrupted."""


class CellRunner:
    """Runs cells one by one: whatever happens to one, a row comes out of it."""

    def __init__(self, name: str, store: ResultsStore, watch: Watch, splits: Splits, same_data: bool) -> None:
        self.name, self.store, self.watch, self.splits = name, store, watch, splits
        self.same_data = same_data
        """Whether data that one cell cannot read are those of all."""

    def launching(self, planned: Planned) -> AbstractContextManager[Launcher]:
        """Return what runs the workers of a cell, to be entered for that time."""
        raise NotImplementedError

    def train(self, planned: Planned, config: RunConfig, prepared: Prepared, launcher: Launcher) -> JobResult:
        """Train a cell."""
        raise NotImplementedError

    def row_of(self, planned: Planned, outcome: JobResult, attempts: list[Attempt]) -> dict[str, Any]:
        """Return the row of a cell that has ended well."""
        return done_row(self.name, planned.cell, outcome.job, outcome.result, attempts)

    def failed(self, error: Exception) -> str:
        """Return the status of a cell that ended with an error."""
        return "failed"

    def run_cell(self, planned: Planned) -> dict[str, Any]:
        """Run a cell; return its row, which comes whatever happens, but for an interrupt.

        Raises:
            UserError: the data of all cells cannot be read.
            Preempted: told to end, all of it.
        """
        cell = planned.cell
        refusal = self.watch.refuses(planned)
        if refusal:
            return self._unbegun(planned, "stopped", refusal)
        try:
            prepared = self.splits.of(cell)
        except NotReachable as error:
            return self._unbegun(planned, "stopped", _reason(error))
        except UserError as error:
            if self.same_data:  # nothing could run
                raise
            return self._unbegun(planned, "failed", _reason(error))
        if short := too_few(cell, prepared):
            return self._unbegun(planned, "failed", short)
        with self.launching(planned) as brings:
            return self._run(planned, prepared, brings)

    def _run(self, planned: Planned, prepared: Prepared, brings: Launcher) -> dict[str, Any]:
        cell, running = planned.cell, self.watch.begin(planned)
        row: dict[str, Any] = {}
        try:
            config = cell.config
            if isinstance(brings, RemoteLauncher):
                config = brings.completed(config)
            outcome = self.train(planned, config, prepared, Watched(brings, lambda job: _begun(running, job)))
            attempts = self._ended(running, outcome.result["status"])
            row = self.row_of(planned, outcome, attempts)
        except Preempted:
            attempts = self._ended(running, "stopped" if running.stopped else "preempted")
            if not running.stopped or self.watch.stopping == INTERRUPTED:
                raise
            row = ended_row(self.name, cell, "stopped", running.stopped, attempts, running.jobdir)
        except Exception as error:
            status = self.failed(error)
            attempts = self._ended(running, status)
            row = ended_row(self.name, cell, status, _reason(error), attempts, running.jobdir)
        finally:
            self.watch.end(running, Cost(self._ended(running, "" if row else INTERRUPTED)).usd or 0.0)
        return {**row, DATA: prepared.fingerprint, MODEL: model_print(cell.config)}

    def _unbegun(self, planned: Planned, status: str, reason: str) -> dict[str, Any]:
        """Return the row of a cell that could not begin this time."""
        attempts = attempts_of(self.store, planned.cell, planned.price)
        return ended_row(self.name, planned.cell, status, reason, attempts)

    def _ended(self, running: Running, how: str) -> list[Attempt]:
        """Note how a start ended ("" where that is noted), with what its launcher paid; return all starts so far."""
        planned = running.planned
        if how:
            self.watch.seen(planned.cell.name, ended=how, **recorded_by(running.job))
        return attempts_of(self.store, planned.cell, planned.price)


def _begun(running: Running, job: JobDir) -> None:
    running.job = job.root
    if running.stopped:
        raise Preempted("told to end before it began")


def _reason(error: Exception) -> str:
    """Return why a cell failed, in one line."""
    first = (str(error).strip().splitlines() or [""])[0]
    return first if isinstance(error, UserError) else f"{type(error).__name__}: {first}"
