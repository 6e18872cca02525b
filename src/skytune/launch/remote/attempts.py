"""Machines for one job until it is done: attempt after attempt, as long as another one may help."""

import logging
import shutil
import signal
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from ...config import ComputeConfig, Preempted, RunConfig, UserError, WorkerError
from ...job import JobDir
from ...pricing.cost import Attempt
from ..signals import Stopping
from .closing import record_cost, stopped
from .exchange import Exchange, Tick
from .machine import ROLE, STORE, processes
from .outcome import JobVerdict

log = logging.getLogger(__name__)

T = TypeVar("T")


class RemoteLauncher:
    """A launcher that brings machines.

    Args:
        stack: what the stack was registered with: keys of `compute`, `store` and `sagemaker_role`.
    """

    def __init__(self, stack: Mapping[str, Any] | None = None) -> None:
        self.stack = dict(stack or {})
        self.store: str | None = self.stack.pop(STORE, None)
        self.role: str | None = self.stack.pop(ROLE, None)

    def completed(self, config: RunConfig) -> RunConfig:
        """Return the configuration with the stack's store where it names none, and say so: what lies there outlives the
        machines, so that the next ones go on from it."""
        if config.checkpoint.store is not None or self.store is None:
            return config
        log.info("checkpoints go to the stack's store, %s (checkpoint.store= names another)", self.store)
        return replace(config, checkpoint=replace(config.checkpoint, store=self.store))


@dataclass
class AttemptLoop(ABC, Generic[T]):
    """Makes attempts; how one is made, its subclass knows."""

    job: JobDir
    config: RunConfig
    compute: ComputeConfig
    """Completed by the stack's."""
    stopping: Stopping
    exchange: Exchange
    made: list[Attempt] = field(default_factory=list)
    launch_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Of all attempts together, so that the next one takes over the checkpoints of the one before at once."""

    @property
    def nodes(self) -> int:
        """Machines of an attempt."""
        return self.compute.num_nodes or 1

    @abstractmethod
    def no_machine(self) -> type[Exception]:
        """Return the class of errors that say that no machine can be had."""

    @abstractmethod
    def attempt(self, spot: bool) -> tuple[JobVerdict, T]:
        """Bring machines up, run the job, take them down; return what its end means, and what is known of it."""

    @abstractmethod
    def explained(self, error: Exception) -> UserError:
        """Return an error in one line that says what to do."""

    @abstractmethod
    def failure(self, known: T) -> UserError:
        """Return why a job failed."""

    def run(self) -> None:
        """Make attempts until one is done, and say what all have cost; raise where none will be."""
        try:
            self._run()
        finally:
            for folder in ("upload", "packed"):
                shutil.rmtree(self.job.root / folder, ignore_errors=True)
            if self.made:
                record_cost(self.job, self.made)

    def results_are_there(self, tick: Tick) -> bool:
        """Take the results of a job whose machines are gone already; a run that is to begin anew does not."""
        if self.made or self.config.resume != "auto" or not self.exchange.existing_results(tick):
            return False
        self.made.append(Attempt(machine="machines that are gone", nodes=self.nodes, ended="done"))
        return True

    def check_world(self, gpus: int) -> None:
        """See that as many workers trained as were asked for.

        Args:
            gpus: of every machine.
        """
        nodes, each = processes(self.compute, self.config.launch, gpus)
        came_up = (self.job.read_result() or {}).get("world_size")
        if came_up != nodes * each:
            raise WorkerError(f"{nodes * each} worker processes were asked for, {came_up} trained")

    def _run(self) -> None:
        spot, number, steps = bool(self.compute.use_spot), 1, -1
        limit = self.compute.recovery.max_attempts
        while True:
            try:
                found, known = self.attempt(spot)
            except self.no_machine() as error:
                if not (spot and self.compute.recovery.on_demand_fallback):
                    raise self.explained(error) from error
                log.warning("%s; going on at the full price", self.explained(error))
                spot = False
                continue
            if found is JobVerdict.done:
                return
            if self.stopping.asked_by is not None:
                raise KeyboardInterrupt if self.stopping.asked_by == signal.SIGINT else stopped(self.job)
            if found is JobVerdict.failed:
                raise self.failure(known)
            if found is JobVerdict.time_up:
                before, steps = steps, int((self.job.read_result() or {}).get("steps") or 0)
                if steps > before:  # else nothing was gained, and nothing will be
                    log.warning("the job has saved step %d, and its time is up: the next one goes on from there", steps)
                    continue
            number += 1
            if number > limit:
                break
            word = "was taken away" if found is JobVerdict.preempted else "was taken away or lost"
            log.warning("a machine %s: attempt %d of %d goes on from the last checkpoint", word, number, limit)
        raise Preempted(
            f"machines were taken away or lost {limit} times (compute.recovery.max_attempts={limit}); the same command "
            "goes on from the last checkpoint"
        )


def insist(call: Callable[[], None], waits: tuple[float, ...]) -> str:
    """Make a call, again after so many seconds each where it fails; return why it never came through, else nothing."""
    reason = ""
    for wait in waits:
        try:
            call()
            return ""
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            time.sleep(wait)
        except KeyboardInterrupt:
            return "interrupted"
    return reason
