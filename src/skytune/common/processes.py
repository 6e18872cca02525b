"""Processes: which one is meant by a number, on which machine and in which of its lives, and which ones run."""

import os
import socket
from pathlib import Path
from typing import NamedTuple

import psutil


def machine() -> str:
    """Return a name of what process ids count within: this host since it started, or this container."""
    parts = [socket.gethostname()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    except OSError:
        pass  # not Linux
    return "/".join(parts)


def started(pid: int) -> str | None:
    """Return when a process of this machine began, in the kernel's count, `ended` for a zombie; None if unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return "ended" if fields[0] == "Z" else fields[19]


def alive(pid: int, since: str = "") -> bool:
    """Return whether a process of this machine still runs; one that was given the same number later does not count."""
    try:
        ended = psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        ended = False
    return not ended and (not since or started(pid) in (since, None))


class Process(NamedTuple):
    """What the kernel says of a process."""

    pid: int
    parent: int
    group: int
    session: int
    runs: bool
    """Whether it does: a zombie does not, and nobody may ever collect it (in a container without an init)."""


def processes() -> list[Process]:
    """Return all processes of this machine."""
    found = []
    for one in psutil.process_iter(["ppid", "status"]):
        try:
            group, session = os.getpgid(one.pid), os.getsid(one.pid)
        except OSError:
            continue  # it ended just now
        runs = one.info["status"] not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        found.append(Process(one.pid, one.info["ppid"], group, session, runs))
    return found
