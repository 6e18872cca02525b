"""System calls that Python 3.11 does not offer: namespaces, mounts, and dying with one's parent.

Every function raises OSError with the kernel's own error number. Only the standard library is imported here, because
the first process of every machine starts from this file and should start fast.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

NEWNS, NEWUTS, NEWIPC, NEWPID, NEWNET = 0x00020000, 0x04000000, 0x08000000, 0x20000000, 0x40000000
EVERY_NAMESPACE = NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET
KINDS = {NEWNS: "mnt", NEWUTS: "uts", NEWIPC: "ipc", NEWPID: "pid", NEWNET: "net"}

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    *(1, 2, 4, 8, 32, 4096, 16384),
    1 << 18,
)
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for new ones; NEWPID holds for children only."""
    _check(_libc.unshare(flags), "unshare")


def enter(pid: int, flags: int = EVERY_NAMESPACE) -> None:
    """Move into the namespaces of process `pid`; NEWPID holds for children only, NEWNET for the calling thread only."""
    # All are opened first: after the mount namespace changed, /proc is another one.
    opened = [(os.open(f"/proc/{pid}/ns/{KINDS[flag]}", os.O_RDONLY), flag) for flag in KINDS if flags & flag]
    try:
        for descriptor, flag in opened:
            _check(_libc.setns(descriptor, flag), f"setns {KINDS[flag]}")
    finally:
        for descriptor, _ in opened:
            os.close(descriptor)


@contextlib.contextmanager
def network_of(pid: int) -> Iterator[None]:
    """Within the block, sockets that this thread opens are in the network namespace of process `pid`."""
    own = os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY)
    try:
        enter(pid, NEWNET)
        try:
            yield
        finally:
            _check(_libc.setns(own, NEWNET), "setns net")
    finally:
        os.close(own)


def mount(source: str | Path, target: str | Path, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Call mount(2)."""
    words = [str(source).encode(), str(target).encode(), kind.encode() or None]
    _check(_libc.mount(*words, ctypes.c_ulong(flags), options.encode() or None), f"mount {kind} {source} on {target}")


def bind(source: str | Path, target: str | Path, writable: bool = False) -> None:
    """Show `source` at `target` too (which must exist), for reading only unless `writable`."""
    mount(source, target, flags=MS_BIND | MS_REC)
    if not writable:
        # The flags that the file system was mounted with have to be named again, or the kernel refuses.
        kept = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
        mount("none", target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | kept)


def private_mounts() -> None:
    """Keep what is mounted from now on inside this mount namespace."""
    mount("none", "/", flags=MS_REC | MS_PRIVATE)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "prctl")


def start_time(pid: int) -> int | None:
    """Return when process `pid` started, in clock ticks since boot; None if there is none (or only a zombie).

    A pid may be given to another process later; a pid with its start time is never used twice.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def command(*words: object) -> None:
    """Run a program; raise RuntimeError with what it said if it fails."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip()
        raise RuntimeError(f"{' '.join(str(word) for word in words)}: {output or f'exit code {done.returncode}'}")


def spawn(words: Sequence[object], **options: Any) -> subprocess.Popen[bytes]:
    """Start a program with no signal blocked, whatever this process itself blocks."""

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    return subprocess.Popen([str(word) for word in words], preexec_fn=unblock, **options)


def be_first_until_ended(pid: int) -> int:
    """Do the duties of a PID namespace's first process until its child `pid` ends; return that one's exit code.

    Orphans become children of the first process, which has to collect them. SIGTERM ends the wait with 143.
    """
    wake = {signal.SIGCHLD, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, wake)
    while True:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == pid:
                    return os.waitstatus_to_exitcode(found[1])
        woken = signal.sigtimedwait(wake, 1.0)
        if woken is not None and woken.si_signo == signal.SIGTERM:
            return 143
