"""A job's inputs and outputs on their way, by way of its store where that can take files."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from ...common.background import Pending
from ...config import Preempted
from ...job import JobDir
from .s3_transfer import INPUTS, S3Transfer
from .upload import stage_inputs

log = logging.getLogger(__name__)

T = TypeVar("T")

Tick = Callable[[], None]

STORE_SECONDS = 3600.0
"""How long inputs or outputs may take on their way."""


def unless_it_fails(call: Callable[[], T], otherwise: T, what: str, level: int = logging.DEBUG) -> T:
    """Return what a call returns; `otherwise`, and a line that says why, where it fails. A stop goes on."""
    try:
        return call()
    except Preempted:
        raise
    except Exception as error:  # the machine, the network or SkyPilot's server
        log.log(level, "%s: %s", what, error)
        return otherwise


class Exchange:
    """Inputs and outputs of a job through its store; without one that can take them nothing happens here."""

    def __init__(self, job: JobDir, transfer: S3Transfer | None) -> None:
        self.job, self.transfer = job, transfer

    def send(self, upload: Path, tick: Tick) -> None:
        """Send inputs to the store; where it takes none from this machine, lay them where they are synced from."""
        if self.transfer is None:
            return
        call = partial(self.transfer.upload_inputs, self.job.inputs, upload / "job" / INPUTS)
        sent = self._asked(call, tick, "inputs go to the machines from here, since the store takes none")
        if sent is None:
            stage_inputs(self.job, upload)
        else:
            amount = f"{sent / 1e6:.1f} MB sent" if sent else "there already"
            log.info("inputs: %s, %s/.inputs", amount, self.transfer.url)

    def collect(self, tick: Tick) -> bool:
        """Fetch what the machines left in the store; return whether the first one has left anything there."""
        call = self.transfer and partial(self.transfer.download_outputs, self.job)
        return bool(call and self._asked(call, tick, "results cannot be fetched"))

    def forget(self, tick: Tick) -> None:
        """Remove what an attempt left in the store: before the next one, and once it is here."""
        if self.transfer is not None:
            self._asked(self.transfer.delete_outputs, tick, "what the job left stays in the store")

    def existing_results(self, tick: Tick) -> bool:
        """Take the results of a job that came to its end, and its machines to theirs, when no driver was there any
        more; return whether there are any, of the same code."""
        if self.transfer is None:
            return False
        code = self.job.job.fingerprints.get("code")
        left = self._asked(self.transfer.listed_outputs, tick, "earlier results cannot be looked for")
        if not left or 0 not in left or left[0]["code"] != code or not self.collect(tick):
            return False
        result, stop_at = self.job.read_result() or {}, self.job.job.stop_at_step
        if result.get("status") != "completed" and (stop_at is None or result.get("paused", {}).get("step") != stop_at):
            return False
        log.info("the job has ended while nobody was here: its results come from %s", self.transfer.url)
        self.forget(tick)
        return True

    def _asked(self, call: Callable[[], T], tick: Tick, otherwise: str) -> T | None:
        waiting = lambda: Pending[T | None](call, "the store").wait(tick, STORE_SECONDS)  # noqa: E731
        return unless_it_fails(waiting, None, otherwise, logging.WARNING)


def forget_last_attempt(job: JobDir) -> None:
    """Remove what says how the attempt before ended."""
    left = [file for name in ("rank-*.error.json", "setup-*.log") for file in Path(job.logs).glob(name)]
    for file in (job.outputs / "result.json", *left):
        file.unlink(missing_ok=True)
