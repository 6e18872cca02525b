"""Which process is meant by a number: on which machine, in which of its lives, and whether it still runs."""

import os
import socket
from pathlib import Path


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
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    now = started(pid)
    return now is None or (now == since if since else now != "ended")
