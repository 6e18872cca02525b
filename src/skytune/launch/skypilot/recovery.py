"""Machines for one job until it is done: chosen, brought up, followed to the end, taken down whatever happened."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config import Detached, UserError, WorkerError
from ...pricing.cost import NO_MACHINE, Attempt, Clock, dollars
from ..failures import failure
from ..remote.attempts import AttemptLoop
from ..remote.exchange import forget_last_attempt, unless_it_fails
from ..remote.handed_on import secrets
from ..remote.machine import processes
from ..remote.offer import Offer, announce, check_price, enter
from ..remote.outcome import JobVerdict, verdict
from ..remote.upload import check_disk_size, stage
from . import scripts
from .cluster import Cluster
from .messages import explained, log_progress, no_machine
from .monitor import JobMonitor
from .secret_cleanup import forget, values_of

log = logging.getLogger(__name__)

DOWN_TRIES = 4


@dataclass
class RecoveryLoop(AttemptLoop[JobMonitor]):
    """Brings machines up for one job until it is done, and leaves none behind."""

    @property
    def name(self) -> str:
        """The cluster's name: of the run key, so that two pipelines never share one."""
        readable, _, digits = self.job.root.name.rpartition("-")
        return f"skytune-{readable[:24].strip('-._') or 'run'}-{digits}".replace("_", "-")

    def no_machine(self) -> type[Exception]:
        """See `AttemptLoop`."""
        return no_machine()

    def attempt(self, spot: bool) -> tuple[JobVerdict, JobMonitor]:
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
            if there is None and not self.made and self._existing_results(monitor.tick):
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
            raise self.explained(error) from error
        finally:
            failed = found is JobVerdict.failed
            try:
                kept = failed and self.stopping.asked_by is None and self._keep(cluster, attempt)
                if attempt in self.made and not leave and not kept:
                    clock.enter("down_s")
                    self._take_down(cluster)
            except UserError as error:
                # The command ends with this one: that machines may still run.
                why = self.failure(monitor) if failed else error.__context__
                if isinstance(why, Exception):
                    log.error("%s", self.explained(why))
                raise
            finally:
                clock.enter("")
                attempt.phases = {name: value for name, value in clock.seconds.items() if name != "plan_s"}

    def explained(self, error: Exception) -> UserError:
        """See `AttemptLoop`."""
        return explained(error, self.name, self.compute.infra)

    def _launch(self, cluster: Cluster, monitor: JobMonitor, attempt: Attempt, spot: bool) -> tuple[int, Offer]:
        """Choose a machine, say which, bring it up; return the job's number and the choice."""
        upload = self.job.root / "upload"
        check_disk_size(self.job.inputs, self.config, self.compute.disk_size)
        stage(self.job, upload, inputs=self.exchange.transfer is None)
        plan = cluster.plan(self._task(upload, spot, None), monitor.tick)
        check_price(plan, self.compute)
        enter(attempt, plan)
        announce(self.job.job, plan, self.nodes, f"cluster {self.name}")
        self.exchange.send(upload, monitor.tick)
        self.exchange.forget(monitor.tick)
        self.made.append(attempt)  # from now on there may be machines
        monitor.clock.enter("provision_s")
        minutes = self.compute.idle_minutes_to_autostop or 10
        try:
            number = cluster.launch(self._task(upload, spot, plan), minutes, log_progress, monitor.tick)
        except BaseException:
            cluster.give_up_launch()
            raise
        finally:
            forget(values_of(secrets(self.config)))
        real = cluster.launched(monitor.tick)
        if real is not None and (real.instance_type, real.region) != (plan.instance_type, plan.region):
            enter(attempt, real)
            log.info("got %s", attempt.machine)
            check_price(real, self.compute)
        return number, plan

    def _existing_results(self, tick: Callable[[], None]) -> bool:
        """Take the results of a job whose machines are gone already; a run that is to begin anew does not."""
        found = self.config.resume == "auto" and self.exchange.existing_results(tick)
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
        message = "kept for %d idle minutes (%s): `sky status` and then `ssh %s` looks at it, `sky down %s` ends it"
        log.warning(message, minutes, price, self.name, self.name)
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
        hidden = secrets(self.config) if plan else {}
        return scripts.task("train", str(upload), self.compute, envs, hidden, use_spot=spot)

    def _check_world(self, result: dict[str, Any], plan: Offer) -> None:
        nodes, each = processes(self.compute, self.config.launch, plan.gpus)
        if result.get("world_size") != nodes * each:
            raise WorkerError(f"{nodes * each} worker processes were asked for, {result.get('world_size')} trained")

    def failure(self, monitor: JobMonitor) -> UserError:
        """See `AttemptLoop`."""
        if not self.job.read_errors() and not monitor.tail and (lines := monitor.setup_output()):
            shown = "\n".join(f"  {text}" for text in lines[-15:])
            return WorkerError(f"preparing the machine failed; all of it is in {monitor.cluster.record}:\n{shown}")
        return failure(self.job, 1, list(monitor.tail))
