"""Worker processes on several machines: this one is node 0, the others `join` it, or are `hosts` that it starts.

On every machine one agent of torchrun runs, with the fixed rendezvous (`--master-addr`, `--master-port`).
"""

import logging
import os
import socket
import subprocess
import sys
from typing import Any

from ..config import ComputeConfig, Device, LaunchConfig, Preempted, UserError
from ..job import JobDir
from ..training.preemption import FLAG_FILE
from ..training.refusals import refuse_strategy
from .gathering import TOKEN, Gathering
from .gpus import device_here, processes_each, threads_each
from .hosts import Hosts, is_this_machine
from .local import PeerEnded, Team, environment, run_workers, start
from .machine import about, differs, network, own_address
from .nodes import Nodes
from .processes import START
from .stopping import Stopping

log = logging.getLogger(__name__)


def agent(job: JobDir, nodes: Nodes, each: int, master: str, port: int) -> list[str]:
    """Return the command of a machine's workers."""
    words = [sys.executable, "-m", "torch.distributed.run"]
    words += ["--nnodes", str(nodes.count), "--node-rank", str(nodes.rank), "--nproc-per-node", str(each)]
    words += ["--master-addr", master, "--master-port", str(port), "--max-restarts", "0"]
    return [*words, str(START), "skytune.training.worker", str(job.root)]


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
        refuse_strategy(config, each * self.nodes.count, device_here(compute))
        if self.nodes.source and not os.environ.get(TOKEN):
            raise UserError(
                f"{self.nodes.source} has started {self.nodes.count} machines: give all of them the same secret, by "
                f"which they know each other (export {TOKEN}=$(openssl rand -hex 16) before they start)"
            )
        run_workers(job, config.launch, Gathered(job, self.nodes, config.launch, compute, each))


class Gathered(Team):
    """Machines that train together."""

    def __init__(self, job: JobDir, nodes: Nodes, launch: LaunchConfig, compute: ComputeConfig, each: int) -> None:
        super().__init__(job, each * nodes.count, launch)
        self.nodes, self.each = nodes, each
        ours, device, chosen = about(), device_here(compute), compute.device is not Device.auto

        def refuse(theirs: dict[str, Any]) -> str:
            return differs(theirs, ours, device=device, chosen=chosen, each=each)

        self.gathering = Gathering(job, nodes, launch, each, refuse)
        self.hosts: Hosts | None = None
        self.address = nodes.address or (
            "127.0.0.1" if all(map(is_this_machine, launch.hosts or ["?"])) else own_address()
        )

    def start(self, stopping: Stopping) -> "subprocess.Popen[bytes]":
        """See `Team`."""
        gathering = self.gathering
        gathering.open()
        place = f"[{self.address}]:{gathering.port}" if ":" in self.address else f"{self.address}:{gathering.port}"
        if self.launch.hosts:
            self.hosts = Hosts(self.launch.hosts, place, gathering.token, self.launch.nodes_timeout_seconds)
            self.hosts.start(self.job.logs)
        elif not self.nodes.source:
            missing = f"{self.nodes.count - 1} machine{'s' if self.nodes.count > 2 else ''}"
            # Past every log: whoever keeps those need not know the token.
            print(
                f"waiting for {missing} to join, at most {self.launch.nodes_timeout_seconds:g} s; on each of them:\n"
                f"  {TOKEN}={gathering.token} python -m skytune.training join {place}",
                file=sys.__stdout__,
                flush=True,
            )

        def check() -> None:
            if stopping.asked_by is not None:
                raise Preempted("stopped before training began; the same command begins again")
            if self.hosts is not None:
                self.hosts.check(set(gathering.members))

        gathering.wait(check)
        port = _free_port(gathering.port + 1 if self.nodes.port else 0)
        env = environment(self.processes, threads_each(self.launch, self.each), self.launch.stop_seconds)
        env.update(network(self.address))
        env.pop(TOKEN, None)
        child = start(agent(self.job, self.nodes, self.each, self.address, port), env)
        gathering.go(self.address, port)
        return child

    def check(self) -> None:
        """See `Team`."""
        if self.gathering.asked_to_stop.is_set():
            (self.job.root / FLAG_FILE).touch()
        if self.gathering.failed():
            raise PeerEnded

    def end(self, status: str, wait: bool = True) -> None:
        """See `Team`."""
        self.gathering.end(status, wait)
        if self.hosts is not None:
            self.hosts.end()
        self.lost = self.gathering.gone()
        self.tail = [line for member in list(self.gathering.members.values()) for line in member.tail]


def _free_port(first: int) -> int:
    """Return a free port: the first from `first` on, any where that is 0."""
    for port in range(first, min(first + 50, 65536)) if first else (0,):
        try:
            with socket.create_server(("", port)) as probe:
                return int(probe.getsockname()[1])
        except OSError:
            continue
    raise UserError(f"launch.master_port={first - 1}: none of the 50 ports after it is free")
