"""How far a trial trains now, and this machine's shares for those that train at once."""

import queue
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..common.text import counted
from ..config import ConfigError, RunConfig
from ..launch import Launcher, LocalLauncher
from ..launch.gpus import device_here, processes_wanted, threads_each, visible_gpus
from ..launch.processes import environment
from ..launch.warm import WarmWorkers
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
