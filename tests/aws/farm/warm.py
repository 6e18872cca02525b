"""Python programs that start warm: a server that has imported the libraries forks a process for each of them.

Importing SkyPilot and Ray takes 1.8 CPU seconds, and one launch has some thirty programs import them, most on the
machines, to write a line. Here they are what they were but for that: their own words, environment, folder and open
files, in a process of their own. `ask.py`, which knows the server by its socket, stands where the program was started:
it passes signals on, ends as the program ended, and takes it along when it is killed.

    python warm.py --here SOCKET MODULES...      serve at a socket, with these modules imported;
                                                 the first one's `renew` is called in every program
    python warm.py --machines USER MODULES...    read the ids of machines' first processes, a line each: serve at
                                                 `MACHINE_SOCKET` in that machine's namespaces and root, as that user

Only the standard library is used, and nothing of this package: on machines this file lies alone.
"""

import atexit
import contextlib
import ctypes
import gc
import grp
import importlib
import json
import os
import pwd
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any

MACHINE_SOCKET = "/run/warm.sock"

_RENEW: list[Callable[[], None]] = []
_NAMESPACES = ("ipc", "uts", "net", "pid", "mnt")
_RESET = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)


def main() -> None:
    """Import, and serve."""
    how, where, *modules = sys.argv[1:]
    del sys.path[0]  # this file's own folder
    for name in modules:
        importlib.import_module(name)
    _RENEW.append(getattr(sys.modules[modules[0]], "renew", lambda: None))
    gc.collect()
    gc.freeze()
    if how == "--here":
        _serve(_listen(where))
    for line in sys.stdin:
        if not os.fork():
            _move_to(int(line), where)
    os._exit(0)


def _move_to(pid: int, user: str) -> None:
    """Go into the namespaces of a machine and serve there."""
    code = 1
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        top = os.open(f"/proc/{pid}/root", os.O_RDONLY)
        opened = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in _NAMESPACES]
        for descriptor in opened:
            if libc.setns(descriptor, 0):
                raise OSError(ctypes.get_errno(), "setns")
        os.fchdir(top)
        os.chroot(".")
        os.chdir("/")
        for descriptor in (top, *opened):
            os.close(descriptor)
        if os.fork():  # a PID namespace holds for children only
            os._exit(0)
        listener = _listen(MACHINE_SOCKET)
        found = pwd.getpwnam(user)
        os.setgroups([group.gr_gid for group in grp.getgrall() if user in group.gr_mem])
        os.setgid(found.pw_gid)
        os.setuid(found.pw_uid)
        _serve(listener)
    except OSError as error:  # the machine may be gone again
        print(f"warm: process {pid}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    half = f"{path}.half"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(half)
    listener.bind(half)
    os.chmod(half, 0o777)
    listener.listen(64)
    os.rename(half, path)
    return listener


def _serve(listener: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    while True:
        asking, _ = listener.accept()
        if os.fork():
            asking.close()
            continue
        listener.close()
        try:
            _answer(asking)
        finally:
            os._exit(1)


def _answer(asking: socket.socket) -> None:
    """Start the program that is asked for, pass signals on to it, say how it ended."""
    data, descriptors, _, _ = socket.recv_fds(asking, 1 << 16, 250)
    (length,) = struct.unpack("!I", data[:4])
    while len(data) < 4 + length:
        more = asking.recv(1 << 16)
        if not more:
            return
        data += more
    order = json.loads(data[4:])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if not pid:
        asking.close()
        _become(order, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    ended = os.pidfd_open(pid)
    while True:
        ready, _, _ = select.select([ended, asking], [], [])
        if ended in ready:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with contextlib.suppress(OSError):
                asking.sendall(struct.pack("!i", code))
            os._exit(0)
        try:
            numbers = asking.recv(100)
        except OSError:
            numbers = b""
        for number in numbers or bytes([signal.SIGKILL]):
            os.kill(pid, number)
        if not numbers:
            os.waitpid(pid, 0)
            os._exit(0)


def _become(order: dict[str, Any], descriptors: list[int]) -> None:
    """Be the program; never returns."""
    code: Any = 1
    try:
        os.setsid()
        _take(dict(zip(order["descriptors"], descriptors, strict=True)))
        os.umask(order["umask"])
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        for number in _RESET:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.executable = order["executable"]
        _RENEW[0]()
        _run(order["words"])
        code = 0
    except SystemExit as error:
        code = error.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except KeyboardInterrupt:
        code = -signal.SIGINT
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code or 0)  # an interpreter that has imported all this takes long to end


def _take(wanted: dict[int, int]) -> None:
    """Give open files (number wanted -> number now) the numbers that they had, for this process's children too."""
    import fcntl

    safe = {number: fcntl.fcntl(now, fcntl.F_DUPFD, 500) for number, now in wanted.items()}
    for now in wanted.values():
        os.close(now)
    for number, kept in safe.items():
        os.dup2(kept, number, inheritable=True)
        os.close(kept)


def _run(words: list[str]) -> None:
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  the server's may hold what it has read and not yet used
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    while words[0] == "-u":
        unbuffered, words = True, words[1:]
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        stream.reconfigure(write_through=unbuffered, line_buffering=number == 2 or os.isatty(number))  # type: ignore
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(":") if entry]
    safe = bool(os.environ.get("PYTHONSAFEPATH"))
    if words[0] == "-c":
        sys.argv, place = ["-c", *words[2:]], ""
    elif words[0] == "-m":
        sys.argv, place = words[1:], os.getcwd()
    else:
        sys.argv, place = words, os.path.dirname(os.path.realpath(words[0]))
    sys.path[:0] = [*([] if safe else [place]), *given]
    if words[0] == "-c":
        own = types.ModuleType("__main__")
        sys.modules["__main__"] = own
        exec(compile(words[1], "<string>", "exec"), own.__dict__)
    elif words[0] == "-m":
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
