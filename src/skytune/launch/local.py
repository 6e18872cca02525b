"""Worker processes on this machine."""

import logging
import os
import signal
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..config import ComputeConfig, LaunchConfig, Preempted, WorkerError
from ..distributed.preemption import FLAG_FILE
from ..job import JobDir
from . import standby
from .compatibility import network
from .failures import failure, hanging
from .gpus import processes_wanted, threads_each
from .log_streaming import Follower, pump
from .multinode.topology import Nodes
from .processes import Child, check_loopback, end_group, environment, module_command, start, torchrun
from .signals import Stopping

if TYPE_CHECKING:
    from .warm import WarmWorkers

log = logging.getLogger(__name__)


class Launcher(Protocol):
    """Runs the worker processes of a job somewhere."""

    def run(self, job: JobDir, compute: ComputeConfig) -> None:
        """Block until the workers have ended; show rank 0's log; leave no process behind, whatever happens.

        Raises:
            UserError: the workers named something the user can act on.
            WorkerError: they failed otherwise; the message holds the last lines of the failing rank's log.
        """


class WorkerGroup:
    """The machines that take part in a job: this one alone. `multinode.launcher` has more."""

    tail: Sequence[str] = ()
    """What other machines printed last."""

    lost = ""
    """Which other machine is gone; empty while all are there."""

    def __init__(
        self,
        job: JobDir,
        processes: int,
        launch: LaunchConfig,
        gpus: Sequence[str] = (),
        shares: int = 1,
        warm: "WarmWorkers | None" = None,
    ) -> None:
        self.job, self.processes, self.launch = job, processes, launch
        self.gpus, self.shares, self.warm = gpus, shares, warm
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def start(self, stopping: Stopping) -> Child:
        """Start this machine's workers, once the other machines are there."""
        threads = threads_each(self.launch, self.processes * self.shares)
        env = environment(self.processes, threads, self.launch.timeouts.stop)
        if self.gpus:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus)
        self._folder = tempfile.TemporaryDirectory(prefix="skytune-", ignore_cleanup_errors=True)
        env.update(loopback(Path(self._folder.name)))
        if self.warm is not None and self.processes == 1:
            try:
                return self.warm.start(str(self.job.root), env)
            except OSError as error:
                log.warning("no worker can be forked (%s): it starts by itself, which takes longer", error)
        if self.processes == 1 and (waiting := standby.take(str(self.job.root), env)) is not None:
            return waiting
        words = ["skytune.training.worker", str(self.job.root)]
        return start(module_command(*words, processes=self.processes, folder=Path(self._folder.name)), env)

    def check(self) -> None:
        """To be called while the workers run.

        Raises:
            PeerFailed: those of another machine have ended badly, or the machine is gone.
        """

    def end(self, status: str, wait: bool = True) -> None:
        """Have the other machines end too, and bring their logs here; never raises.

        Args:
            status: `completed`, `preempted` or `failed`.
            wait: whether to wait for their logs.
        """
        if self._folder is not None:
            self._folder.cleanup()


class PeerFailed(Exception):
    """Workers of another machine have ended: those of this one wait for nobody."""


class LocalLauncher:
    """One process directly, several through torchrun (one agent).

    Args:
        gpus: names of the only devices that the workers may see; all of this machine's where none is named.
        shares: how many jobs run on this machine at once, which share out its cores.
        warm: forks the worker of a job that has one process.
    """

    def __init__(self, gpus: Sequence[str] = (), shares: int = 1, warm: "WarmWorkers | None" = None) -> None:
        self.gpus, self.shares, self.warm = gpus, shares, warm

    def run(self, job: JobDir, compute: ComputeConfig) -> None:
        """See `Launcher`."""
        launch = job.job.config.launch
        wanted = len(self.gpus) if self.gpus and launch.num_processes == "auto" else processes_wanted(compute, launch)
        if wanted > 1:
            check_loopback()
        run_workers(job, launch, WorkerGroup(job, wanted, launch, self.gpus, self.shares, self.warm))


def run_workers(job: JobDir, launch: LaunchConfig, team: WorkerGroup) -> None:
    """Have workers run to their end, as `Launcher` says."""
    job.logs.mkdir(parents=True, exist_ok=True)
    tail: deque[str] = deque(maxlen=200)
    follower = Follower(job.logs / "rank-0.log")
    result = None
    with (
        (job.logs / "output.log").open("ab", buffering=0) as record,
        Stopping(job.root / FLAG_FILE, launch.timeouts.stop) as stopping,
    ):
        try:
            child = team.start(stopping)

            def check() -> None:
                stopping.check()
                team.check()

            try:
                code = pump(child, record, tail, follower, check, job.outputs / "result.json", launch.timeouts.kill)
            except PeerFailed:
                code = 1
            finally:
                end_group(child, 0.0 if stopping.at_once else launch.timeouts.kill)
                follower.poll()
            result = job.read_result()
        finally:
            team.end((result or {}).get("status", "failed"), wait=not stopping.at_once)
    tail.extend(team.tail)
    if stopping.asked_by == signal.SIGINT:
        raise KeyboardInterrupt
    if result is not None and result.get("status") == "preempted":
        failed = result.get("save_failed")
        saved = f"which could NOT be saved ({failed})" if failed else "which is saved"
        raise Preempted(f"stopped after step {result['steps']}, {saved}; the same command goes on")
    if result is None and stopping.asked_by is not None and not job.read_errors():
        # The signal went to all processes, and hit the workers before they listened.
        raise Preempted("stopped without saving; the same command goes on from the last checkpoint, if there is one")
    if code != 0 or result is None:
        if team.lost and not any(error.user for error in job.read_errors().values()):
            raise WorkerError(f"{team.lost}; the same command goes on from the last checkpoint, if there is one")
        raise hanging(job, team.processes, launch.timeouts.start) or failure(job, code, list(tail))
    if result["world_size"] != team.processes:
        raise WorkerError(f"{team.processes} worker processes were asked for, {result['world_size']} trained")


def agent(job: JobDir, nodes: Nodes, each: int, master: str, port: int) -> list[str]:
    """Return the command of the workers of one of several machines."""
    options = ["--nnodes", str(nodes.count), "--node-rank", str(nodes.rank)]
    options += ["--master-addr", master, "--master-port", str(port)]
    return torchrun(each, *options, run=["skytune.training.worker", str(job.root)])


def loopback(folder: Path) -> dict[str, str]:
    """Return the variables by which workers of one machine meet in a file of `folder`, and listen on the loopback
    alone: torch's TCPStore has no authentication, and listens on every interface that the machine has."""
    found = {"SKYTUNE_RENDEZVOUS": str(folder / "workers"), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    for name, own in network("127.0.0.1").items():
        found |= {name: own, "NCCL_SOCKET_IFNAME": os.environ.get("NCCL_SOCKET_IFNAME", own)}
    return found
