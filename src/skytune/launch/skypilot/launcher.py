"""The launcher: attempt after attempt until the job is done, and no machine left behind."""

import json
import logging
import os
import shutil
import signal
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...config import ComputeConfig, Preempted, RunConfig, UserError, WorkerError
from ...job import JobDir
from ...training.preemption import FLAG_FILE
from ..local import failure
from ..stopping import Stopping
from . import scripts
from .attempt import Following, forget_last_attempt
from .cluster import Cluster, Plan
from .cost import Attempt, Clock, line, report
from .machine import VARIABLE, merged, processes
from .upload import stage
from .verdict import Verdict, verdict
from .words import explained, no_machine, require, say_progress, stopped

log = logging.getLogger(__name__)

DOWN_TRIES = 4
STOP_GRACE_SECONDS = 60.0
"""What a stop takes on top of `launch.stop_seconds` where the workers are on other machines."""


class SkyPilotLauncher:
    """Brings machines up with SkyPilot for one job."""

    def __init__(self, stack: Mapping[str, Any] | None = None) -> None:
        """Begin.

        Args:
            stack: what the stack was registered with: keys of `compute`.
        """
        self.stack = dict(stack or {})

    @classmethod
    def of_environment(cls) -> "SkyPilotLauncher | None":
        """Return the launcher that a step operator asks for; None where there is none."""
        said = os.environ.get(VARIABLE)
        return cls(json.loads(said)) if said else None

    def run(self, job: JobDir, compute: ComputeConfig) -> None:
        """See `Launcher`.

        Raises:
            Preempted: a signal stopped the run, or machines were taken away more often than it may begin again.
            UserError: no machine could be had, one is too dear, credentials; or one was left running, with its name.
        """
        require()
        config = job.read_job().config
        compute = merged(self.stack, compute)
        _refuse_local_store(config)
        shutil.rmtree(job.root / "upload", ignore_errors=True)
        job.logs.mkdir(parents=True, exist_ok=True)
        with Stopping(job.root / FLAG_FILE, config.launch.stop_seconds + STOP_GRACE_SECONDS) as stopping:
            running = _Run(job, config, compute, stopping)
            try:
                running.to_the_end()
            finally:
                shutil.rmtree(job.root / "upload", ignore_errors=True)
                if running.attempts:
                    _tell_cost(job, running.attempts)


@dataclass
class _Run:
    """All attempts of one job."""

    job: JobDir
    config: RunConfig
    compute: ComputeConfig
    stopping: Stopping
    attempts: list[Attempt] = field(default_factory=list)
    launch_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def name(self) -> str:
        """The cluster's name: of the run key, so that two pipelines never share one."""
        readable, _, digits = self.job.root.name.rpartition("-")
        return f"skytune-{readable[:24].strip('-._') or 'run'}-{digits}".replace("_", "-")

    def to_the_end(self) -> None:
        """Make attempts until one is done; raise where none will be."""
        spot = bool(self.compute.use_spot)
        limit = self.compute.recovery.max_attempts
        for number in range(1, limit + 1):
            try:
                found, following = self._attempt(spot)
            except no_machine() as error:
                if not (spot and self.compute.recovery.on_demand_fallback):
                    raise explained(error, self.name) from error
                log.warning("%s; going on at the full price", explained(error, self.name))
                spot = False
                found, following = self._attempt(spot)
            if found is Verdict.done:
                return
            if self.stopping.asked_by is not None:
                raise KeyboardInterrupt if self.stopping.asked_by == signal.SIGINT else stopped(self.job)
            if found is Verdict.failed:
                raise self._failure(following)
            word = "was taken away" if found is Verdict.preempted else "was taken away or lost"
            if number < limit:
                log.warning("a machine %s: attempt %d of %d goes on from the last checkpoint", word, number + 1, limit)
        raise Preempted(
            f"machines were taken away or lost {limit} times (compute.recovery.max_attempts={limit}); the same command "
            "goes on from the last checkpoint"
        )

    def _attempt(self, spot: bool) -> tuple[Verdict, Following]:
        """Bring machines up, run the job, take them down; return what its end means."""
        clock = Clock()
        cluster = Cluster(self.name, self.job.logs / "skypilot.log")
        following = Following(cluster, self.job, self.stopping, clock, mirror=self.config.checkpoint.store is None)
        attempt = Attempt(machine="", nodes=self.compute.num_nodes or 1, hourly_usd=None, ended="not launched")
        upload = self.job.root / "upload"
        clock.enter("plan_s")
        try:
            forget_last_attempt(self.job)
            stage(self.job, upload)
            plan = cluster.plan(self._task(upload, spot, None), following.tick)
            self._refuse_dear(plan)
            task = self._task(upload, spot, plan)
            attempt.machine, attempt.hourly_usd = plan.describe(attempt.nodes), self._hourly(plan)
            log.info("launching %s as cluster %s", attempt.machine, self.name)
            self.attempts.append(attempt)
        except no_machine():
            raise
        except Exception as error:
            raise explained(error, self.name) from error
        clock.enter("provision_s")
        try:
            try:
                number = cluster.launch(task, self.compute.idle_minutes_to_autostop or 10, say_progress, following.tick)
            except BaseException:
                cluster.give_up_launch()
                raise
            attempt.ended = "stopped"
            real = cluster.launched(following.tick)
            if real is not None and real.instance_type + real.region != plan.instance_type + plan.region:
                attempt.machine, attempt.hourly_usd = real.describe(attempt.nodes), self._hourly(real)
                log.info("got %s", attempt.machine)
            end = following.collect(following.to_the_end(number))
            found = verdict(end)
            if found is Verdict.done:
                self._check_world(end.result or {}, plan)
            attempt.ended = found.value
            return found, following
        except (UserError, KeyboardInterrupt):
            raise
        except no_machine():
            attempt.ended = "no machine"
            raise
        except Exception as error:
            raise explained(error, self.name) from error
        finally:
            clock.enter("down_s")
            self._down(cluster)
            clock.enter("")
            attempt.phases = {name: value for name, value in clock.seconds.items() if name != "plan_s"}

    def _task(self, upload: Path, spot: bool, plan: Plan | None) -> dict[str, Any]:
        """Return the task; without a plan only as much of it as choosing a machine takes."""
        _, each = processes(self.compute, self.config.launch, plan.gpus if plan else 0)
        envs = scripts.environment(
            self.config, self.compute, launch_id=self.launch_id, processes=each,
            gpus=plan.gpus if plan and self.compute.device.value != "cpu" else 0,
            on_aws=plan is not None and plan.cloud.upper() == "AWS",
        )  # fmt: skip
        hidden = scripts.secrets(self.config) if plan else {}
        return scripts.task("train", str(upload), self.compute, envs, hidden, use_spot=spot)

    def _hourly(self, plan: Plan) -> float | None:
        return None if plan.hourly_usd is None else plan.hourly_usd * (self.compute.num_nodes or 1)

    def _refuse_dear(self, plan: Plan) -> None:
        limit, price = self.compute.max_hourly_usd, self._hourly(plan)
        if limit is not None and (price is None or price > limit):
            said = "has no known price" if price is None else f"costs ${price:.2f} an hour"
            raise UserError(
                f"compute.max_hourly_usd={limit:g}: the cheapest that fits, "
                f"{plan.describe(self.compute.num_nodes or 1)}, {said}"
            )

    def _check_world(self, result: dict[str, Any], plan: Plan) -> None:
        nodes, each = processes(self.compute, self.config.launch, plan.gpus)
        if result.get("world_size") != nodes * each:
            raise WorkerError(f"{nodes * each} worker processes were asked for, {result.get('world_size')} trained")

    def _failure(self, following: Following) -> UserError:
        if not self.job.read_errors() and not following.tail and following.setup:
            shown = "\n".join(f"  {text}" for text in list(following.setup)[-15:])
            return WorkerError(f"preparing the machine failed; all of it is in {following.cluster.record}:\n{shown}")
        return failure(self.job, 1, list(following.tail))

    def _down(self, cluster: Cluster) -> None:
        """Take the machines down; say so loudly where that fails."""
        for wait in (*(2.0**n for n in range(DOWN_TRIES - 1)), 0.0):
            try:
                return cluster.down()
            except Exception as error:
                reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                if wait:
                    time.sleep(wait)
            except KeyboardInterrupt:
                reason = "interrupted"
                break
        minutes = self.compute.idle_minutes_to_autostop
        raise UserError(
            f"machines of the cluster {self.name} may still run and cost money ({reason}): remove them with "
            f"`sky down {self.name}`; they take themselves down after {minutes} idle minutes"
        )


def _refuse_local_store(config: RunConfig) -> None:
    store = config.checkpoint.store
    if store and ("://" not in store or store.startswith(("file://", "memory://"))):
        raise UserError(
            f"checkpoint.store={store}: is on this machine, the workers run on others; give a URL "
            "(s3://bucket/folder), or null, which copies the checkpoints here while training runs"
        )


def _tell_cost(job: JobDir, attempts: list[Attempt]) -> None:
    """Say what the machines took, and add it to the job's result: the step hands it to report and metadata."""
    log.info("%s", line(attempts))
    result, found = job.read_result(), report(attempts)
    if result is not None:
        phases = {name: value for name, value in found["phases"].items() if name != "job_s"}
        spent = {"cost_usd": "n/a" if found["usd"] is None else found["usd"], "machine_attempts": len(attempts)}
        job.write_result({**result, **spent, "cost": found, "phases": {**phases, **(result.get("phases") or {})}})
    (job.outputs / "cost.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
