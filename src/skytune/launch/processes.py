"""Process groups on this machine: how a module is started in one or more processes, and how all of them are ended."""

import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import IO, Any, Protocol

from ..common.processes import processes
from ..config import UserError

KILLED = 5.0
"""Seconds that the kernel may take to end what was killed."""

START = Path(__file__).with_name("bootstrap.py")


class Child(Protocol):
    """A process that was started, as far as it is watched and ended: `subprocess.Popen`, or one that was forked."""

    pid: int
    stdout: IO[Any] | None
    stderr: IO[Any] | None

    def poll(self) -> int | None:
        """Return how it ended, None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""


def module_command(module: str, *words: str, processes: int, folder: Path) -> list[str]:
    """Return the command that runs a module on this machine: directly for one process, through torchrun for several.

    Args:
        folder: an empty one on this machine's own disk: torchrun's agent meets itself there, not at a port.
    """
    if processes == 1:
        return [sys.executable, str(START), module, *words]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file", "--rdzv-endpoint", str(folder / "agent")]
    return torchrun(processes, *meeting, "--local-addr", "127.0.0.1", run=[module, *words])


def torchrun(each: int, *options: str, run: list[str]) -> list[str]:
    """Return the command of an agent that runs a module, `each` times."""
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(each), "--log-dir", os.devnull]
    return [*words, *options, str(START), *run]


def check_loopback() -> None:
    """See that processes of this machine can reach each other, which torch finds out after minutes.

    Raises:
        UserError: its loopback interface is down.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("127.0.0.1", 9))  # nothing is sent
    except OSError as error:
        raise UserError(
            f"processes of this machine do not reach each other at 127.0.0.1 ({error.strerror or error}): "
            "`ip link set lo up` brings the loopback interface up; launch.num_processes=1 needs none"
        ) from error


def end_group(child: Child, grace: float) -> None:
    """Ask the child's whole process group to end, then make it, with all that it started in groups of their own
    (torchrun does that with every worker): nothing is left when this returns.

    An interrupt meanwhile (a second Ctrl-C) skips the asking, as does a grace of 0.
    """
    groups = [child.pid]
    try:
        if grace:
            groups = _groups(child.pid)
            _send(child, signal.SIGTERM, groups[:1])
            if _gone(child, groups, grace):
                return
    finally:
        groups = list(dict.fromkeys([*groups, *_groups(child.pid)]))
        _send(child, signal.SIGKILL, groups)
        _gone(child, groups, max(grace, KILLED))
        child.wait()
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                stream.close()


def group_alive(*groups: int) -> bool:
    """Whether a process of the groups still runs. A zombie does not, although to the kernel's own test it is alive."""
    return any(process.runs and process.group in groups for process in processes())


def _groups(leader: int) -> list[int]:
    """Return the process groups of a group's leader and of its descendants; its own comes first."""
    found, everybody = [leader], processes()
    family = {process.pid for process in everybody if process.group == leader}
    while more := {process.pid for process in everybody if process.parent in family} - family:
        family |= more
    return list(dict.fromkeys([*found, *(process.group for process in everybody if process.pid in family)]))


def _send(child: Child, number: signal.Signals, groups: list[int]) -> None:
    """Send groups a signal."""
    child.poll()  # a dead leader that was not waited for
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


def _gone(child: Child, groups: list[int], wait: float) -> bool:
    """Wait until nothing of the groups runs; return whether that came true in time."""
    until = time.monotonic() + wait
    while True:
        child.poll()
        if not group_alive(*groups):
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(0.1)
