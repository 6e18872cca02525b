"""Process groups on this machine: how a module is started in one or more processes, and how all of them are ended."""

import contextlib
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, Protocol

import skytune

from ..common.processes import processes
from ..config import UserError
from .gpus import machine_is_busy

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


def start(words: list[str], env: dict[str, str], stdin: int = subprocess.DEVNULL) -> "subprocess.Popen[bytes]":
    """Start the workers, with SIGUSR1 held back (they inherit that) until they listen to it: a cluster's manager that
    sends it to all processes of a job must not end torchrun's agent, which would die of it."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        return subprocess.Popen(
            words,
            env=env,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Ctrl-C on the terminal reaches us alone; we end the whole group.
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def environment(processes: int, threads: int, stop_seconds: float = 60.0) -> dict[str, str]:
    """Return the workers' environment: ours, less whatever another launcher or Accelerate's settings left in it.

    Args:
        stop_seconds: what torchrun's agent grants the workers where it is told to end itself (torch 2.12 or newer;
            older ones grant 30 s).
    """
    foreign = ("ACCELERATE_", "FSDP_", "TORCHELASTIC_", "PET_", "SLURM_")
    single = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")
    env = {k: v for k, v in os.environ.items() if not k.startswith(foreign) and k not in single}
    source = Path(skytune.__file__).resolve().parents[1]  # comes last on the path: see bootstrap.py
    folders = [f for f in env.pop("PYTHONPATH", "").split(os.pathsep) if f and Path(f).resolve() != source]
    if folders:
        env["PYTHONPATH"] = os.pathsep.join(folders)
    env.update(
        # The current folder is not searched: a file there named like a library must not hide it.
        PYTHONSAFEPATH="1",
        PYTHONUNBUFFERED="1",
        OMP_NUM_THREADS=str(threads),
        **({} if "OMP_WAIT_POLICY" in env or not machine_is_busy() else {"OMP_WAIT_POLICY": "PASSIVE"}),
        TORCH_ELASTIC_SHUTDOWN_TIMEOUT=str(math.ceil(stop_seconds)),
        SKYTUNE_WORLD_SIZE=str(processes),
        SKYTUNE_LAUNCHER_PID=str(os.getpid()),
        SKYTUNE_STARTED=repr(time.time()),
        SKYTUNE_PROGRESS="bar" if sys.__stdout__ is not None and sys.__stdout__.isatty() else "lines",
        COLUMNS=str(shutil.get_terminal_size((100, 24)).columns),
    )
    return env


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
