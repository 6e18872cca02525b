"""Worker processes on several machines, as node 0 has them run: the others do what `node` says.

On every machine one agent of torchrun runs, with the fixed rendezvous (`--master-addr`, `--master-port`): torch's store
is the only thing that listens, on node 0. Who is there, and how it fares, goes through a `Mailbox` (see `presence`).
"""

import logging
import secrets
import socket
import subprocess
import time
from contextlib import suppress
from typing import Any, ClassVar

from ...common.exit_codes import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_OK, EXIT_PREEMPTED
from ...config import ComputeConfig, Device, LaunchConfig, Preempted, RunConfig, UserError
from ...distributed.capabilities import check_strategy
from ...distributed.preemption import FLAG_FILE
from ...job import JobDir
from ..compatibility import about, differs, lacks, network, own_address
from ..gpus import device_here, processes_each, threads_each
from ..local import PeerFailed, WorkerGroup, agent, run_workers
from ..processes import environment, start
from .hosts import Hosts, is_this_machine
from .presence import Mailbox, Presence
from .share import Share
from .topology import PORT, Nodes

log = logging.getLogger(__name__)

FAREWELL_SECONDS = 15.0
"""How long node 0 waits at its end until all others have heard of it."""

LOGS_SECONDS = 20.0
"""How long other machines may take to leave their logs, beside what their workers take to end."""


class Lead:
    """Node 0 for the other machines of a run, from its first line to its exit code: any number of jobs."""

    current: ClassVar["Lead | None"] = None
    """That of this process, while there is one."""

    def __init__(self, nodes: Nodes, launch: LaunchConfig, mailbox: Mailbox) -> None:
        self.nodes, self.others = nodes, range(1, nodes.count)
        self.presence = Presence(mailbox, 0, list(self.others), launch.timeouts.heartbeat, about())
        self.lost: set[int] = set()
        Lead.current = self

    @classmethod
    def begin(cls, config: RunConfig, nodes: Nodes) -> None:
        """Let machines that an engine has started know that this one is there.

        Raises:
            UserError: the share cannot be used.
        """
        if nodes.count > 1 and not config.launch.hosts:
            cls(nodes, config.launch, Share(config, nodes))

    def word(self, rank: int) -> dict[str, Any]:
        """Return the last word of a machine that is there for this very node 0; else an empty one."""
        word = self.presence.of(rank)
        return word if word.get("leader") == self.presence.attempt else {}

    def end(self, code: int) -> None:
        """Tell the others by which exit code this process ends; they end by the same."""
        Lead.current = None
        self.presence.say(exit=code)
        until, left = time.monotonic() + FAREWELL_SECONDS, [r for r in self.others if r not in self.lost]
        with suppress(UserError):
            while left and time.monotonic() < until:
                self.presence.wait()
                left = [r for r in left if "exit" not in self.word(r) and not self.presence.lost(r)]
        self.presence.end()
        self.presence.mailbox.clear(heard=not (left or self.lost))


class NodesLauncher:
    """This machine and others."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes

    def run(self, job: JobDir, compute: ComputeConfig) -> None:
        """See `Launcher`.

        Raises:
            UserError: who is missing, who cannot take part, or who was lost.
        """
        config = job.job.config
        each = processes_each(compute, config.launch, self.nodes.count)
        check_strategy(config, each * self.nodes.count, device_here(compute))
        if Lead.current is not None:
            return run_workers(
                job, config.launch, MultiNodeWorkerGroup(job, Lead.current, config.launch, compute, each)
            )
        lead = Lead(
            self.nodes, config.launch, Hosts(config.launch, job) if config.launch.hosts else Share(config, self.nodes)
        )
        code = EXIT_ERROR
        try:
            run_workers(job, config.launch, MultiNodeWorkerGroup(job, lead, config.launch, compute, each))
            code = EXIT_OK
        except Preempted:
            code = EXIT_PREEMPTED
            raise
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
            raise
        finally:
            lead.end(code)


class MultiNodeWorkerGroup(WorkerGroup):
    """Machines that train together."""

    def __init__(self, job: JobDir, lead: Lead, launch: LaunchConfig, compute: ComputeConfig, each: int) -> None:
        super().__init__(job, each * lead.nodes.count, launch)
        self.lead, self.nodes, self.each, self.presence = lead, lead.nodes, each, lead.presence
        self.device, self.chosen = device_here(compute), compute.device is not Device.auto
        self.address = self.nodes.address or (
            "127.0.0.1" if all(map(is_this_machine, launch.hosts or ["?"])) else own_address()
        )
        self._message: dict[str, Any] = {"mark": secrets.token_hex(8)}
        self._until = time.monotonic() + launch.timeouts.start

    def start(self, stopping: Any) -> "subprocess.Popen[bytes]":
        """See `WorkerGroup`. The agent here waits for the others'; `check` looks who they are."""
        self.presence.mailbox.send(self.job)
        port = self._port()
        env = environment(self.processes, threads_each(self.launch, self.each), self.launch.timeouts.stop)
        env.update(network(self.address))
        child = start(agent(self.job, self.nodes, self.each, self.address, port), env)
        self._publish(run_key=self.job.root.name, each=self.each, address=self.address, port=port)
        log.info("node 0 of %d is here (%s)", self.nodes.count, self.presence.mailbox.where)
        self._until = time.monotonic() + self.launch.timeouts.start
        return child

    def check(self) -> None:
        """See `WorkerGroup`."""
        self.presence.check()
        for rank in self.lead.others:
            word = self.lead.word(rank)
            if word and (why := differs(word, self.presence.about) or self._lacks(word)):
                host = socket.gethostname()
                raise UserError(f"launch.nodes={self.nodes.count}: {self.presence.host(rank)} {why}, which is {host}")
            if self._word(rank).get("stop"):
                (self.job.root / FLAG_FILE).touch()
            if self._gone(rank) or self._word(rank).get("left"):
                raise PeerFailed

    def end(self, status: str, wait: bool = True) -> None:
        """See `WorkerGroup`."""
        self._publish(status=status)
        lost: dict[int, str] = {}
        # A machine that died takes its connections along, so that workers here fail before its silence is noticed.
        until = time.monotonic() + max(self.launch.timeouts.kill + LOGS_SECONDS, 2 * self.launch.timeouts.heartbeat)
        try:
            while wait and (
                left := [r for r in self.lead.others if r not in lost and self._word(r).get("left") is None]
            ):
                lost |= {rank: why for rank in left if (why := self._gone(rank))}
                if (status == "failed" and not any(map(self._word, left))) or time.monotonic() > until:
                    lost |= {rank: "did not end" for rank in left if self._word(rank)}
                    break
                self.presence.wait()
            if any(map(self._word, self.lead.others)):
                self.presence.mailbox.receive_logs(self.job, self.each)
        except Exception as error:
            with suppress(UserError):
                self.presence.check(0.0)  # where that fails, it ends the run, with a line of its own
                log.warning("the other machines' logs are not all here: %s", error)
        self._publish(collected=True)
        self.lead.lost |= set(lost)
        self.lost = "; ".join(f"{self.presence.host(rank)} {why}" for rank, why in sorted(lost.items()))
        outputs = [self.job.logs / f"output-node-{rank}.log" for rank in self.lead.others]
        texts = [path.read_text(errors="replace") for path in outputs if path.is_file()]
        self.tail = [line for text in texts for line in text.splitlines()[-50:]]

    def _publish(self, **values: Any) -> None:
        self._message.update(values)
        self.presence.say(job=dict(self._message))

    def _word(self, rank: int) -> dict[str, Any]:
        """Return what a machine says of this job."""
        word = self.lead.word(rank)
        return word if word.get("mark") == self._message["mark"] else {}

    def _gone(self, rank: int) -> str:
        """Return why a machine does not take part, or does not any more; empty while it may."""
        if why := self.presence.lost(rank):
            return why
        if "exit" in self.lead.word(rank):
            return "has ended; its output says why"
        if self._word(rank) or time.monotonic() < self._until:
            return ""
        there = ", ".join(self.presence.host(other) for other in self.lead.others if self._word(other))
        return (
            f"did not come within {self.launch.timeouts.start:g} s (launch.timeouts.start; here: "
            f"{there or 'no other'}); all machines must see {self.presence.mailbox.where}"
        )

    def _lacks(self, word: dict[str, Any]) -> str:
        return lacks(word, self.presence.about, device=self.device, chosen=self.chosen, each=self.each)

    def _port(self) -> int:
        """Return a port for torch's store: the one that is asked for, else the usual one, or any if it is taken."""
        with socket.socket(socket.AF_INET6 if ":" in self.address else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", self.nodes.port or PORT))
            except OSError as error:
                if self.launch.master_port:
                    raise UserError(
                        f"launch.master_port={self.launch.master_port}: {error.strerror}; give another one"
                    ) from error
                probe.bind(("", 0))
            return int(probe.getsockname()[1])
