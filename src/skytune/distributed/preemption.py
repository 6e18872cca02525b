"""How a worker learns that it should end soon: signals to itself, a file in the job directory, EC2's two-minute notice.

A notice only raises a flag. The loop looks at it once a step and shares it with all processes together with the loss,
so that they end after the same step.

torchrun answers the death of one worker with SIGTERM to the others. They cannot save together any more; and where they
wait for the dead one in a collective operation, no signal handler of Python's runs. So a thread watches for the signal.
"""

import logging
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from ..common.json import load_json
from ..common.processes import processes
from ..common.stop_request import SIGNALS, StopRequest
from ..config import WorkerError

log = logging.getLogger(__name__)

FLAG_FILE = "preempt"
"""File in the job directory whose presence asks the workers to save and end."""


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


class PreemptionListener(StopRequest):
    """The flag of one process."""

    def __init__(self, flag_file: Path, rank: int, grace_seconds: float = 10.0) -> None:
        super().__init__()
        self.flag_file, self.rank = flag_file, rank
        self.peers = Peers(flag_file, grace_seconds)
        self.reason = ""

    def listen(self) -> None:
        """Begin to listen for signals and, in one process of every EC2 machine, for the notice of an interruption."""
        super().listen()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # the launcher starts processes with SIGUSR1 held back
        self.peers.watch()
        endpoint = os.environ.get("SKYTUNE_IMDS") or ("http://169.254.169.254" if _on_ec2() else "")
        if endpoint and os.environ.get("LOCAL_RANK", "0") == "0":  # each machine may be taken away alone
            threading.Thread(target=self._poll, args=(endpoint,), daemon=True, name="spot-notice").start()

    def given(self) -> bool:
        """Whether this process was told to end.

        Raises:
            WorkerError: it was, because another one has died: what takes all of them, such as a save, must not begin.
        """
        if self.reason == "SIGTERM" and self.peers.died():
            raise WorkerError("another worker process has died: ended without saving")
        if not self.reason and self.rank == 0 and self.flag_file.exists():
            self.reason = "asked by the launcher"
        return bool(self.reason)

    def on_signal(self, number: int, first: bool) -> None:
        """See `StopRequest`."""
        self.reason = self.reason or signal.Signals(number).name

    def _poll(self, endpoint: str, every_seconds: float = 5.0) -> None:
        """Ask IMDSv2 for `spot/instance-action` until there is one (404 until then)."""
        waiter = threading.Event()
        while not self.reason:
            try:
                found = load_json(_imds(endpoint, "latest/meta-data/spot/instance-action"), dict)
                self.reason = f"spot interruption: {found.get('action')} at {found.get('time')}"
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    log.debug("instance metadata: %s", error)
            except (OSError, ValueError) as error:
                log.debug("instance metadata: %s", error)
            waiter.wait(every_seconds)


def _imds(endpoint: str, path: str) -> bytes:
    token_request = urllib.request.Request(
        f"{endpoint}/latest/api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "300"}
    )
    with urllib.request.urlopen(token_request, timeout=2) as answer:
        token = answer.read().decode()
    request = urllib.request.Request(f"{endpoint}/{path}", headers={"X-aws-ec2-metadata-token": token})
    with urllib.request.urlopen(request, timeout=2) as answer:
        found: bytes = answer.read()
    return found


def _on_ec2() -> bool:
    """Whether this machine is one of Amazon's, by what its firmware says (no request is sent to find out)."""
    try:
        vendor = Path("/sys/devices/virtual/dmi/id/sys_vendor").read_text(errors="replace")
    except OSError:
        return False
    return vendor.strip() == "Amazon EC2"
