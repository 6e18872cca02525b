"""Machines for one job until it is done: chosen, brought up, followed to the end, taken down whatever happened."""

import logging
import signal
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...config import ComputeConfig, Detached, Preempted, RunConfig, UserError, WorkerError
from ...job import JobDir
from ...pricing.cost import NO_MACHINE, Attempt, Clock, dollars
from ..failures import failure
from ..signals import Stopping
from . import scripts
from .cluster import Cluster
from .machine import processes
from .messages import explained, no_machine, say_progress, stopped
from .monitor import Exchange, JobMonitor, forget_last_attempt, unless_it_fails
from .offer import Offer, announce, check_price, enter
from .outcome import JobVerdict, verdict
from .secret_cleanup import forget, values_of
from .upload import check_disk_size, stage

log = logging.getLogger(__name__)

DOWN_TRIES = 4


@dataclass
class RecoveryLoop:
    """Brings machines up for one job until it is done, and leaves none behind."""

    job: JobDir
    config: RunConfig
    compute: ComputeConfig
    """Completed by the stack's."""
    stopping: Stopping
    exchange: Exchange
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

    def run(self) -> None:
        """Make attempts until one is done; raise where none will be."""
        spot = bool(self.compute.use_spot)
        limit = self.compute.recovery.max_attempts
        for number in range(1, limit + 1):
            try:
                found, monitor = self._attempt(spot)
            except no_machine() as error:
                if not (spot and self.compute.recovery.on_demand_fallback):
                    raise self._explained(error) from error
                log.warning("%s; going on at the full price", self._explained(error))
                spot = False
                found, monitor = self._attempt(spot)
            if found is JobVerdict.done:
                return
            if self.stopping.asked_by is not None:
                raise KeyboardInterrupt if self.stopping.asked_by == signal.SIGINT else stopped(self.job)
            if found is JobVerdict.failed:
                raise self._failure(monitor)
            word = "was taken away" if found is JobVerdict.preempted else "was taken away or lost"
            if number < limit:
                log.warning("a machine %s: attempt %d of %d goes on from the last checkpoint", word, number + 1, limit)
        raise Preempted(
            f"machines were taken away or lost {limit} times (compute.recovery.max_attempts={limit}); the same command "
            "goes on from the last checkpoint"
        )

    def _attempt(self, spot: bool) -> tuple[JobVerdict, JobMonitor]:
        """Bring machines up (or find those of a driver that died), run the job, take them down; say what its end means.

        Raises:
            UserError: nothing that other machines would change.
            Exception: SkyPilot's own word for machines that cannot be had.
        """
        clock = Clock()
        cluster = Cluster(self.name, self.job.logs / "skypilot.log")
        mirror = self.config.checkpoint.store is None
        monitor = JobMonitor(cluster, self.job, self.stopping, clock, self.exchange, mirror=mirror)
        attempt = Attempt(machine="", nodes=self.nodes, hourly_usd=None, ended="not launched")
        found, leave = None, False
        try:
            clock.enter("plan_s")
            forget_last_attempt(self.job)
            there = None if self.made else self._attach(cluster, monitor, attempt)
            if there is None and not self.made and self._left_behind(monitor.tick):
                attempt.machine, attempt.ended, found, leave = "machines that are gone", "done", JobVerdict.done, True
                self.made.append(attempt)
                return found, monitor
            number, plan = there or self._launch(cluster, monitor, attempt, spot)
            attempt.ended = "stopped"
            if self.config.launch.detach:
                leave, attempt.ended = True, "detached"
                raise Detached(
                    f"the job runs on the cluster {self.name}, which takes itself down "
                    f"{self.compute.idle_minutes_to_autostop} minutes after its end; the same command without "
                    f"launch.detach attaches to it and brings the results, `sky down {self.name}` stops it"
                )
            end = monitor.collect(monitor.wait(number))
            found = verdict(end)
            self.exchange.forget(monitor.tick)
            if found is JobVerdict.done:
                self._check_world(end.result or {}, plan)
            attempt.ended = found.value
            return found, monitor
        except (UserError, KeyboardInterrupt):
            raise
        except no_machine():
            attempt.ended = NO_MACHINE
            raise
        except Exception as error:
            raise self._explained(error) from error
        finally:
            failed = found is JobVerdict.failed
            try:
                kept = failed and self.stopping.asked_by is None and self._keep(cluster, attempt)
                if attempt in self.made and not leave and not kept:
                    clock.enter("down_s")
                    self._take_down(cluster)
            except UserError as error:
                # The command ends with this one: that machines may still run.
                why = self._failure(monitor) if failed else error.__context__
                if isinstance(why, Exception):
                    log.error("%s", self._explained(why))
                raise
            finally:
                clock.enter("")
                attempt.phases = {name: value for name, value in clock.seconds.items() if name != "plan_s"}

    def _explained(self, error: Exception) -> UserError:
        return explained(error, self.name, self.compute.infra)

    def _launch(self, cluster: Cluster, monitor: JobMonitor, attempt: Attempt, spot: bool) -> tuple[int, Offer]:
        """Choose a machine, say which, bring it up; return the job's number and the choice."""
        upload = self.job.root / "upload"
        check_disk_size(self.job.inputs, self.config, self.compute.disk_size)
        stage(self.job, upload, inputs=self.exchange.passing is None)
        plan = cluster.plan(self._task(upload, spot, None), monitor.tick)
        check_price(plan, self.compute)
        enter(attempt, plan)
        announce(self.job.job, plan, self.nodes, self.name)
        self.exchange.send(upload, monitor.tick)
        self.exchange.forget(monitor.tick)
        self.made.append(attempt)  # from now on there may be machines
        monitor.clock.enter("provision_s")
        minutes = self.compute.idle_minutes_to_autostop or 10
        try:
            number = cluster.launch(self._task(upload, spot, plan), minutes, say_progress, monitor.tick)
        except BaseException:
            cluster.give_up_launch()
            raise
        finally:
            forget(values_of(scripts.secrets(self.config)))
        real = cluster.launched(monitor.tick)
        if real is not None and (real.instance_type, real.region) != (plan.instance_type, plan.region):
            enter(attempt, real)
            log.info("got %s", attempt.machine)
            check_price(real, self.compute)
        return number, plan

    def _left_behind(self, tick: Callable[[], None]) -> bool:
        """Take the results of a job whose machines are gone already; a run that is to begin anew does not."""
        found = self.config.resume == "auto" and self.exchange.left_behind(tick)
        if not found:
            forget_last_attempt(self.job)
        return found

    def _attach(self, cluster: Cluster, monitor: JobMonitor, attempt: Attempt) -> tuple[int, Offer] | None:
        """Return the job that a driver which died left running for this very run; what is no use is taken down."""
        number, useful = cluster.last_job(monitor.tick)
        if number is None:
            return None
        plan = cluster.launched(monitor.tick)
        if plan is not None:
            enter(attempt, plan)
        if not useful or plan is None:
            log.info("the cluster %s is left over from a launch that failed: taking it down first", self.name)
            self._take_down(cluster)
            return None
        self.made.append(attempt)
        # Where that cannot be had, what it took before is not in its cost.
        none: dict[str, float] = {}
        before = unless_it_fails(lambda: cluster.so_far(number, monitor.tick), none, "what the job took so far")
        monitor.clock.seconds.update(before)
        log.info("attaching to the job that runs already: %s, cluster %s", attempt.machine, self.name)
        return number, plan

    def _keep(self, cluster: Cluster, attempt: Attempt) -> bool:
        """Keep the machines of a failed job for as long as asked for, and say how to look at them; return whether."""
        minutes, hourly = self.compute.keep_minutes, attempt.hourly_usd
        if not minutes:
            return False
        try:
            cluster.autodown(minutes)
        except Exception as error:
            log.warning("cannot keep the machines (%s): taking them down", error)
            return False
        price = "price n/a"
        if hourly is not None:
            price = f"${hourly:.2f} an hour, {dollars(hourly * minutes / 60)} in all"
        said = "kept for %d idle minutes (%s): `sky status` and then `ssh %s` looks at it, `sky down %s` ends it"
        log.warning(said, minutes, price, self.name, self.name)
        return True

    def _take_down(self, cluster: Cluster) -> None:
        """Take the machines down.

        Raises:
            UserError: that fails again and again; it says what may still cost money.
        """
        reason = ""
        for wait in (*(2.0**n for n in range(DOWN_TRIES - 1)), 0.0):
            try:
                return cluster.down()
            except Exception as error:
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                time.sleep(wait)
            except KeyboardInterrupt:
                reason = "interrupted"
                break
        raise UserError(
            f"machines of {self.name} may still run and cost money ({reason}): remove them with `sky down "
            f"{self.name}`; they take themselves down after {self.compute.idle_minutes_to_autostop} idle minutes"
        )

    def _task(self, upload: Path, spot: bool, plan: Offer | None) -> dict[str, Any]:
        """Return the task; without a plan only as much of it as choosing a machine takes."""
        _, each = processes(self.compute, self.config.launch, plan.gpus if plan else 0)
        envs = scripts.environment(
            self.config,
            self.compute,
            launch_id=self.launch_id,
            processes=each,
            gpus=plan.gpus if plan and self.compute.device.value != "cpu" else 0,
            on_aws=plan is not None and plan.cloud.upper() == "AWS",
        )
        hidden = scripts.secrets(self.config) if plan else {}
        return scripts.task("train", str(upload), self.compute, envs, hidden, use_spot=spot)

    def _check_world(self, result: dict[str, Any], plan: Offer) -> None:
        nodes, each = processes(self.compute, self.config.launch, plan.gpus)
        if result.get("world_size") != nodes * each:
            raise WorkerError(f"{nodes * each} worker processes were asked for, {result.get('world_size')} trained")

    def _failure(self, monitor: JobMonitor) -> UserError:
        if not self.job.read_errors() and not monitor.tail and (said := monitor.said_by_setup()):
            shown = "\n".join(f"  {text}" for text in said[-15:])
            return WorkerError(f"preparing the machine failed; all of it is in {monitor.cluster.record}:\n{shown}")
        return failure(self.job, 1, list(monitor.tail))
