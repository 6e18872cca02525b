"""Runs the cells of an experiment: at most `benchmark.parallel` at once, each in a job directory of its own, each
written down as soon as it has ended. What is finished is never run again; what was killed goes on
from its checkpoint. It is watched that each cell is still there (so that a killed start is paid for in the table), and
that the money lasts."""

import functools
import logging
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

from ..common.text import duration
from ..config import ComputeConfig, NotReachable, Preempted, RunConfig, UserError
from ..config.folders import home
from ..distributed.preemption import FLAG_FILE
from ..job import JobDir
from ..launch import Launcher, LocalLauncher, SkyPilotLauncher, train
from ..launch.signals import Stopping
from ..launch.skypilot import STORE
from ..launch.skypilot.messages import require
from ..pricing.cost import Attempt, Cost, dollars
from .dataset_cache import DATA, MODEL, Splits, alike, forget_stale, model_print, too_few
from .machines import Machine
from .plan import LEAST_S, Plan, Planned, Prices, asked, make_plan
from .store import ResultsStore, attempts_of, recorded_by
from .table import SPLIT, done_row, ended_row

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


INTERRUPTED = "interrupted"

Launchers = Callable[[Machine], Launcher]


def run_experiment(
    config: RunConfig, launchers: Launchers | None = None, prices: Prices | None = None
) -> list[dict[str, Any]]:
    """Run the cells that have no result yet; return the rows of all that have one, in the design's order.

    Args:
        launchers: where a machine's worker processes run; see `launcher_of` if not given.
        prices: see `make_plan`.

    Raises:
        ConfigError: a bad design; more than the budget.
        UserError: data or a machine's launcher cannot be had; another process runs this experiment.
        Preempted: told to end; the same command goes on.
    """
    prices = functools.cache(prices or asked(config))
    plan = make_plan(config, prices=prices)
    plan.check()
    with ResultsStore(plan.name).claimed() as store:
        plan = make_plan(config, store, prices)  # what another process has finished meanwhile
        forget_stale(plan, store)
        plan = make_plan(config, store, prices)
        find = launchers or launcher_of
        for machine in {planned.cell.machine for planned in plan.todo}:
            find(machine)
        log.info(
            "experiment %s: %d of %d cells to run; results in %s",
            plan.name,
            len(plan.todo),
            len(plan.cells),
            store.path,
        )
        with Watch(store, config.benchmark.max_usd, plan.spent) as watch:
            Runner(plan, store, watch, find).run()
    return stored_rows(plan, store)


def stored_rows(plan: Plan, store: ResultsStore) -> list[dict[str, Any]]:
    """Return the rows that are there, in the design's order."""
    found = store.read()
    return [found[planned.cell.name] for planned in plan.cells if planned.cell.name in found]


def launcher_of(machine: Machine, store: str | None = None) -> Launcher:
    """Return the launcher of a machine: this one's, or SkyPilot's, which brings it.

    Args:
        store: where the checkpoints of cells on machines go that are brought, unless the design names another; the
            stack's.

    Raises:
        UserError: SkyPilot is not installed.
    """
    if machine.local:
        return LocalLauncher()
    require()
    return SkyPilotLauncher({STORE: store} if store else None)


class Runner:
    """The cells that have to be run, and what they share: prepared data."""

    def __init__(self, plan: Plan, store: ResultsStore, watch: Watch, launchers: Launchers) -> None:
        self.plan, self.store, self.watch, self.launchers = plan, store, watch, launchers
        self._splits = Splits(plan.config.seed, keep=2 + plan.config.benchmark.parallel)
        self._same_data = alike([planned.cell for planned in plan.cells])
        self._lock = Lock()
        self._done = 0

    def run(self) -> None:
        """Run all cells that have to be run."""
        todo, parallel = self.plan.todo, self.plan.config.benchmark.parallel
        if parallel == 1:  # in this very thread, where signals arrive
            Stopping.last = None
            for planned in todo:
                self._cell(planned)
                if Stopping.last == signal.SIGINT:
                    raise KeyboardInterrupt
                if Stopping.last is not None:
                    raise Preempted("stopped between two cells; the same command goes on")
            return
        with ThreadPoolExecutor(parallel, thread_name_prefix="cell") as pool:
            futures = [pool.submit(self._cell, planned) for planned in todo]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException as error:
                for future in futures:
                    future.cancel()
                self.watch.stop(
                    INTERRUPTED if isinstance(error, KeyboardInterrupt) else "another cell ended everything"
                )
                raise

    def _cell(self, planned: Planned) -> None:
        """Run a cell; a row is what comes out, whatever happens, but for an interrupt."""
        cell = planned.cell
        refusal = self.watch.refuses(planned)
        if refusal:
            self._write(planned, self._unbegun(planned, "stopped", refusal))
            return
        try:
            prepared = self._splits.of(cell)
        except NotReachable as error:
            self._write(planned, self._unbegun(planned, "stopped", _reason(error)))
            return
        except UserError as error:
            if self._same_data:  # nothing could run
                raise
            self._write(planned, self._unbegun(planned, "failed", _reason(error)))
            return
        if short := too_few(cell, prepared):
            self._write(planned, self._unbegun(planned, "failed", short))
            return
        running = self.watch.begin(planned)
        named = replace(cell.config, name=f"{self.plan.name}-{cell.name.rpartition('-')[2]}")
        row: dict[str, Any] = {}
        try:
            brings = self.launchers(cell.machine)
            if isinstance(brings, SkyPilotLauncher):
                named = brings.completed(named)
            launcher = Watched(brings, lambda job: _begun(running, job))
            outcome = train(named, prepared.train, {SPLIT: prepared.validation}, prepared.tokenizer, launcher=launcher)
            attempts = self._ended(running, "completed")
            row = done_row(self.plan.name, cell, outcome.job, outcome.result, attempts)
        except Preempted:
            attempts = self._ended(running, "stopped" if running.stopped else "preempted")
            if not running.stopped or self.watch.stopping == INTERRUPTED:
                raise
            row = ended_row(self.plan.name, cell, "stopped", running.stopped, attempts, running.jobdir)
        except Exception as error:
            attempts = self._ended(running, "failed")
            row = ended_row(self.plan.name, cell, "failed", _reason(error), attempts, running.jobdir)
        finally:
            self.watch.end(running, Cost(self._ended(running, "" if row else INTERRUPTED)).usd or 0.0)
        self._write(planned, {**row, DATA: prepared.fingerprint, MODEL: model_print(cell.config)})
        if row["status"] == "done" and not self.plan.config.benchmark.keep_models:
            for weights in (home() / row["job"]).glob("outputs/model/*.safetensors"):
                weights.unlink()

    def _unbegun(self, planned: Planned, status: str, reason: str) -> dict[str, Any]:
        """Return the row of a cell that could not begin this time."""
        attempts = attempts_of(self.store, planned.cell, planned.price)
        return ended_row(self.plan.name, planned.cell, status, reason, attempts)

    def _ended(self, running: Running, how: str) -> list[Attempt]:
        """Note how a start ended ("" where that is noted), with what its launcher paid; return all starts so far."""
        planned = running.planned
        if how:
            self.watch.seen(planned.cell.name, ended=how, **recorded_by(running.job))
        return attempts_of(self.store, planned.cell, planned.price)

    def _write(self, planned: Planned, row: dict[str, Any]) -> None:
        self.store.write(planned.cell.name, row)
        with self._lock:
            self._done += 1
            done = self._done
        what = row["status"] if row["status"] == "done" else f"{row['status']}: {row['reason']}"
        facts = [what]
        if row.get("total_s"):
            facts.append(duration(row["total_s"]))
        if row.get("accuracy") is not None:
            facts.append(f"accuracy {row['accuracy']:.3f}")
        if row.get("usd_total") is not None:
            facts.append(dollars(row["usd_total"]))
        cell = planned.cell
        log.info("cell %d of %d (%s, seed %d): %s", done, len(self.plan.todo), cell.label, cell.seed, ", ".join(facts))


def _begun(running: Running, job: JobDir) -> None:
    running.job = job.root
    if running.stopped:
        raise Preempted("told to end before it began")


def _reason(error: Exception) -> str:
    """Return why a cell failed, in one line."""
    first = (str(error).strip().splitlines() or [""])[0]
    return first if isinstance(error, UserError) else f"{type(error).__name__}: {first}"
