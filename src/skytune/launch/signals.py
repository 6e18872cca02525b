"""How a run is told to end while its workers train: the first signal asks them to save, Ctrl-C after it leaves at once.

Only Ctrl-C does: a cluster's manager may well send its own signals twice, to this process alone and to all of a job.
"""

import logging
import signal
import time
from pathlib import Path
from typing import ClassVar, Self

from ..common.stop_request import StopRequest
from ..config import Preempted

log = logging.getLogger(__name__)


class Stopping(StopRequest):
    """While it is entered, SIGINT, SIGTERM and SIGUSR1 put a file where the workers look for it once a step."""

    last: ClassVar[int | None] = None
    """The last signal that came to this process while workers ran. A job that was just ending completes all the same;
    whoever runs several looks here before the next one."""

    def __init__(self, flag_file: Path, grace_seconds: float) -> None:
        super().__init__()
        self.flag_file, self.grace = flag_file, grace_seconds
        self.deadline = float("inf")
        self.at_once = False
        """Whether nobody is to be waited for any more."""

    def __enter__(self) -> Self:
        self.flag_file.unlink(missing_ok=True)
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.flag_file.unlink(missing_ok=True)

    def check(self) -> None:
        """End the wait for workers that were asked and do not come.

        Raises:
            KeyboardInterrupt: they had `grace_seconds` after Ctrl-C.
            Preempted: they had them after another signal.
        """
        if self.asked_by is None and self.flag_file.exists():  # by another thread: an experiment's budget, say
            self.asked_by, self.deadline = signal.SIGTERM, time.monotonic() + self.grace
        if time.monotonic() <= self.deadline:
            return
        log.warning("the workers did not save and end within %.0f s", self.grace)
        if self.asked_by == signal.SIGINT:
            raise KeyboardInterrupt
        raise Preempted("stopped without saving; the same command goes on from the last checkpoint, if there is one")

    def on_signal(self, number: int, first: bool) -> None:
        """See `StopRequest`."""
        Stopping.last = number
        if not first and number == signal.SIGINT:
            self.at_once = True
            raise KeyboardInterrupt
        if first:
            self.deadline = time.monotonic() + self.grace
            self.flag_file.touch()
            log.warning("ending after this step, and saving (Ctrl-C to leave at once)")
