"""A managed job of SkyPilot's: its own controller replaces machines that are taken away, whether or not we live.

It stands where a `Cluster` stands. What it cannot do decides what may be asked of it (`refuse`): none of its machines
can be reached from here, so inputs, outputs and checkpoints go through the store, a stop ends it at its last
checkpoint, and no machine is kept. The controller is a machine too, unless SkyPilot's server itself is the controller;
it serves all jobs and stops itself when it is idle.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...config import ComputeConfig, RecoveryConfig, RunConfig, UserError
from .choosing import Plan
from .cluster import DOWN_SECONDS, QUICK_SECONDS, Cluster, Tick
from .lines import Lines
from .node import EXIT_AGAIN
from .waiting import Pending

log = logging.getLogger(__name__)

RECOVERY = {"strategy": "EAGER_NEXT_REGION", "max_restarts_on_errors": 0, "recover_on_exit_codes": [EXIT_AGAIN]}
"""Other zones and regions first; a mistake of the user's is not tried again."""

SAID = {
    "PENDING": "PROVISIONING",
    "SUBMITTED": "PROVISIONING",
    "STARTING": "PROVISIONING",
    "CANCELLING": "RUNNING",
    "FAILED_PRECHECKS": "FAILED",
    "FAILED_NO_RESOURCE": "FAILED",
    "FAILED_CONTROLLER": "FAILED",
}
"""SkyPilot's words for managed jobs in those that it has for others; any other word is the same."""


def refuse(config: RunConfig, compute: ComputeConfig, *, passes: bool) -> None:
    """Refuse what a managed job cannot do.

    Args:
        passes: whether the run's store can take inputs and outputs.

    Raises:
        UserError: with the way out.
    """
    asked = "compute.recovery.mode=managed"
    if not passes:
        raise UserError(
            f"{asked}: SkyPilot's managed machines cannot be reached from here; give a bucket for inputs, outputs "
            "and checkpoints (checkpoint.store=s3://BUCKET/runs, or a stack that `python src/stack.py register` "
            "made), or compute.recovery.mode=relaunch"
        )
    if compute.keep_on_failure:
        raise UserError(
            f"{asked}: SkyPilot takes the machines down at once; compute.keep_on_failure needs "
            "compute.recovery.mode=relaunch"
        )


class ManagedJob(Cluster):
    """A managed job by name, whether it is there or not."""

    def __init__(self, name: str, record: Path, recovery: RecoveryConfig) -> None:
        super().__init__(name, record)
        self.recovery = recovery
        """After `max_attempts` the job is cancelled, by whoever follows it."""
        self.number: int | None = None
        self.recoveries = 0

    @property
    def stop_command(self) -> str:
        """What a person types to end it."""
        return f"sky jobs cancel --name {self.name}"

    def where(self, minutes: int | None) -> str:
        """Say where the job runs and what becomes of its machines."""
        return f"SkyPilot's managed job {self.name}, whose machines are taken down at its end"

    def launch(self, task: dict[str, Any], idle_minutes: int, show: Callable[[str], None], tick: Tick) -> int:
        """Submit the job to the controller, which is brought up where none runs; return its number."""
        import sky

        resources = {**task["resources"], "job_recovery": RECOVERY}
        if resources.get("use_spot") and self.recovery.on_demand_fallback:
            del resources["use_spot"]
            resources["any_of"] = [{"use_spot": True}, {"use_spot": False}]
        asked = {**task, "resources": resources}
        log.info(
            "SkyPilot manages the job: a controller of its own is started where none runs, which is not in the "
            "cost below; it stops itself when it is idle, and `sky status` shows it"
        )

        def ask() -> int:
            made = sky.Task.from_yaml_config(asked)
            self._request = sky.jobs.launch(made, name=self.name)
            numbers, _ = sky.stream_and_get(self._request, output_stream=Lines(show, self.record))
            return int(numbers[0])

        self.number = Pending(ask, "sky jobs launch").wait(tick)
        return self.number

    def job_status(self, job: int, tick: Tick) -> str:
        """Return what the job does, in SkyPilot's words for other jobs; RECOVERING while machines are replaced."""
        self.number = job
        found = self._record(tick)
        if found is None:
            return "GONE"
        status = str(found["status"].value)
        if found["failure_reason"] and found["status"].is_terminal():
            self.reason = f"{status}: {' '.join(str(found['failure_reason']).split())}"
        self._count(int(found["recovery_count"] or 0))
        return SAID.get(status, status)

    def last_job(self, tick: Tick) -> tuple[int | None, bool]:
        """Return (number, True) of the job where it still runs; (None, False): there is none."""
        found = self._record(tick)
        if found is None or found["status"].is_terminal():
            return None, False
        self.number = int(found["job_id"])
        return self.number, True

    def so_far(self, job: int, tick: Tick) -> dict[str, float]:
        """Return the seconds by phase that the job has taken already."""
        found = self._record(tick)
        if found is None:
            return {}
        start = found["start_at"] or time.time()
        spans = {"provision_s": start - (found["submitted_at"] or start), "job_s": time.time() - start}
        return {name: max(0.0, float(seconds)) for name, seconds in spans.items()}

    def state(self, tick: Tick | None = None) -> str:
        """Return UP: whether machines are there is the controller's affair."""
        return "UP"

    def launched(self, tick: Tick) -> Plan | None:
        """Return None: which machine it gets is known later, and may change."""
        return None

    def found(self, tick: Tick) -> Plan | None:
        """Return the machine of a job that runs; its price is not known from here."""
        record = self._record(tick)
        if record is None:
            return None
        return Plan(
            cloud=str(record["cloud"] or "some cloud"),
            region=str(record["region"] or "any region"),
            hourly_usd=None,
            instance_type=str(record["cluster_resources"] or record["resources"]),
            use_spot="[Spot]" in str(record["cluster_resources"]),
            gpus=int(sum((record["accelerators"] or {}).values())),
        )

    def tail(self, job: int, show: Callable[[str], None]) -> Pending[Any]:
        """Begin to show the job's log, over all its recoveries; return the pending call."""
        import sky

        stream = Lines(show, self.record)
        return Pending(lambda: sky.jobs.tail_logs(job_id=job, follow=True, output_stream=stream), "sky jobs logs")

    def touch(self, name: str, tick: Tick) -> None:
        """Have the job end: its machines cannot be told to save."""
        log.info("a managed job cannot be told to save: it ends at its last checkpoint")
        self.down()

    def fetch(self, names: list[str], root: Path, tick: Tick, nodes: slice = slice(0, 1)) -> None:
        """Fetch nothing: all that the job leaves goes through the store."""

    def autodown(self, minutes: int) -> None:
        """Refuse.

        Raises:
            UserError: always.
        """
        raise UserError("SkyPilot takes the machines of a managed job down at once")

    def down(self) -> None:
        """Cancel the job unless it has ended: the controller takes its machines down."""
        import sky

        found = self._record(lambda: None)
        if found is not None and not found["status"].is_terminal():
            asked = Pending(lambda: sky.get(sky.jobs.cancel(job_ids=[int(found["job_id"])])), "sky jobs cancel")
            asked.wait(seconds=DOWN_SECONDS)

    def _count(self, recoveries: int) -> None:
        if recoveries > self.recoveries:
            log.warning(
                "machines were taken away or lost: SkyPilot's recovery %d goes on from the last checkpoint", recoveries
            )
        self.recoveries = recoveries
        if recoveries >= self.recovery.max_attempts and not self.worn_out:
            self.worn_out = True
            self.down()

    def _record(self, tick: Tick) -> Any:
        """Return SkyPilot's record of the job: by its number, else the newest of its name; None where there is none."""
        import sky

        def ask() -> Any:
            numbers = None if self.number is None else [self.number]
            try:
                said = sky.get(sky.jobs.queue_v2(refresh=False, job_ids=numbers))
            except sky.exceptions.ClusterNotUpError:  # no controller: no job
                return None
            records = said[0] if isinstance(said, tuple) else said
            own = [each for each in records if each["job_name"] == self.name]
            return max(own, key=lambda each: int(each["job_id"]), default=None)

        return Pending(ask, "sky jobs queue").wait(tick, QUICK_SECONDS)
