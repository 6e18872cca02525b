"""Workers that start warm: a process that has imported torch and everything else forks one for every job.

Importing takes most of a short trial's time. The process opens no device and runs no thread pool, so that what is
forked from it is like what starts by itself. It speaks through a socket that nobody else has, and ends with whoever
started it.

    python -m skytune.launch.warm FD     reads bytes, each with four descriptors: a file with `{"job": FOLDER,
                                         "env": {...}}`, where the worker's output and errors go, and where its pid
                                         and its end are told
"""

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from ..training import worker
from .processes import KILLED, module_command


class ForkedProcess:
    """A worker that was forked, as `subprocess.Popen` shows one that was started."""

    def __init__(self, told: int, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self.stdout: IO[bytes] | None = stdout
        self.stderr: IO[bytes] | None = stderr
        self.returncode: int | None = None
        self._told = told
        self._answer = b""
        while b"\n" not in self._answer:
            if not self._read(None):
                raise ChildProcessError("the process that forks workers has ended")
        self.pid = int(self._answer.partition(b"\n")[0])

    def poll(self) -> int | None:
        """Return how it ended, None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code, below 0 for a signal (as one that ended with its parent has)."""
        while self.returncode is None:
            if self._read(timeout):
                continue
            end = self._answer.split(b"\n")[1]
            self.returncode = int(end) if end else -signal.SIGKILL
            os.close(self._told)
        return self.returncode

    def _read(self, timeout: float | None) -> bool:
        """Read what is told; return False at the end of it."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._told, selectors.EVENT_READ)
            if not selector.select(timeout):
                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        more = os.read(self._told, 64)
        self._answer += more
        return bool(more)


class WarmWorkers:
    """The process that forks, started when it is first needed, and again where it has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None

    def prepare(self, env: Mapping[str, str]) -> None:
        """Begin to import, so that it is done when the first job is ready."""
        with self._lock:
            self._line_to(env)

    def start(self, job: str, env: Mapping[str, str]) -> ForkedProcess:
        """Fork a worker for a job.

        Args:
            env: its environment.

        Raises:
            OSError: the process cannot be started, or has ended while it imported.
        """
        out, err, told = os.pipe(), os.pipe(), os.pipe()
        try:
            with self._lock, tempfile.TemporaryFile() as order:
                order.write(json.dumps({"job": job, "env": dict(env)}).encode())
                order.flush()
                for again in (True, False):
                    line = self._line_to(env)
                    try:
                        socket.send_fds(line, [b"."], [order.fileno(), out[1], err[1], told[1]])
                        break
                    except OSError:
                        if not again:
                            raise
                        self._end()
        finally:
            for _, end in (out, err, told):
                os.close(end)
        return ForkedProcess(told[0], os.fdopen(out[0], "rb", 0), os.fdopen(err[0], "rb", 0))

    def _line_to(self, env: Mapping[str, str]) -> socket.socket:
        if self._server is not None and self._server.poll() is not None:
            self._end()
        if self._line is None:
            ours, childs = socket.socketpair()
            with childs:
                words = module_command("skytune.launch.warm", str(childs.fileno()), processes=1, folder=Path())
                self._server = subprocess.Popen(
                    words,
                    env=dict(env),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[childs.fileno()],
                    start_new_session=True,  # Ctrl-C on the terminal reaches us alone
                )
            self._line = ours
        return self._line

    def _end(self) -> None:
        if self._line is not None:
            self._line.close()  # it ends with that
        if self._server is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(KILLED)
            self._server.kill()
            self._server.wait()
        self._line = self._server = None

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()


def serve(line: socket.socket) -> dict[str, object]:
    """Return every order in a process of its own; never returns in this one."""
    worker.import_libraries()
    for module in worker.LATER:
        with contextlib.suppress(ImportError):  # another version: slower, not worse
            importlib.import_module(module)
    gc.collect()
    gc.freeze()
    heard, hearing = os.pipe()
    for end in (heard, hearing):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(hearing)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    told: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(line, selectors.EVENT_READ)
        selector.register(heard, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            with contextlib.suppress(BlockingIOError):
                os.read(heard, 1024)
            while told and (ended := _ended()) is not None:
                pid, code = ended
                if pid in told:
                    os.write(told[pid], f"{code}\n".encode())
                    os.close(told.pop(pid))
            if line not in ready:
                continue
            asked, descriptors, _, _ = socket.recv_fds(line, 1, 4)
            if not asked:  # whoever started this is gone, or needs it no more
                os._exit(0)
            order, out, err, end = descriptors
            with os.fdopen(order, "rb") as file:
                file.seek(0)
                data = file.read()
            pid = os.fork()
            if not pid:
                for number in (line.fileno(), heard, hearing, end, *told.values()):
                    os.close(number)
                os.dup2(out, 1)
                os.dup2(err, 2)
                os.close(out)
                os.close(err)
                return dict(json.loads(data))
            os.close(out)
            os.close(err)
            told[pid] = end
            with contextlib.suppress(OSError):
                os.write(end, f"{pid}\n".encode())


def _ended() -> tuple[int, int] | None:
    with contextlib.suppress(ChildProcessError):
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            return pid, os.waitstatus_to_exitcode(status)
    return None


def main() -> None:
    """Serve; in a process that was forked, be the worker."""
    order = serve(socket.socket(fileno=int(sys.argv[1])))
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(order["env"])  # type: ignore[call-overload]
    gc.unfreeze()
    code = worker.main([str(order["job"])])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
