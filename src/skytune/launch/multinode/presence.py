"""Which machines of a run are there: each says again and again, in a few lines of JSON, who it is and how it fares.

A word counts once it was seen to change, and its machine as lost once it has not changed for
`launch.timeouts.heartbeat`, by the reader's own clock: what an earlier attempt left behind, or a clock that is wrong,
deceives nobody.
"""

import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...common.json import load_json
from ...config import UserError
from ...job import JobDir

LARGEST = 1 << 20
"""Bytes of one word."""


class Mailbox:
    """What carries words between machines, and jobs where they share no folder."""

    where = ""
    """What a person calls it."""

    private = False
    """Whether a machine has a folder of its own for a job, and not node 0's."""

    def write(self, rank: int, data: bytes) -> None:
        """Leave a machine's word."""
        raise NotImplementedError

    def read(self, rank: int) -> bytes | None:
        """Return a machine's last word, None where there is none."""
        raise NotImplementedError

    def gone(self, rank: int) -> str:
        """Return why a machine can never be heard of again; empty where nothing says so."""
        return ""

    def send(self, job: JobDir) -> None:
        """As node 0: have the job come to the others."""

    def receive(self, job: JobDir) -> None:
        """As another machine: lay it into a folder."""

    def send_logs(self, job: JobDir, rank: int) -> None:
        """As another machine: have its logs come to node 0."""

    def receive_logs(self, job: JobDir, each: int) -> None:
        """As node 0: lay the others' logs into the job's folder, of so many processes each."""

    def clear(self, heard: bool) -> None:
        """As node 0: leave nothing behind; `heard` says whether all others know that the run has ended."""


@dataclass
class _Seen:
    values: dict[str, Any] = field(default_factory=dict)
    version: tuple[Any, Any] | None = None
    at: float = 0.0
    alive: bool = False


class Presence:
    """This machine's word, renewed as long as it lives, and the words of the others as it sees them."""

    def __init__(self, mailbox: Mailbox, rank: int, others: list[int], silence: float, about: dict[str, Any]) -> None:
        """Begin to speak.

        Args:
            silence: seconds without a new word after which a machine is lost.
            about: what the others must know of this machine (`machine.about`).

        Raises:
            UserError: the first word cannot be left.
        """
        self.mailbox, self.rank, self.silence, self.about = mailbox, rank, silence, about
        self.attempt = secrets.token_hex(8)
        self._own: dict[str, Any] = {**about, "attempt": self.attempt, "host": socket.gethostname()}
        self._seen = {other: _Seen() for other in others}
        self._failing: dict[int, tuple[float, str]] = {}  # since when, and why: by the machine whose word it is
        self._beat, self._now = 0, time.monotonic()
        self._changed, self._posting, self._end = threading.Condition(), threading.Lock(), threading.Event()
        self.say()
        for _, why in self._failing.values():
            raise UserError(f"{mailbox.where}: cannot be written: {why}")
        threading.Thread(target=self._heartbeat, daemon=True, name="presence").start()

    def end(self, **values: Any) -> None:
        """Say this, and nothing any more."""
        self.say(**values)
        self._end.set()

    def say(self, **values: Any) -> None:
        """Change this machine's word; where it cannot be left just now, it will be."""
        with self._posting:
            if self._end.is_set():
                return
            self._own.update(values)
            self._beat += 1
            word = json.dumps({**self._own, "beat": self._beat})
            self._try(self.rank, partial(self.mailbox.write, self.rank, word.encode()))

    def of(self, rank: int) -> dict[str, Any]:
        """Return a machine's last word; empty until it was seen to be alive."""
        seen = self._seen[rank]
        return seen.values if seen.alive else {}

    def host(self, rank: int) -> str:
        """Return a machine with its name, as it says it."""
        return f"node {rank} ({str(self.of(rank).get('host', '?'))[:80]})" if self.of(rank) else f"node {rank}"

    def lost(self, rank: int) -> str:
        """Return why a machine that was there is not any more; empty while it is.

        Raises:
            UserError: it is this machine that cannot be heard.
        """
        if why := self.mailbox.gone(rank):
            return why
        if not self._seen[rank].alive or self._now - self._seen[rank].at <= self.silence:
            return ""
        self.check(0.0)
        return f"has not been heard of for {self.silence:g} s (launch.timeouts.heartbeat)"

    def check(self, patience: float | None = None) -> None:
        """See that this machine can be heard, and hears.

        Args:
            patience: seconds for which it may be in trouble; those after which it is lost to others if not given.

        Raises:
            UserError: it could not for longer.
        """
        for since, why in list(self._failing.values()):
            if time.monotonic() - since > (self.silence if patience is None else patience):
                raise UserError(f"{self.mailbox.where}: cannot be used any more: {why}")

    def wait(self) -> None:
        """Wait a moment: at most until the others were looked at again."""
        with self._changed:
            self._changed.wait(0.3)

    def _heartbeat(self) -> None:
        while not self._end.wait(min(self.silence / 10, 3.0)):
            self.say()
            for rank in self._seen:
                self._try(rank, partial(self._poll, rank))
            self._now = time.monotonic()
            with self._changed:
                self._changed.notify_all()

    def _poll(self, rank: int) -> None:
        seen = self._seen[rank]
        try:
            values = load_json(self.mailbox.read(rank) or b"", dict, LARGEST)
        except ValueError:
            return
        version = values.get("attempt"), values.get("beat")
        if version != seen.version:
            seen.alive = seen.version is not None
            seen.values, seen.version, seen.at = values, version, time.monotonic()

    def _try(self, rank: int, call: Callable[[], None]) -> None:
        try:
            call()
            self._failing.pop(rank, None)
        except Exception as error:  # a file system's, a bucket's: it may come back
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            self._failing[rank] = self._failing.get(rank, (time.monotonic(), ""))[0], why
