"""Other machines started from node 0 with the SSH client: words go over its pipes, the job and logs by rsync.

python bootstrap.py skytune.launch.multinode.node        on each of them: a node whose words go through its own pipes
"""

import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import skytune

from ...config import LaunchConfig, UserError, to_dict
from ...config.secrets import of_environment
from ...job import JobDir
from .presence import Mailbox

SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=10")
"""No terminal and no questions: a host that wants a password or whose key is not known yet is an error."""

HANDED_ON = ("HF_HUB_OFFLINE", "HF_ENDPOINT", "HF_HOME", "SKYTUNE_HOME")
"""Variables of this process that are set there too."""


class Hosts(Mailbox):
    """One `ssh` process a host."""

    where = "launch.hosts"

    def __init__(self, launch: LaunchConfig, job: JobDir) -> None:
        """Start all of them; what they print goes to the job's `node-N.log`.

        Raises:
            UserError: there is no SSH client.
        """
        self.hosts, self.logs, self._words = launch.hosts, job.logs, dict[int, bytes]()
        self._children: list[subprocess.Popen[bytes]] = []
        self.folder = f"{os.environ.get('SKYTUNE_HOME') or '.cache/skytune'}/joined/{job.root.name}"
        job.logs.mkdir(parents=True, exist_ok=True)
        for rank, host in enumerate(self.hosts, start=1):
            words = [*SSH, "--", host, remote()]
            with self._record(rank).open("wb") as record:
                try:
                    pipe = subprocess.PIPE
                    child = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=record, start_new_session=True)
                except FileNotFoundError as error:
                    raise UserError("launch.hosts: there is no ssh on this machine (openssh-client)") from error
            self._children.append(child)
            settings = {**to_dict(launch), "hosts": [], "nodes": len(self.hosts) + 1, "node_rank": rank}
            # Secrets never stand on a command line.
            write_line(child.stdin, json.dumps({"environ": of_environment(), "launch": settings}).encode())
            threading.Thread(target=read_lines, args=(child.stdout, self._words, rank), daemon=True, name="ssh").start()

    def write(self, rank: int, data: bytes) -> None:
        """See `Mailbox`; that a host is gone is said by `gone`."""
        for child in self._children:
            with contextlib.suppress(OSError, ValueError):
                write_line(child.stdin, data)

    def read(self, rank: int) -> bytes | None:
        return self._words.get(rank)

    def gone(self, rank: int) -> str:
        code, record = self._children[rank - 1].poll(), self._record(rank)
        if code is None:
            return ""
        lines = [line for line in record.read_text(errors="replace").splitlines() if line.strip()]
        return f"at {self.hosts[rank - 1]} has ended: {(lines or [f'exit code {code}'])[-1].strip()} (more in {record})"

    def send(self, job: JobDir) -> None:
        for host in self.hosts:
            paths = [str(job.root / name) for name in ("job.json", "inputs")]
            _rsync("--mkpath", "--copy-links", "--delete", *paths, f"{host}:{self.folder}/")

    def receive_logs(self, job: JobDir, each: int) -> None:
        for rank, host in enumerate(self.hosts, start=1):
            names = [f"rank-{r}.{end}" for r in range(rank * each, (rank + 1) * each) for end in ("log", "error.json")]
            places = [f":{self.folder}/outputs/logs/{name}" for name in (f"output-node-{rank}.log", *names)]
            _rsync("--no-links", "--ignore-missing-args", host + places[0], *places[1:], f"{job.logs}/")

    def clear(self, heard: bool) -> None:
        """Let them end; end those that do not."""
        for child in self._children:
            with contextlib.suppress(OSError):
                child.stdin.close()  # type: ignore[union-attr]
        for child in self._children:
            for end in (lambda: None, child.terminate, child.kill):
                end()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(5.0)
                    break

    def _record(self, rank: int) -> Path:
        return self.logs / f"node-{rank}.log"


def write_line(pipe: IO[bytes] | None, data: bytes) -> None:
    """Send a word through a pipe."""
    assert pipe is not None
    pipe.write(data + b"\n")
    pipe.flush()


def read_lines(pipe: Iterable[bytes], words: dict[int, bytes], rank: int) -> None:
    """Keep the last word that comes through a pipe."""
    for line in pipe:
        words[rank] = line


def _rsync(*words: str) -> None:
    """Run rsync over the same SSH client.

    Raises:
        UserError: there is none, here or there, or it failed.
    """
    command = ["rsync", "--archive", "--secluded-args", f"--rsh={shlex.join(SSH)}", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    except FileNotFoundError as error:
        raise UserError("launch.hosts: there is no rsync on this machine") from error
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
        raise UserError(f"launch.hosts: rsync with {words[-1]}: {reason}")


def remote() -> str:
    """Return the command for a host's shell: this Python where the host has it at the same place, else its `python3`;
    this checkout's code where it has that, else the installed package."""
    start = Path(skytune.__file__).resolve().parent / "launch" / "bootstrap.py"
    handed = "".join(f"export {name}={shlex.quote(os.environ[name])}; " for name in HANDED_ON if os.environ.get(name))
    python, code = shlex.quote(sys.executable), shlex.quote(str(start))
    module = "skytune.launch.multinode.node"
    return (
        f'{handed}p={python}; [ -x "$p" ] || p=python3; '
        f'if [ -f {code} ]; then exec "$p" {code} {module}; fi; exec "$p" -m {module}'
    )


def is_this_machine(host: str) -> bool:
    """Whether a host's name means this machine."""
    return host.rpartition("@")[2] in ("localhost", "127.0.0.1", "::1", socket.gethostname())
