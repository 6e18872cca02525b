"""Other machines started from node 0 with the SSH client: `python -m skytune.training join` on each of them.

The token and the secrets of the configuration go over ssh's standard input, never on a command line.
"""

import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import skytune

from ..config import UserError
from ..config.secrets import of_environment
from .gathering import TOKEN

SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=10")
"""No terminal and no questions: a host that wants a password or whose key is not known yet is an error."""

HANDED_ON = ("HF_HUB_OFFLINE", "HF_ENDPOINT", "HF_HOME", "SKYTUNE_HOME")
"""Variables of this process that are set there too."""


class Hosts:
    """One `ssh` process a host."""

    def __init__(self, hosts: list[str], place: str, token: str, timeout: float) -> None:
        """Begin.

        Args:
            place: address and port of node 0.
            timeout: seconds for which they wait for node 0.
        """
        self.hosts, self.place, self.token, self.timeout = hosts, place, token, timeout
        self._running: dict[int, tuple[str, subprocess.Popen[bytes], Path]] = {}

    def start(self, logs: Path) -> None:
        """Start all of them; what they print goes to `logs/node-N.log`.

        Raises:
            UserError: there is no SSH client.
        """
        for rank, host in enumerate(self.hosts, start=1):
            record = logs / f"node-{rank}.log"
            try:
                with record.open("wb") as out:
                    child = subprocess.Popen(
                        [*SSH, "--", host, remote(rank, self.place, self.timeout)],
                        stdin=subprocess.PIPE,
                        stdout=out,
                        stderr=out,
                        start_new_session=True,
                    )
            except FileNotFoundError as error:
                raise UserError("launch.hosts: there is no ssh on this machine (openssh-client)") from error
            self._running[rank] = (host, child, record)
            hidden = {TOKEN: self.token, **of_environment()}
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(json.dumps(hidden).encode() + b"\n")
                child.stdin.flush()  # left open: the other side ends when this one does

    def check(self, joined: set[int]) -> None:
        """See that those run that have not joined yet.

        Raises:
            UserError: one has ended, with what it said last.
        """
        for rank, (host, child, record) in self._running.items():
            if rank not in joined and child.poll() is not None:
                said = record.read_text(errors="replace").strip().splitlines()
                last = next((line for line in reversed(said) if line.strip()), f"exit code {child.returncode}")
                raise UserError(f"launch.hosts: {host} (node {rank}) did not join: {last.strip()} (more in {record})")

    def end(self, seconds: float = 5.0) -> None:
        """Let them end; end those that do not."""
        for _, child, _ in self._running.values():
            with contextlib.suppress(OSError):
                if child.stdin is not None:
                    child.stdin.close()
        for _, child, _ in self._running.values():
            try:
                child.wait(seconds)
            except subprocess.TimeoutExpired:
                child.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(2.0)
                child.kill()
                child.wait()


def remote(rank: int, place: str, timeout: float) -> str:
    """Return the command for a host's shell: this Python where the host has it at the same place, else its `python3`;
    this checkout's code where it has that, else the installed package."""
    start = Path(skytune.__file__).resolve().parent / "launch" / "start.py"
    words = ["join", place, "--node-rank", str(rank), "--timeout", f"{timeout:g}", "--secrets-on-stdin"]
    handed = "".join(f"export {name}={shlex.quote(os.environ[name])}; " for name in HANDED_ON if os.environ.get(name))
    python, code = shlex.quote(sys.executable), shlex.quote(str(start))
    rest = shlex.join(words)
    return (
        f'{handed}p={python}; [ -x "$p" ] || p=python3; '
        f'if [ -f {code} ]; then exec "$p" {code} skytune.training {rest}; fi; '
        f'exec "$p" -m skytune.training {rest}'
    )


def is_this_machine(host: str) -> bool:
    """Whether a host's name means this machine."""
    return host.rpartition("@")[2] in ("localhost", "127.0.0.1", "::1", socket.gethostname())
