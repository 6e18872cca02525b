"""Machines for one job until it is done: chosen, brought up, followed to the end, taken down whatever happened."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...config import Detached, UserError, WorkerError
from ...job import Job
from ...pricing.cost import NO_MACHINE, Attempt, Clock, dollars
from ..failures import failure
from ..remote.attempts import AttemptLoop
from ..remote.exchange import forget_last_attempt, unless_it_fails
from ..remote.handed_on import secrets, worker_environment
from ..remote.machine import processes
from ..remote.offer import Offer, announce, check_price, enter
from ..remote.outcome import JobVerdict, verdict
from ..remote.upload import check_disk_size, stage
from . import scripts
from .cluster import Cluster
from .kept import KeptCluster
from .messages import explained, log_progress, no_machine
from .monitor import JobMonitor
from .secret_cleanup import forget, values_of

log = logging.getLogger(__name__)

IMDS = "http://169.254.169.254"
"""EC2's metadata service, which announces that a spot machine is taken away."""


@dataclass
class RecoveryLoop(AttemptLoop[JobMonitor]):
    """Brings machines up for one job until it is done, and leaves none behind."""

    kept: KeptCluster | None = field(default=None, kw_only=True)
    """Where machines stay for the next job."""

    @staticmethod
    def job_name(job: Job) -> str:
        """Return SkyPilot's name of a job."""
        return f"{job.kind}-{job.run_key.rpartition('-')[2]}-{job.stop_at_step or 'end'}"

    @property
    def name(self) -> str:
        """The cluster's name: of the run key, so that two pipelines never share one."""
        if self.kept is not None:
            return self.kept.cluster.name
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
        found, leave, machine, job = None, False, None, 0
        try:
            clock.enter("plan_s")
            forget_last_attempt(self.job)
            there = None if self.made else self._attach(cluster, monitor, attempt)
            job, machine = there or (0, None)
            if not job and self.results_are_there(monitor.tick):
                return JobVerdict.done, monitor
            forget_last_attempt(self.job)
            number, plan = (job, machine) if job and machine else self._launch(cluster, monitor, attempt, spot, machine)
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
                self.check_world(plan.gpus)
            attempt.ended = found.value
            return found, monitor
        except (UserError, KeyboardInterrupt):
            raise
        except no_machine():
            attempt.ended = NO_MACHINE
            raise
        except Exception as error:
            if machine is not None and not job and self.stopping.asked_by is None:
                log.warning("%s: the machines that were there do not take the job", self.explained(error))
                found = JobVerdict.lost
                attempt.ended = found.value
                return found, monitor
            raise self.explained(error) from error
        finally:
            failed = found is JobVerdict.failed
            try:
                leave = leave or (
                    self._stays(found, monitor) if self.kept is not None else failed and self._keep(cluster, attempt)
                )
                if attempt in self.made and not leave:
                    clock.enter("down_s")
                    self._take_down(cluster)
            except UserError as error:
                leave = True
                # The command ends with this one: that machines may still run.
                why = self.failure(monitor) if failed else error.__context__
                if isinstance(why, Exception):
                    log.error("%s", self.explained(why))
                raise
            finally:
                clock.enter("")
                attempt.phases = {name: value for name, value in clock.seconds.items() if name != "plan_s"}
                if self.kept is not None and self.kept.works:
                    self.kept.end(up=leave)

    def explained(self, error: Exception) -> UserError:
        """See `AttemptLoop`."""
        return explained(error, self.name, self.compute.infra)

    def _launch(
        self, cluster: Cluster, monitor: JobMonitor, attempt: Attempt, spot: bool, there: Offer | None
    ) -> tuple[int, Offer]:
        """Choose a machine, say which, bring it up, unless it is there; return the job's number and the choice."""
        upload = self.job.root / "upload"
        check_disk_size(self.job.inputs, self.config, self.compute.disk_size)
        stage(self.job, upload, inputs=self.exchange.transfer is None)
        plan = there or cluster.plan(self._task(upload, spot, None), monitor.tick)
        check_price(plan, self.compute)
        enter(attempt, plan)
        if there is None:
            announce(self.job.job, plan, self.nodes, f"cluster {self.name}")
        self.exchange.send(upload, monitor.tick)
        self.exchange.forget(monitor.tick)
        self.made.append(attempt)  # from now on there may be machines
        if self.kept is not None:
            self.kept.begin(attempt)
        monitor.clock.enter("provision_s")
        minutes = self.compute.idle_minutes_to_autostop or 10
        try:
            if there is not None:
                cluster.clear(monitor.tick)
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

    def _attach(self, cluster: Cluster, monitor: JobMonitor, attempt: Attempt) -> tuple[int, Offer] | None:
        """Return the job that a driver which died left running for this very run, or job 0 on machines that wait for
        one; what is no use is taken down."""
        last = cluster.last_job(monitor.tick)
        if last is None:
            if self.kept is not None:
                self.kept.gone()
            return None
        plan = cluster.launched(monitor.tick)
        if plan is not None:
            enter(attempt, plan)
        useful = last.runs or last.succeeded
        if self.kept is not None:
            useful = useful and last.name == self.job_name(self.job.job)
            fits = plan is not None and self.compute.instance_type in (None, plan.instance_type)
            if plan is not None and fits and last.state == "UP" and not (last.runs or useful):
                return 0, plan
        if not useful or plan is None:
            log.info("the cluster %s is left over from another launch: taking it down first", self.name)
            self._take_down(cluster)
            if self.kept is not None:
                self.kept.gone()
            return None
        self.made.append(attempt)
        if self.kept is not None:
            self.kept.begin(attempt)
        else:
            # Where that cannot be had, what it took before is not in its cost.
            none: dict[str, float] = {}
            so_far = lambda: cluster.so_far(last.number, monitor.tick)  # noqa: E731
            monitor.clock.seconds.update(unless_it_fails(so_far, none, "what the job took so far"))
        log.info("attaching to the job that runs already: %s, cluster %s", attempt.machine, self.name)
        return last.number, plan

    def _keep(self, cluster: Cluster, attempt: Attempt) -> bool:
        """Keep the machines of a failed job for as long as asked for, and say how to look at them; return whether."""
        minutes, hourly = self.compute.keep_minutes, attempt.hourly_usd
        if not minutes or self.stopping.asked_by is not None:
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

    @staticmethod
    def _stays(found: JobVerdict | None, monitor: JobMonitor) -> bool:
        """Whether machines that are kept are fit for another job."""
        return found is JobVerdict.done or (found is JobVerdict.failed and monitor.ended != "FAILED_SETUP")

    def _take_down(self, cluster: Cluster) -> None:
        cluster.take_down(self.compute.idle_minutes_to_autostop)

    def _task(self, upload: Path, spot: bool, plan: Offer | None) -> dict[str, Any]:
        """Return the task; without a plan only as much of it as choosing a machine takes."""
        _, each = processes(self.compute, self.config.launch, plan.gpus if plan else 0)
        gpus = plan.gpus if plan and self.compute.device.value != "cpu" else 0
        envs = worker_environment(self.launch_id, each, gpus, self.compute.max_hours)
        if plan is not None and plan.cloud.upper() == "AWS":
            envs["SKYTUNE_IMDS"] = IMDS
        hidden = secrets(self.config) if plan else {}
        return scripts.task(self.job_name(self.job.job), str(upload), self.compute, envs, hidden, use_spot=spot)

    def failure(self, monitor: JobMonitor) -> UserError:
        """See `AttemptLoop`."""
        if not self.job.read_errors() and not monitor.tail and (lines := monitor.setup_output()):
            shown = "\n".join(f"  {text}" for text in lines[-15:])
            return WorkerError(f"preparing the machine failed; all of it is in {monitor.cluster.record}:\n{shown}")
        return failure(self.job, 1, list(monitor.tail))
