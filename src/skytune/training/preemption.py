"""How a worker learns that it should end soon: signals to itself, a file in the job directory, EC2's two-minute notice.

A notice only raises a flag. The loop looks at it once a step and shares it with all processes together with the loss,
so that they end after the same step.
"""

import logging
import os
import signal
import threading
import urllib.error
import urllib.request
from pathlib import Path

from ..common.json import load_json
from ..common.stop_request import SIGNALS, StopRequest
from ..config import WorkerError
from .peers import Peers

log = logging.getLogger(__name__)

FLAG_FILE = "preempt"
"""File in the job directory whose presence asks the workers to save and end."""


class Notice(StopRequest):
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

    def heard(self, number: int, first: bool) -> None:
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
