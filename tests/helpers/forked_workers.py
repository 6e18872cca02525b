"""Lives of worker processes, cheap enough to take many of them: a server that has imported everything forks a process
group for each (importing takes ten times as long as a small job), which then is `skytune.training.worker` on a job
directory like any other. `job_dirs` lays job directories out and reads what runs have left; `Forked` is a launcher.

    python lives.py         the server: reads `{"job": ..., "processes": ..., "output": ..., "env": {...}}` lines, and
                            `{"serve": [fifo, fifo]}` for another server, which reads and writes there
    python lives.py s3      Moto's S3 in a process of its own; prints its port
"""

import copy
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

LONGEST = 600
"""Seconds that a life may take."""


def serve() -> None:
    """Import what workers import, and serve."""
    import accelerate  # noqa: F401
    import datasets  # noqa: F401
    import s3fs  # noqa: F401
    import torch.utils.tensorboard  # noqa: F401
    import transformers.models.auto.tokenization_auto
    import transformers.models.bert.modeling_bert  # noqa: F401

    import skytune.training.trainer
    import skytune.training.worker  # noqa: F401

    print("ready", flush=True)
    _serve(sys.stdin, sys.stdout)


def _serve(orders: TextIO, answers: TextIO) -> None:
    """Fork one process group for every order; say its id, and then how it ended. Never returns."""
    for line in orders:
        order = json.loads(line)
        child = os.fork()
        if not child:
            if "serve" in order:
                orders, answers = open(order["serve"][0]), open(order["serve"][1], "w")  # noqa: SIM115
                _serve(orders, answers)
            _live(order)
        if "serve" in order:
            continue
        print(child, file=answers, flush=True)
        status = os.waitpid(child, 0)[1]
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)
    os._exit(0)  # an interpreter that has imported all this takes seconds to end


def _live(order: dict[str, Any]) -> None:
    """Be the worker, or the parent of several; never returns."""
    os.setsid()
    signal.alarm(LONGEST)  # nobody is left behind by tests that were ended
    out = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(order["env"])
    _read_again()
    size, ranks = order["processes"], []
    os.environ["SKYTUNE_WORLD_SIZE"] = str(size)
    if size == 1:
        _work(order["job"], order["code"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    for rank in range(size):
        ranks.append(os.fork())
        if not ranks[-1]:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
            _work(order["job"], order["code"])
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in ranks]
    os._exit(1 if any(codes) else 0)


def _read_again() -> None:
    """Let libraries forget what they have read from the environment when they were imported."""
    from huggingface_hub import constants

    tempfile.tempdir = None
    for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_XET"):
        setattr(constants, name, os.environ.get(name) == "1")


def _work(job: str, instead: str | None) -> None:
    from skytune.training.worker import main

    code = 1
    try:
        if instead is None:
            code = main([job])
        else:
            exec(instead, {})
            code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


@dataclass
class Life:
    """One process group; `code` is there when it has ended (-9: killed)."""

    server: "Lives"
    group: int
    path: Path
    code: int | None = None

    @property
    def output(self) -> str:
        """What it printed so far."""
        return self.path.read_text() if self.path.exists() else ""

    def ended(self, timeout: float = 0.0) -> bool:
        """Wait for its end for so long."""
        if self.code is None and self.server.readable(timeout):
            self.code = int(self.server.line())
        return self.code is not None

    def send(self, number: signal.Signals) -> None:
        """Send the whole group a signal; one that is gone already gets none."""
        try:
            os.killpg(self.group, number)
        except ProcessLookupError:
            pass

    def freeze(self) -> bool:
        """Stop the group where it stands, for a look at what it was doing; return whether it is there to be stopped."""
        self.send(signal.SIGSTOP)
        until = time.monotonic() + 600
        while not self.ended() and time.monotonic() < until:
            try:
                state = Path(f"/proc/{self.group}/stat").read_text().rpartition(")")[2].split()[0]
            except FileNotFoundError:
                continue  # it has come to its end at this very moment
            if state in "Tt":
                return True
            time.sleep(0.0005)
        return False

    def kill(self) -> None:
        """SIGKILL to the whole group."""
        self.send(signal.SIGKILL)
        assert self.ended(600)


class Lives:
    """The server, seen from a test."""

    def __init__(self) -> None:
        here = str(Path(__file__).parent)
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        variables["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [variables.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.env: dict[str, str] = {}
        self._begin(self.process.stdin.fileno(), self.process.stdout.fileno())
        assert self.line() == "ready"

    def _begin(self, orders: int, answers: int) -> None:
        self.orders, self.answers = orders, answers
        self.selector = selectors.DefaultSelector()
        self.selector.register(answers, selectors.EVENT_READ)
        self.last: list[Life] = []

    def within(self, **env: str) -> "Lives":
        """Return the same server, whose lives find this in their environment."""
        found = copy.copy(self)
        found.env = {**self.env, **env}
        return found

    @contextmanager
    def twin(self) -> Iterator["Lives"]:
        """Give another server, for two lives at once: one server serves one at a time."""
        with tempfile.TemporaryDirectory() as folder:
            fifos = [f"{folder}/orders", f"{folder}/answers"]
            for fifo in fifos:
                os.mkfifo(fifo)
            self._order(serve=fifos)
            found = copy.copy(self)
            found._begin(os.open(fifos[0], os.O_WRONLY), os.open(fifos[1], os.O_RDONLY))
        yield found
        os.close(found.orders)
        os.close(found.answers)

    def _order(self, **order: Any) -> None:
        os.write(self.orders, json.dumps(order).encode() + b"\n")

    def readable(self, timeout: float) -> bool:
        return bool(self.selector.select(timeout))

    def line(self) -> str:
        # Byte by byte from the file descriptor: a buffer would hide a line from `select`.
        found = b""
        while not found.endswith(b"\n"):
            byte = os.read(self.answers, 1)
            assert byte, f"the server has ended ({self.process.poll()})"
            found += byte
        return found.decode().strip()

    def start(self, job: Path, processes: int = 1, code: str | None = None, **env: str) -> Life:
        """Begin a life on a job directory, emptied of what the one before had put out (as a launcher does).

        Args:
            code: what the processes run instead of being workers.
        """
        while self.last:  # a test that failed has left it
            self.last.pop().kill()
        shutil.rmtree(job / "outputs", ignore_errors=True)
        (job / "preempt").unlink(missing_ok=True)
        output = job / "output.txt"
        self._order(job=str(job), processes=processes, output=str(output), code=code, env={**self.env, **env})
        self.last.append(Life(self, int(self.line()), output))
        return self.last[-1]

    def live(self, job: Path, processes: int = 1, code: str | None = None, **env: str) -> Life:
        """Have a whole life; its `code` says how it ended."""
        life = self.start(job, processes, code, **env)
        if not life.ended(LONGEST):
            life.kill()
            raise AssertionError(f"not finished after {LONGEST} s:\n{life.output}")
        return life

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(600)


class Forked:
    """A launcher whose workers are forked."""

    def __init__(self, lives: Lives) -> None:
        self.lives = lives

    def run(self, job: Any, compute: Any) -> None:
        from skytune.launch.gpus import processes_wanted
        from skytune.launch.local import failure

        config = job.job.config
        life = self.lives.live(job.root, processes_wanted(compute, config.launch), SKYTUNE_STARTED=repr(time.time()))
        print(life.output, end="")
        if life.code != 0 or job.read_result() is None:
            raise failure(job, life.code or 0, life.output.splitlines())


def serve_s3() -> None:
    """Serve until stdin ends."""
    import logging
    import threading

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    app = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    serve_s3() if sys.argv[1:] == ["s3"] else serve()
