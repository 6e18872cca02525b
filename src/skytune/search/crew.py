"""Trials at once: how far each trains now, threads that wait for them, this machine's shares."""

import queue
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..common.text import counted
from ..config import ConfigError, Preempted, RunConfig
from ..launch import Launcher, LocalLauncher
from ..launch.gpus import device_here, processes_wanted, threads_each, visible_gpus
from ..launch.local import environment
from ..launch.signals import Stopping
from ..launch.warm import WarmWorkers
from ..study.cell_runner import INTERRUPTED
from ..study.plan import Planned


@dataclass(frozen=True)
class Leg(Planned):
    """A cell on its way from one rung to the next."""

    trial: int = -1
    """-1 for the confirmation."""

    setting: Mapping[str, Any] = field(default_factory=dict)
    rung: int = 0
    stop_at: Callable[[int], int | None] = lambda _: None
    """Optimizer step at which it stops, of all of them; None for its end."""


class Crew:
    """Runs legs, at most so many at once: one alone in this very thread, where signals arrive.

    Args:
        run: runs one.
        stop: asks those that run to save and end; called with the reason.
    """

    def __init__(self, run: Callable[[Leg], None], stop: Callable[[str], None], parallel: int) -> None:
        self.run, self.stop = run, stop
        self.pool = ThreadPoolExecutor(parallel, thread_name_prefix="trial") if parallel > 1 else None
        self.parallel = parallel
        self.running: dict[Future[None], Leg] = {}

    def start(self, leg: Leg) -> None:
        """Run a leg, or have it run."""
        if self.pool is not None:
            self.running[self.pool.submit(self.run, leg)] = leg
            return
        self.run(leg)
        if Stopping.last == signal.SIGINT:
            raise KeyboardInterrupt
        if Stopping.last is not None:
            raise Preempted("stopped between two trials; the same command goes on")

    @property
    def busy(self) -> list[tuple[int, int]]:
        """Trials on their way, with the rung that they go to."""
        return [(leg.trial, leg.rung) for future, leg in self.running.items() if not future.done()]

    def wait(self, trials: set[int] | None = None) -> None:
        """Wait for all, or for the legs of some trials."""
        self._collect([future for future, leg in self.running.items() if trials is None or leg.trial in trials])

    def wait_one(self) -> None:
        """Wait until one has ended."""
        done, _ = wait(self.running, return_when=FIRST_COMPLETED)
        self._collect(list(done))

    def wait_free(self) -> None:
        """Wait until another one can begin at once."""
        while len(self.busy) >= self.parallel:
            self.wait_one()

    def _collect(self, futures: Sequence[Future[None]]) -> None:
        try:
            for future in futures:
                future.result()
                del self.running[future]
        except BaseException as error:
            for future in self.running:
                future.cancel()
            why = INTERRUPTED if isinstance(error, KeyboardInterrupt) else "another trial ended everything"
            self.stop(why)
            raise

    def close(self) -> None:
        """Wait for what still runs (it was asked to save and end)."""
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)


class Slots:
    """The shares of this machine, one for every trial that runs at once, and the process that their workers are forked
    from."""

    def __init__(self, config: RunConfig, make: Callable[[], Launcher] | None) -> None:
        self.config, self.free = config, queue.SimpleQueue[Launcher]()
        self.warm: WarmWorkers | None = None
        if make is not None:
            for _ in range(config.search.at_once):
                self.free.put(make())
            return
        parallel, launch = config.search.parallel, config.launch
        self.warm = WarmWorkers() if config.search.warm else None
        gpus = visible_gpus() if device_here(config.compute) == "cuda" else []
        each = len(gpus) // parallel if launch.num_processes == "auto" else int(launch.num_processes)
        if gpus and not 1 <= each <= len(gpus) // parallel:
            raise ConfigError(
                f"search.parallel={parallel}: {counted(len(gpus), 'GPU')} here, and each trial takes {max(1, each)}; "
                f"use search.parallel={max(1, len(gpus) // max(1, each))}"
            )
        for index in range(parallel):
            own = gpus[index * each : (index + 1) * each] if parallel > 1 else []
            self.free.put(LocalLauncher(gpus=own, shares=parallel, warm=self.warm))

    def __enter__(self) -> "Slots":
        return self

    def __exit__(self, *_: object) -> None:
        if self.warm is not None:
            self.warm.close()

    def warm_up(self) -> None:
        """Begin to import what the first worker needs."""
        launch, parallel = self.config.launch, self.config.search.parallel
        if self.warm is not None and processes_wanted(self.config.compute, launch) == 1:
            self.warm.prepare(environment(1, threads_each(launch, parallel)))

    @contextmanager
    def take(self) -> Iterator[Launcher]:
        """Lend a launcher, once one is free."""
        launcher = self.free.get()
        try:
            yield launcher
        finally:
            self.free.put(launcher)
