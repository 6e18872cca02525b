"""Whether the other worker processes of this machine still run, and an end for a process that waits for a dead one.

torchrun answers the death of one worker with SIGTERM to the others. They cannot save together any more; and where they
wait for the dead one in a collective operation, no signal handler of Python's runs. So a thread watches for the signal.
"""

import logging
import os
import signal
import threading
import time
from pathlib import Path

from ..common.processes import processes

log = logging.getLogger(__name__)


class Peers:
    """The workers that torchrun's agent started on this machine, seen from one of them."""

    def __init__(self, flag_file: Path, grace_seconds: float) -> None:
        """Begin.

        Args:
            flag_file: its presence says that the run was told to end: a peer that is gone has ended in order.
            grace_seconds: how long this process may take to end after a SIGTERM that came because a peer died.
        """
        self.flag_file, self.grace = flag_file, grace_seconds
        self.count, self.agent = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), os.getppid()

    def died(self) -> bool:
        """Whether one of them is gone although the run was not told to end (Linux; False elsewhere)."""
        if self.count < 2 or self.flag_file.exists():
            return False
        # The agent makes every worker the leader of a session; it may have other children.
        running = [p for p in processes() if p.parent == self.agent and p.session == p.pid and p.runs]
        return 0 < len(running) < self.count

    def watch(self) -> None:
        """From now on (main thread): end this process `grace_seconds` after a SIGTERM that came because a peer died."""
        if self.count < 2:
            return
        heard, hearing = os.pipe()
        for end in (heard, hearing):
            os.set_blocking(end, end == heard)
        signal.set_wakeup_fd(hearing, warn_on_full_buffer=False)  # written at once, whatever the main thread does
        threading.Thread(target=self._wait, args=(heard,), daemon=True, name="peers").start()

    def _wait(self, heard: int) -> None:
        while os.read(heard, 1) != bytes([signal.SIGTERM]):
            pass
        time.sleep(self.grace)
        if self.died():
            log.error("another worker process has died: ended without saving after %.0f s", self.grace)
            os._exit(1)
