"""A job on machines: followed to its end, what it left brought back, by way of its store where that can take files."""

import logging
import re
import signal
import time
from collections import deque
from functools import partial
from typing import Any

from ...common.background import Pending
from ...config import Preempted
from ...distributed.preemption import FLAG_FILE
from ...job import JobDir
from ...pricing.cost import Clock
from ..log_streaming import show_line
from ..remote.exchange import Exchange, unless_it_fails
from ..remote.outcome import ENDED, End
from ..signals import Stopping
from .cluster import Cluster

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
CALM_SECONDS = 8.0
"""How long a job that runs is not asked for as long as its log goes on: each question takes a second of its machine."""

STATE_SECONDS = 20.0
"""How often the cloud is asked whether all machines are there; at once where the job does not answer."""

SILENT_SECONDS = 180.0
"""After so long without any answer about the job, its machines count as lost."""

MIRROR_SECONDS = 30.0
"""Without a store that outlives the machines: how often checkpoints are copied to this one."""

SETTLE_SECONDS = 8.0
"""What the cloud may take to say that a machine is gone whose peers have noticed it."""

PREFIX = re.compile(r"^\((?:(?P<name>[^(),]*),? )?(?:rank=(?P<rank>\d+), )?pid=\d+(?:, ip=[^)]*)?\) ?")
"""What SkyPilot puts before every line of a job's log."""


class JobMonitor:
    """Follows a job on a cluster; says what rank 0 says."""

    def __init__(
        self, cluster: Cluster, job: JobDir, stopping: Stopping, clock: Clock, exchange: Exchange, *, mirror: bool
    ) -> None:
        self.cluster, self.job, self.stopping, self.clock = cluster, job, stopping, clock
        self.exchange = exchange
        self.mirror = mirror
        """Whether checkpoints lie on the machine alone."""
        self.tail: deque[str] = deque(maxlen=200)
        self.setup: deque[str] = deque(maxlen=30)
        self.ended = ""
        """SkyPilot's word for how the job ended."""
        self._told: Pending[None] | None = None
        self._muted = False
        self._speaks = False
        """Whether the job itself has said anything: then it runs, whatever SkyPilot answered last."""
        self._log: Pending[Any] | None = None
        self._lines = 0
        self._looked = self._mirrored = self._heard = self._tailed = time.monotonic()

    def tick(self) -> None:
        """To be called while something is waited for: ends the wait where the run was told to end, or, once the workers
        train, tells them.

        Raises:
            KeyboardInterrupt: by Ctrl-C.
            Preempted: by another signal.
        """
        self.stopping.check()
        before = self.clock.phase in ("plan_s", "provision_s", "setup_s") and not self._speaks
        if self.stopping.asked_by is not None and before:
            if self.stopping.asked_by == signal.SIGINT:
                raise KeyboardInterrupt
            raise Preempted("stopped before training began; the same command begins again")
        if self.stopping.asked_by is not None and self._told is None:
            # At once, whatever is waited for: the time until they must have ended runs already.
            self._told = Pending(lambda: self.cluster.touch(FLAG_FILE, lambda: None), "telling the machines")

    def wait(self, number: int) -> str:
        """Return SkyPilot's word for how the job ended, or LOST."""
        self.clock.enter("setup_s")
        self._heard = time.monotonic()
        try:
            while True:
                self._keep_log(number)
                status = self._status(number)
                if status in ENDED:
                    self.clock.enter("idle_s")
                    return status
                if status == "RUNNING" and self.clock.phase != "job_s":
                    self.clock.enter("job_s")
                if (status == "UNKNOWN" or self._due("_looked", STATE_SECONDS)) and self._is_lost():
                    return "LOST"
                if self.mirror and status == "RUNNING" and self._due("_mirrored", MIRROR_SECONDS):
                    self._fetch(["checkpoints"])
                self._pause(calm=status == "RUNNING")
        finally:
            self._end_log()

    def collect(self, status: str) -> End:
        """Bring back what the job left; from a cluster that is not whole, what can still be had."""
        self.clock.enter("collect_s")
        self.ended = status
        names = ["outputs", *(["checkpoints"] if self.mirror else [])]
        passed = self.exchange.collect(self.tick)
        if status == "SUCCEEDED":
            if not passed:
                self.cluster.fetch(names, self.job.root, self.tick)
            return self._end(status, "UP")
        state = self._state()
        if state != "GONE" and not passed:
            self._fetch(names)
            self._fetch(["outputs/logs"], slice(1, None))
        if state == "UP" and status != "FAILED_SETUP":
            # A spot machine that is taken away counts as running for some seconds, in which its peers have failed.
            self._sleep(SETTLE_SECONDS)
            state = self._state()
        return self._end(status, "INIT" if state == "UNKNOWN" else state)

    def _end(self, status: str, state: str) -> End:
        return End(job=status, cluster=state, result=self.job.read_result(), errors=self.job.read_errors())

    def show(self, text: str) -> None:
        """Show a line of the job's log if rank 0's machine wrote it; keep the ends of all."""
        found = PREFIX.match(text)
        if found is None or self._muted:
            return
        line = text[found.end() :]
        if (found["name"] or "").startswith("setup"):
            self.setup.append(line)
            return
        self._speaks = True
        if found["rank"] not in (None, "0"):
            return
        show_line(line, self.tail)

    def setup_output(self) -> list[str]:
        """Return what preparing the machines said if the job came no further: as they kept it, else as it was shown."""
        kept = [file.read_text(errors="replace") for file in sorted(self.job.logs.glob("setup-*.log"))]
        lines = [line for text in kept for line in text.splitlines() if line.strip()]
        return (lines if self.ended == "FAILED_SETUP" else []) or list(self.setup)

    def _status(self, number: int) -> str:
        status = unless_it_fails(lambda: self.cluster.job_status(number, self.tick), "GONE", "job status")
        if status == "GONE":  # the cluster's state will tell
            return "UNKNOWN"
        self._heard = time.monotonic()
        return status

    def _is_lost(self) -> bool:
        """Whether machines are gone for certain: the cloud says so twice, or there was silence for long."""
        self._looked = time.monotonic()
        for wait in (3.0, 0.0):
            state = self._state()
            if state in ("GONE", "STOPPED"):
                return True
            if state == "UP":
                break
            if wait:
                self._sleep(wait)
            elif state == "INIT":
                return True
        return time.monotonic() - self._heard > SILENT_SECONDS

    def _state(self) -> str:
        return unless_it_fails(lambda: self.cluster.state(self.tick), "UNKNOWN", "cluster state")

    def _fetch(self, names: list[str], nodes: slice = slice(0, 1)) -> None:
        """Bring back what can be had."""
        unless_it_fails(lambda: self.cluster.fetch(names, self.job.root, self.tick, nodes), None, f"fetching {names}")

    def _keep_log(self, number: int) -> None:
        """Follow the job's log; anew where that broke off, without the lines that were there before."""
        if self._log is not None and not (self._log.done and self._due("_tailed", STATE_SECONDS)):
            return
        before, count = self._lines, 0

        def show(text: str) -> None:
            nonlocal count
            count += 1
            if count > before:
                self._lines = count
                self.show(text)

        self._log = self.cluster.tail(number, show)

    def _due(self, name: str, seconds: float) -> bool:
        if time.monotonic() - getattr(self, name) < seconds:
            return False
        setattr(self, name, time.monotonic())
        return True

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.tick()
            time.sleep(0.1)

    def _pause(self, calm: bool) -> None:
        """Wait before the job is asked for again; a calm one until its log ends, or for long."""
        self._sleep(POLL_SECONDS)
        until = time.monotonic() + CALM_SECONDS
        while calm and self._log is not None and not self._log.done and time.monotonic() < until:
            self._sleep(0.2)

    def _end_log(self) -> None:
        """Wait a moment for the last lines; what comes later is not shown among those of the next attempt."""
        if self._log is not None:
            unless_it_fails(partial(self._log.wait, seconds=30.0), None, "the job's log")
        self._muted = True
