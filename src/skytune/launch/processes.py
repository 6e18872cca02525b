"""Process groups on this machine: how a module is started in one or more processes, and how all of them are ended."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

START = Path(__file__).with_name("start.py")


def module_command(module: str, *words: str, processes: int = 1) -> list[str]:
    """Return the command that runs a module: directly for one process, through torchrun (free port) for several."""
    run = [str(START), module, *words]
    if processes == 1:
        return [sys.executable, *run]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    return [sys.executable, *torchrun, "--nproc-per-node", str(processes), *run]


def end_group(child: "subprocess.Popen[bytes] | subprocess.Popen[str]", grace: float) -> None:
    """Ask the child's whole process group to end, then make it: nothing of it is left when this returns.

    An interrupt meanwhile (a second Ctrl-C) skips the asking.
    """
    try:
        if _ask(child, signal.SIGTERM, grace):
            return
    finally:
        _ask(child, signal.SIGKILL, grace)
        child.wait()
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                stream.close()


def group_alive(group: int) -> bool:
    """Whether a process of the group still runs. A zombie does not: nobody may ever collect it (in a container whose
    first process does not), and to the kernel's own test it is alive."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    states = [state for state, its_group in _processes() if its_group == group]
    return not states or any(state not in "ZX" for state in states)


def _ask(child: "subprocess.Popen[bytes] | subprocess.Popen[str]", number: signal.Signals, wait: float) -> bool:
    """Send the group a signal and wait; return whether it is gone."""
    child.poll()  # a dead leader that was not waited for
    if not group_alive(child.pid):
        return True
    try:
        os.killpg(child.pid, number)
    except (ProcessLookupError, PermissionError):
        return True
    until = time.monotonic() + wait
    while time.monotonic() < until:
        child.poll()
        if not group_alive(child.pid):
            return True
        time.sleep(0.02)
    return False


def _processes() -> list[tuple[str, int]]:
    """Return (state, process group) of every process; [] on a system without /proc (launchd collects zombies)."""
    found = []
    for entry in os.scandir("/proc") if os.path.isdir("/proc/self") else ():
        if entry.name.isdigit():
            try:
                with open(f"/proc/{entry.name}/stat", encoding="utf-8", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()  # the name before may hold anything
            except OSError:
                continue  # it ended just now
            found.append((fields[0], int(fields[2])))
    return found
