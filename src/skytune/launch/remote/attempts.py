"""Machines for one job until it is done: attempt after attempt, as long as another one may help."""

import logging
import signal
import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ...config import ComputeConfig, Preempted, RunConfig, UserError
from ...job import JobDir
from ...pricing.cost import Attempt
from ..signals import Stopping
from .closing import stopped
from .exchange import Exchange
from .outcome import JobVerdict

log = logging.getLogger(__name__)

T = TypeVar("T")


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
        """Make attempts until one is done; raise where none will be."""
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
