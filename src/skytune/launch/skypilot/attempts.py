"""All attempts of one job, and each of them: a machine chosen, brought up, its job followed, taken down."""

import logging
import signal
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...config import ComputeConfig, Detached, Preempted, RunConfig, UserError, WorkerError
from ...job import JobDir
from ..blame import failure
from ..stopping import Stopping
from . import scripts
from .attempt import Following, forget_last_attempt
from .cluster import Cluster, Plan
from .cost import Attempt, Clock
from .machine import processes
from .traces import forget, values_of
from .upload import refuse_small_disk, stage
from .verdict import Verdict, verdict
from .words import explained, no_machine, say_progress, stopped

log = logging.getLogger(__name__)

DOWN_TRIES = 4


@dataclass
class Attempts:
    """Brings machines up for one job until it is done, and leaves none behind."""

    job: JobDir
    config: RunConfig
    compute: ComputeConfig
    """Completed by the stack's."""
    stopping: Stopping
    made: list[Attempt] = field(default_factory=list)
    launch_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def name(self) -> str:
        """The cluster's name: of the run key, so that two pipelines never share one."""
        readable, _, digits = self.job.root.name.rpartition("-")
        return f"skytune-{readable[:24].strip('-._') or 'run'}-{digits}".replace("_", "-")

    @property
    def nodes(self) -> int:
        """Machines of an attempt."""
        return self.compute.num_nodes or 1

    def to_the_end(self) -> None:
        """Make attempts until one is done; raise where none will be."""
        spot = bool(self.compute.use_spot)
        limit = self.compute.recovery.max_attempts
        for number in range(1, limit + 1):
            try:
                found, following = self._attempt(spot)
            except no_machine() as error:
                if not (spot and self.compute.recovery.on_demand_fallback):
                    raise explained(error, self.name, self.compute.infra) from error
                log.warning("%s; going on at the full price", explained(error, self.name, self.compute.infra))
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
        """Bring machines up (or find those of a driver that died), run the job, take them down; say what its end means.

        Raises:
            UserError: nothing that other machines would change.
            Exception: SkyPilot's own word for machines that cannot be had.
        """
        clock = Clock()
        cluster = Cluster(self.name, self.job.logs / "skypilot.log")
        following = Following(cluster, self.job, self.stopping, clock, mirror=self.config.checkpoint.store is None)
        attempt = Attempt(machine="", nodes=self.nodes, hourly_usd=None, ended="not launched")
        found, keep = None, False
        try:
            clock.enter("plan_s")
            forget_last_attempt(self.job)
            there = None if self.made else self._attach(cluster, following, attempt)
            if there is None:
                number, plan = self._launch(cluster, following, attempt, spot)
            else:
                number, plan = there
            attempt.ended = "stopped"
            if self.config.launch.detach:
                keep = True
                raise Detached(self._how_to_go_on())
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
            raise explained(error, self.name, self.compute.infra) from error
        finally:
            if attempt in self.made and not keep:
                clock.enter("down_s")
                self._end(cluster, attempt, found)
            clock.enter("")
            attempt.phases = {name: value for name, value in clock.seconds.items() if name != "plan_s"}

    def _launch(
        self, cluster: Cluster, following: Following, attempt: Attempt, spot: bool
    ) -> tuple[int, Plan]:  # fmt: skip
        """Choose a machine, say which, bring it up; return the job's number and the choice."""
        upload = self.job.root / "upload"
        stage(self.job, upload)
        refuse_small_disk(upload, self.config, self.compute.disk_size)
        plan = cluster.plan(self._task(upload, spot, None), following.tick)
        self._refuse_dear(plan)
        attempt.machine, attempt.hourly_usd = plan.describe(self.nodes), self._hourly(plan)
        log.info("launching %s as cluster %s", attempt.machine, self.name)
        self.made.append(attempt)  # from now on there may be machines
        following.clock.enter("provision_s")
        minutes = self.compute.idle_minutes_to_autostop or 10
        try:
            number = cluster.launch(self._task(upload, spot, plan), minutes, say_progress, following.tick)
        except BaseException:
            cluster.give_up_launch()
            raise
        finally:
            forget(values_of(scripts.secrets(self.config)))
        real = cluster.launched(following.tick)
        if real is not None and (real.instance_type, real.region) != (plan.instance_type, plan.region):
            attempt.machine, attempt.hourly_usd = real.describe(self.nodes), self._hourly(real)
            log.info("got %s", attempt.machine)
            self._refuse_dear(real)
        return number, plan

    def _attach(self, cluster: Cluster, following: Following, attempt: Attempt) -> tuple[int, Plan] | None:
        """Return the job that a driver which died left running for this very run; what is no use is taken down."""
        number, useful = cluster.last_job(following.tick)
        if number is None:
            return None
        plan = cluster.launched(following.tick)
        if plan is not None:
            attempt.machine, attempt.hourly_usd = plan.describe(self.nodes), self._hourly(plan)
        if not useful or plan is None:
            log.info("the cluster %s is left over from a launch that failed: taking it down first", self.name)
            self._down(cluster)
            return None
        self.made.append(attempt)
        log.info("attaching to the job that runs already: %s, cluster %s", attempt.machine, self.name)
        return number, plan

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
        return None if plan.hourly_usd is None else plan.hourly_usd * self.nodes

    def _refuse_dear(self, plan: Plan) -> None:
        limit, price = self.compute.max_hourly_usd, self._hourly(plan)
        if limit is not None and (price is None or price > limit):
            said = "has no known price" if price is None else f"costs ${price:.2f} an hour"
            raise UserError(f"compute.max_hourly_usd={limit:g}: what can be had, {plan.describe(self.nodes)}, {said}")

    def _check_world(self, result: dict[str, Any], plan: Plan) -> None:
        nodes, each = processes(self.compute, self.config.launch, plan.gpus)
        if result.get("world_size") != nodes * each:
            raise WorkerError(f"{nodes * each} worker processes were asked for, {result.get('world_size')} trained")

    def _failure(self, following: Following) -> UserError:
        if not self.job.read_errors() and not following.tail and following.setup:
            shown = "\n".join(f"  {text}" for text in list(following.setup)[-15:])
            return WorkerError(f"preparing the machine failed; all of it is in {following.cluster.record}:\n{shown}")
        return failure(self.job, 1, list(following.tail))

    def _how_to_go_on(self) -> str:
        minutes = self.compute.idle_minutes_to_autostop
        return (
            f"the job runs on the cluster {self.name}, which takes itself down {minutes} minutes after its end; the "
            f"same command without launch.detach attaches to it and brings the results, `sky down {self.name}` stops it"
        )

    def _end(self, cluster: Cluster, attempt: Attempt, found: Verdict | None) -> None:
        """Take the machines down, or keep those of a failed job for a while where that is asked for."""
        minutes = self.compute.keep_on_failure_minutes
        if found is Verdict.failed and minutes and self.stopping.asked_by is None:
            try:
                cluster.autodown(minutes)
                price = "n/a" if attempt.hourly_usd is None else f"${attempt.hourly_usd:.2f}"
                log.warning(
                    "kept for %d idle minutes at %s an hour: `sky status` and then `ssh %s` looks at it, `sky down %s` "
                    "ends it", minutes, price, self.name, self.name,
                )  # fmt: skip
                return
            except Exception as error:
                log.warning("cannot keep the machines (%s): taking them down", error)
        self._down(cluster)

    def _down(self, cluster: Cluster) -> None:
        """Take the machines down; say so loudly where that fails."""
        reason = ""
        for wait in (*(2.0**n for n in range(DOWN_TRIES - 1)), 0.0):
            try:
                return cluster.down()
            except Exception as error:
                reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                time.sleep(wait)
            except KeyboardInterrupt:
                reason = "interrupted"
                break
        minutes = self.compute.idle_minutes_to_autostop
        raise UserError(
            f"machines of the cluster {self.name} may still run and cost money ({reason}): remove them with "
            f"`sky down {self.name}`; they take themselves down after {minutes} idle minutes"
        )
