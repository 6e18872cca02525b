"""Node 0's side of a run on several machines: it waits for the others, gives each its part, and hears how they fare.

The other side is `join`. One connection to every machine is held as long as the run lasts, so that both sides notice
within `launch.silence_seconds` when the other one is gone, a cut cable included.
"""

import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from ..config import LaunchConfig, UserError
from ..job import JobDir
from .channel import Channel, Closed
from .member import Member
from .nodes import PORT, Nodes

log = logging.getLogger(__name__)

TOKEN = "SKYTUNE_JOIN_TOKEN"
"""Variable with the secret by which the machines of a run know each other."""

HANDSHAKE_SECONDS = 10.0
PULSE_SECONDS = 2.0
LOGS_SECONDS = 20.0
"""How long other machines may take to send their logs at the end, beside what their workers take to end."""


gathered = threading.Event()
"""Whether this process has called other machines together."""


class Gathering:
    """The machines of one job."""

    def __init__(
        self, job: JobDir, nodes: Nodes, launch: LaunchConfig, each: int, refuse: Callable[[dict[str, Any]], str]
    ) -> None:
        """Begin.

        Args:
            each: processes of every machine.
            refuse: says why a machine that says so much of itself cannot take part; empty where it can.
        """
        self.job, self.nodes, self.launch, self.each, self.refuse = job, nodes, launch, each, refuse
        self.token = os.environ.get(TOKEN) or secrets.token_hex(16)
        self.members: dict[int, Member] = {}
        self.turned_away: list[str] = []
        self.fatal = ""
        self.asked_to_stop = threading.Event()
        self.port = 0
        self._changed = threading.Condition()
        self._nonce = secrets.token_hex(16)
        self._door: socket.socket | None = None
        self._going = self._ended = False

    def open(self) -> None:
        """Begin to listen.

        Raises:
            UserError: the port is in use.
        """
        wanted = self.nodes.port or PORT
        family = socket.AF_INET6 if ":" in (self.nodes.address or "") else socket.AF_INET
        try:
            self._door = socket.create_server(("", wanted), family=family)
        except OSError as error:
            if self.nodes.port:
                raise UserError(f"launch.master_port={wanted}: {error.strerror}; give another one") from error
            self._door = socket.create_server(("", 0), family=family)
        gathered.set()
        self.port = self._door.getsockname()[1]
        (self.job.root / ".nodes").write_text(self._nonce)
        threading.Thread(target=self._listen, args=(self._door,), daemon=True, name="nodes-door").start()
        threading.Thread(target=self._pulse, daemon=True, name="nodes-pulse").start()

    def wait(self, check: Callable[[], None]) -> None:
        """Return when all are there and have their inputs.

        Args:
            check: called meanwhile; ends the wait by raising.

        Raises:
            UserError: who is missing after `launch.nodes_timeout_seconds`; who cannot take part.
        """
        until = time.monotonic() + self.launch.nodes_timeout_seconds
        while True:
            with self._changed:
                if self.fatal:
                    raise UserError(self.fatal)
                if sum(member.ready for member in self.members.values()) == self.nodes.count - 1:
                    self._going = True
                    return
                self._changed.wait(0.2)
            check()
            if time.monotonic() > until:
                raise UserError(self._missing())

    def go(self, master: str, port: int) -> None:
        """Have all others start their workers."""
        for member in list(self.members.values()):
            with contextlib.suppress(Closed):  # whoever is gone is noticed by its own thread
                member.channel.send("go", address=master, port=port)

    def gone(self) -> str:
        """Return which machine is not heard of any more; empty while all are."""
        lost = [f"node {m.rank} ({m.name}) {m.lost}" for m in list(self.members.values()) if m.lost]
        return "; ".join(lost)

    def failed(self) -> bool:
        """Whether a machine is gone, or its workers have ended badly."""
        return any(member.lost or member.code for member in list(self.members.values()))

    def end(self, status: str, wait: bool = True) -> None:
        """Have all others end, wait (if so) until they have sent their logs, and close the door."""
        for member in list(self.members.values()):
            if not member.ready:  # its inputs are on their way, and nothing can be said until they are there
                member.channel.close()
                continue
            with contextlib.suppress(Closed):
                member.channel.send("end", status=status)
        seconds = self.launch.grace_seconds + LOGS_SECONDS if wait else 0.0
        until = time.monotonic() + seconds
        with self._changed:
            while time.monotonic() < until and not all(m.lost or m.code is not None for m in self.members.values()):
                self._changed.wait(0.2)
            for member in self.members.values():
                if member.code is None and not member.lost:
                    member.lost = f"did not end within {seconds:g} s"
        self._ended = True
        for member in list(self.members.values()):
            member.channel.close()
        if self._door is not None:
            with contextlib.suppress(OSError):
                self._door.shutdown(socket.SHUT_RDWR)
            self._door.close()
        (self.job.root / ".nodes").unlink(missing_ok=True)

    def _missing(self) -> str:
        here = [f"node 0 ({socket.gethostname()})"]
        missing = []
        for rank in range(1, self.nodes.count):
            member = self.members.get(rank)
            if member is None:
                missing.append(f"node {rank}")
            elif member.ready:
                here.append(f"node {rank} ({member.name})")
            else:
                missing.append(f"node {rank} ({member.name}, still fetching its inputs)")
        away = f"; turned away: {'; '.join(dict.fromkeys(self.turned_away))}" if self.turned_away else ""
        return (
            f"launch.nodes={self.nodes.count}: {' and '.join(missing)} did not come within "
            f"{self.launch.nodes_timeout_seconds:g} s (launch.nodes_timeout_seconds); here: {', '.join(here)}{away}"
        )

    def _listen(self, door: socket.socket) -> None:
        while not self._ended:
            try:
                connection, where = door.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection, where[0]), daemon=True, name="node").start()

    def _pulse(self) -> None:
        while not self._ended:
            # Whoever fetches its inputs hears enough, and would keep the pulse from all others as long as that lasts.
            for member in [one for one in list(self.members.values()) if one.ready]:
                with contextlib.suppress(Closed):
                    member.channel.send("pulse")
            time.sleep(PULSE_SECONDS)

    def _serve(self, connection: socket.socket, where: str) -> None:
        """Talk to one machine as long as there is something to say."""
        channel, member = Channel(connection, HANDSHAKE_SECONDS), None
        try:
            channel.challenge(self.token)
            member = self._admit(channel.expect("hello"), channel, where)
            if member is not None:
                channel.patience(self.launch.silence_seconds)
                self._hand_over(member)
                self._hear(member)
        except (Closed, KeyError, TypeError, ValueError, UserError, OSError) as error:
            log.debug("a connection from %s ended: %s", where, error)
            if member is not None:
                self._lose(member, error)
        finally:
            if member is None:
                channel.close()

    def _admit(self, hello: dict[str, Any], channel: Channel, where: str) -> Member | None:
        name = f"{hello.get('name', '?')} at {where}"
        with self._changed:
            wanted = hello.get("rank")
            free = [rank for rank in range(1, self.nodes.count) if rank not in self.members]
            why = self.refuse(hello)
            if not why and not free:
                why = f"is one too many: all {self.nodes.count} machines are there"
            if not why and wanted is not None and wanted not in free:
                taken = self.members.get(wanted)
                why = f"says that it is node {wanted}, " + (
                    f"which {taken.name} is already" if taken else f"of {self.nodes.count} machines"
                )
            if not why:
                member = Member(int(free[0] if wanted is None else wanted), name, channel)
                self.members[member.rank] = member
                return member
            self.turned_away.append(f"{name} {why}")
            if wanted is not None:  # whoever started it will not put it right and start it again
                self.fatal = f"launch.nodes={self.nodes.count}: {name} {why}"
            self._changed.notify_all()
        log.warning("turned away: %s %s", name, why)
        channel.send("refused", reason=f"this machine {why}")
        return None

    def _hand_over(self, member: Member) -> None:
        member.hand_over(self.job, nodes=self.nodes.count, each=self.each, nonce=self._nonce)
        log.info("node %d of %d is here: %s", member.rank, self.nodes.count, member.name)
        with self._changed:
            member.ready = True
            self._changed.notify_all()

    def _hear(self, member: Member) -> None:
        while True:
            said = member.channel.expect("pulse", "stop", "ended")
            if said["kind"] == "stop":
                log.warning("node %d (%s) was told to end: all end after this step, and save", member.rank, member.name)
                self.asked_to_stop.set()
            elif said["kind"] == "ended":
                member.tail = [str(line) for line in said["tail"]]
                if said["logs"]:
                    member.channel.receive_folder(self.job.logs)
                with self._changed:
                    member.code = int(said["code"])
                    self._changed.notify_all()
                return

    def _lose(self, member: Member, error: Exception) -> None:
        with self._changed:
            if not (member.ready and self._going):  # it may come again, or another one in its place
                self.members.pop(member.rank, None)
                member.channel.close()
            elif member.code is None and not member.lost:
                silence = f"has not been heard of for {self.launch.silence_seconds:g} s (launch.silence_seconds)"
                member.lost = silence if str(error) == "silence" else f"is gone ({error})"
            self._changed.notify_all()
