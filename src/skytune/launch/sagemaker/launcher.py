"""The launcher: one training job of SageMaker after the other until the run is done, and nothing left of them."""

import hashlib
import logging
import shutil
import signal
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...config import (
    ComputeConfig,
    Detached,
    Distribution,
    Preempted,
    RunConfig,
    SageMakerConfig,
    UserError,
    WorkerError,
)
from ...config.schema.sagemaker import PREFIX
from ...distributed.preemption import FLAG_FILE
from ...job import JobDir
from ...pricing.cost import NO_MACHINE, Attempt
from ...pricing.sagemaker import SOURCE, listed_price
from ..failures import failure
from ..log_streaming import show_line
from ..remote.attempts import AttemptLoop, RemoteLauncher, insist
from ..remote.closing import check_store_remote, stopped
from ..remote.exchange import Exchange, forget_last_attempt, unless_it_fails
from ..remote.handed_on import secrets
from ..remote.machine import merged
from ..remote.offer import Offer, announce, check_price, enter
from ..remote.outcome import TIME_UP, End, JobVerdict, verdict
from ..remote.s3_transfer import S3Transfer
from ..remote.upload import check_disk_size, stage
from ..signals import Stopping
from . import entry
from .entry import SENT
from .images import check, gpus_of
from .jobs import ENDED, STOP_SECONDS, Cloud, CloudAccount, State, TrainingJobs
from .request import DISK_GB, JobPlace, new_name, training_job

log = logging.getLogger(__name__)

POLL_SECONDS = 3.0
STOP_GRACE_SECONDS = STOP_SECONDS + 120.0
"""What a stop takes on top of `launch.timeouts.stop`: SageMaker's own time, and bringing the results."""

SILENT_SECONDS = 600.0
"""After so long without any answer of SageMaker's the driver gives up; the job ends by itself at `max_hours`."""


class NoMachine(Exception):
    """SageMaker has no machines for a job, wherever it was asked."""


def is_asked(compute: ComputeConfig, stack: Mapping[str, Any] | None = None) -> bool:
    """Whether a run's machine is one of SageMaker's."""
    return str(merged(stack or {}, compute).instance_type or "").startswith(PREFIX)


def price_of(asked: SageMakerConfig, instance: str, region: str) -> tuple[float | None, str]:
    """Return (USD an hour of one machine at the full price, where that comes from); None where nobody knows."""
    if asked.price_per_hour is not None:
        return asked.price_per_hour, "sagemaker.price_per_hour"
    return listed_price(instance, region), SOURCE


class SageMakerLauncher(RemoteLauncher):
    """Runs a job's workers in a training job of SageMaker."""

    def __init__(self, cloud: Cloud, stack: Mapping[str, Any] | None = None) -> None:
        super().__init__(stack)
        self.cloud = cloud

    def machine(self, config: RunConfig) -> ComputeConfig:
        """Return which machines are meant.

        Raises:
            ConfigError: SageMaker has no such thing.
        """
        check(config.compute, config.sagemaker)
        aside = ("infra", "zone", "image_id", "keep_on_failure", "resources", "idle_minutes_to_autostop")
        compute = merged({key: value for key, value in self.stack.items() if key not in aside}, config.compute)
        compute = replace(compute, max_hours=config.compute.max_hours)  # not SkyPilot's default
        check(compute, config.sagemaker)
        return compute

    def places(self, config: RunConfig, region: str) -> list[JobPlace]:
        """Return where a job may run, in this order.

        Raises:
            UserError: no role, or no bucket.
        """
        role, store = config.sagemaker.role or self.role, config.checkpoint.store or ""
        if role is None:
            raise UserError(
                "SageMaker's jobs need an execution role: `python src/stack.py register aws --sagemaker` makes one, "
                "`zenml stack set aws` takes it; or give sagemaker.role=ARN"
            )
        check_store_remote(config)
        if not store.startswith("s3://"):
            raise UserError("SageMaker's jobs need a bucket in their region: checkpoint.store=s3://bucket/folder")
        others = [
            JobPlace(name, role, url.rstrip("/")) for name, url in config.sagemaker.regions.items() if name != region
        ]
        return [JobPlace(region, role, store.rstrip("/")), *others]

    def run(self, job: JobDir, compute: ComputeConfig) -> None:
        """See `Launcher`.

        Raises:
            Preempted: a signal stopped the run, somebody stopped its job, or machines were taken away too often.
            UserError: no machine, no role, credentials, a quota; or a job that may still run, with its name.
        """
        config = job.job.config
        compute = self.machine(config)
        account = self.cloud.connect(compute.region)
        places = self.places(config, account.region)
        exchange = Exchange(job, S3Transfer.from_config(config, job.job.run_key))
        job.logs.mkdir(parents=True, exist_ok=True)
        with Stopping(job.root / FLAG_FILE, config.launch.timeouts.stop + STOP_GRACE_SECONDS) as stopping:
            JobLoop(job, config, compute, stopping, exchange, cloud=self.cloud, account=account, places=places).run()


@dataclass
class JobEnd:
    """What is known of a job that has ended."""

    state: State
    tail: deque[str]


@dataclass
class JobLoop(AttemptLoop[JobEnd]):
    """Jobs for one run."""

    cloud: Cloud = field(kw_only=True)
    account: CloudAccount = field(kw_only=True)
    places: list[JobPlace] = field(kw_only=True)
    _told: bool = False
    _spent: float = 0.0
    _name: str = ""

    def no_machine(self) -> type[Exception]:
        """See `AttemptLoop`."""
        return NoMachine

    def explained(self, error: Exception) -> UserError:
        """See `AttemptLoop`."""
        return error if isinstance(error, UserError) else UserError(f"no machine could be had: {error}")

    def failure(self, known: JobEnd) -> UserError:
        """See `AttemptLoop`."""
        if self.job.read_errors() or (self.job.logs / "rank-0.log").is_file():
            return failure(self.job, 1, list(known.tail))
        shown = "\n".join(f"  {line}" for line in list(known.tail)[-15:])
        return WorkerError(f"the container ended before training began ({known.state.reason or 'no reason'}):\n{shown}")

    def attempt(self, spot: bool) -> tuple[JobVerdict, JobEnd]:
        """See `AttemptLoop`; one region after the other."""
        forget_last_attempt(self.job)
        (self.job.logs / TIME_UP).unlink(missing_ok=True)
        found = self._attach() if not self.made else None
        if found is None and self.results_are_there(self.tick):
            return JobVerdict.done, JobEnd(State("Completed", "Completed"), deque())
        if found is not None:
            return self._follow(*found, Attempt(nodes=self.nodes, source="SageMaker"))
        why = []
        for place in self.places:
            attempt = Attempt(nodes=self.nodes, source="SageMaker")
            jobs = TrainingJobs(self.cloud, self.account, place.region)
            try:
                return self._follow(jobs, self._launch(jobs, place, attempt, spot), attempt)
            except NoMachine as error:
                attempt.ended = NO_MACHINE
                why.append(f"{place.region}: {error}")
                log.warning("%s: %s", place.region, error)
        raise NoMachine("; ".join(why))

    def tick(self) -> None:
        """To be called while something is waited for and nothing runs."""
        self.stopping.check()
        if self.stopping.asked_by == signal.SIGINT:
            raise KeyboardInterrupt
        if self.stopping.asked_by is not None:
            raise Preempted("stopped before training began; the same command begins again")

    def _attach(self) -> tuple[TrainingJobs, str] | None:
        """Return the job that a driver which died left running for this very run."""
        part = f"-{self.job.job.run_key.rpartition('-')[2]}-"
        for place in self.places:
            jobs = TrainingJobs(self.cloud, self.account, place.region)
            for name, status in list(jobs.running(part)):
                if status == "InProgress":
                    log.info("attaching to the job that runs already: %s in %s", name, place.region)
                    return jobs, name
                log.info("the job %s is being stopped: waiting for its end", name)
                jobs.end(name)
        return None

    def _launch(self, jobs: TrainingJobs, place: JobPlace, attempt: Attempt, spot: bool) -> str:
        """Send what a job needs, and begin it; return its name."""
        key, upload, hidden = self.job.job.run_key, self.job.root / "upload", secrets(self.config)
        name = self._name = new_name(key, self._name)
        check_disk_size(self.job.inputs, self.config, self.compute.disk_size or DISK_GB)
        secret = name if hidden else ""
        request = training_job(
            self.config, self._left(), place, key, name, launch_id=self.launch_id, spot=spot, secret=secret
        )
        offer = self._offer(str(self.compute.instance_type), place.region, spot)
        check_price(offer, self.compute)
        enter(attempt, offer)
        announce(self.job.job, offer, self.nodes, f"job {name}")
        stage(self.job, upload, inputs=False)
        if self.config.sagemaker.distribution is Distribution.smddp:
            _keep_torch(upload)
        self.exchange.send(upload, self.tick)
        self.exchange.forget(self.tick)
        sent = S3Transfer(place.url, key, self.config.launch.timeouts.store)
        packed = self.job.root / "packed"
        shutil.make_archive(str(packed / SENT.removesuffix(".zip")), "zip", upload)
        shutil.copyfile(entry.__file__, packed / "entry.py")
        whole = b"".join((packed / file).read_bytes() for file in ("entry.py", SENT))
        request["Environment"]["SKYTUNE_SENT"] = hashlib.sha256(whole).hexdigest()
        sent.put_folder(packed, f".launch/{name}")
        self.tick()
        try:
            if hidden:
                jobs.hide(name, hidden)
            jobs.create(request)
        except BaseException:
            self._tidy(jobs, name)
            raise
        self.made.append(attempt)
        return name

    def _left(self) -> ComputeConfig:
        """Refuse another job once all of them together took `compute.max_hours`."""
        most = self.compute.max_hours
        if most is not None and self._spent >= most * 3600:
            raise UserError(
                f"ended after compute.max_hours={most:g}, which all jobs of the run may take; its checkpoints are kept"
            )
        return self.compute

    def _offer(self, instance: str, region: str, spot: bool) -> Offer:
        price, _ = price_of(self.config.sagemaker, instance, region)
        gpus = gpus_of(instance)
        return Offer(
            cloud="SageMaker", instance_type=instance, region=region, use_spot=spot, gpus=gpus, hourly_usd=price
        )

    def _follow(self, jobs: TrainingJobs, name: str, attempt: Attempt) -> tuple[JobVerdict, JobEnd]:
        """Follow a job to its end, bring what it left, and judge it."""
        if attempt not in self.made:
            state = jobs.state(name)
            enter(attempt, self._offer(state.instance, jobs.region, state.spot))
            self.made.append(attempt)
        if self.config.launch.detach:
            attempt.ended = "detached"
            raise Detached(
                f"the job {name} runs in {jobs.region}; the same command without launch.detach attaches to it and "
                f"brings the results, `aws sagemaker stop-training-job --training-job-name {name}` stops it"
            )
        tail: deque[str] = deque(maxlen=200)
        ended, self._told = False, False
        try:
            state = self._wait(jobs, name, tail)
            ended = True
            attempt.phases = {"job_s": state.billable}
            self._spent += state.billable
            if state.no_machine:
                raise NoMachine(state.reason or f"waited in vain ({state.secondary})")
            self.exchange.collect(lambda: None)
            found = self._judge(state)
            attempt.ended = found.value
            self.exchange.forget(lambda: None)
            if found is JobVerdict.done:
                self.check_world(0 if self.compute.device.value == "cpu" else gpus_of(state.instance))
            return found, JobEnd(state, tail)
        finally:
            attempt.ended = attempt.ended or "stopped"
            if not ended:
                self._leave_nothing(jobs, name)
            self._tidy(jobs, name)
            if ended and self.config.sagemaker.keep_seconds:
                self._tell_pool(name, attempt)

    def _wait(self, jobs: TrainingJobs, name: str, tail: deque[str]) -> State:
        """Show what rank 0 says until the job has ended; a stop is handed on at once."""
        heard, before = time.monotonic(), ""
        while True:
            self.stopping.check()
            if self.stopping.asked_by is not None and not self._told:
                jobs.stop(name)
                self._told = True
            found = unless_it_fails(lambda: jobs.state(name), None, "SageMaker")
            for line in jobs.lines(name):
                show_line(line, tail)
            if found is not None:
                heard = time.monotonic()
                if found.secondary != before and found.status not in ENDED:
                    taken = found.secondary == "Interrupted"
                    log.info("  %s%s", found.secondary, ": SageMaker starts the job again" if taken else "")
                before = found.secondary
                if found.status in ENDED:
                    return found
            if time.monotonic() - heard > SILENT_SECONDS:
                raise UserError(f"SageMaker has not answered for {SILENT_SECONDS / 60:g} minutes")
            time.sleep(POLL_SECONDS)

    def _judge(self, state: State) -> JobVerdict:
        result = self.job.read_result() or {}
        saved = result.get("status") == "preempted"
        if saved and ((self.job.logs / TIME_UP).is_file() or state.secondary == "MaxRuntimeExceeded"):
            return JobVerdict.time_up
        if state.status == "Stopped" and state.secondary == "Stopped" and result.get("status") != "completed":
            if self.stopping.asked_by is None:  # somebody else wants it stopped: not to be begun again
                raise stopped(self.job)
            return JobVerdict.preempted
        lost = state.status == "Stopped" or (saved and state.spot)
        words = {"Completed": "SUCCEEDED", "Failed": "FAILED"}
        status = words.get(state.status, "LOST")
        return verdict(End(job=status, cluster="GONE" if lost else "UP", result=result, errors=self.job.read_errors()))

    def _leave_nothing(self, jobs: TrainingJobs, name: str) -> None:
        """Stop a job that this driver leaves.

        Raises:
            UserError: that fails again and again.
        """
        reason = insist(lambda: jobs.stop(name), (1.0, 2.0, 0.0))
        if not reason:
            return
        raise UserError(
            f"the job {name} may still run and cost money ({reason}): `aws sagemaker stop-training-job "
            f"--training-job-name {name} --region {jobs.region}`; it ends by itself after sagemaker.max_hours"
        )

    def _tidy(self, jobs: TrainingJobs, name: str) -> None:
        """Remove what a job was sent, and what only it may know."""
        unless_it_fails(lambda: jobs.forget(name), None, f"the secret {name} stays in Secrets Manager", logging.WARNING)
        url = next(place.url for place in self.places if place.region == jobs.region)
        sent = S3Transfer(url, self.job.job.run_key, self.config.launch.timeouts.store)
        unless_it_fails(lambda: sent.remove(f".launch/{name}"), None, "tidying up")

    def _tell_pool(self, name: str, attempt: Attempt) -> None:
        minutes, hourly = self.config.sagemaker.keep_seconds / 60, attempt.hourly_usd
        price = "price n/a" if hourly is None else f"${hourly:.2f} an hour"
        log.warning(
            "the machines of %s are kept for %g minutes more (%s) for a job like it: `aws sagemaker "
            "update-training-job --training-job-name %s --resource-config KeepAlivePeriodInSeconds=0` gives them back",
            name,
            minutes,
            price,
            name,
        )


def _keep_torch(upload: Path) -> None:
    """Leave the container's torch as it is: AWS's library is made for that one."""
    for file in (upload / "requirements.txt", upload / "constraints.txt"):
        lines = file.read_text(encoding="utf-8").splitlines()
        file.write_text("\n".join(line for line in lines if not line.startswith("torch==")) + "\n", encoding="utf-8")
