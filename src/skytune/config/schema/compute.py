"""`compute` and `launch`: on which machine, which device, in how many processes. None of it decides the result."""

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ..checks import above_zero, at_least
from ..durations import whole_minutes
from ..errors import ConfigError


class Device(str, Enum):
    """Kinds of device."""

    auto = "auto"
    cpu = "cpu"
    mps = "mps"
    cuda = "cuda"


class PackedMode(str, Enum):
    """Whether steps are taken on the fast path: captured, rows packed or padded."""

    auto = "auto"
    on = "on"
    off = "off"


ACCELERATORS = re.compile(r"[A-Za-z0-9][\w.-]*(:\d+)?")
AT_LEAST = re.compile(r"\d+(\.\d+)?\+?")


@dataclass(kw_only=True)
class RecoveryConfig:
    """What happens when the cloud takes machines away, or they are lost."""

    max_attempts: int = 3
    """How often machines are brought up for one run in all; 1 never again. A mistake in the run itself is not tried
    again."""

    on_demand_fallback: bool = False
    """Where no spot machine can be had, take machines at the full price instead."""

    def __post_init__(self) -> None:
        at_least(self, "compute.recovery", 1, "max_attempts")


@dataclass(kw_only=True)
class ComputeConfig:
    """The machine that trains."""

    device: Device = Device.auto
    """`auto` takes CUDA, then MPS, then the CPU; a device that is asked for and not there is an error."""

    packed: PackedMode = PackedMode.auto
    """The fast path of the training step: all of a step captured in one CUDA graph; rows packed without padding where
    the model allows it, else padded to a few lengths, and the model's blocks compiled in runs of 500 steps and
    more. `auto` takes it on CUDA where a trial shows the same losses and gradients, and says in one line which and why;
    `on` insists (on a CPU too, where it is there for tests and slower); `off` never takes it. The mathematics are the
    same, rounding is not."""

    usd_per_hour: float | None = None
    """What an hour of this machine costs, where you know it: the report then says what the run cost. A machine that is
    rented for the run brings its own price."""

    local: bool = False
    """Train on this machine, even where the stack could bring up others."""

    accelerators: str | None = None
    """GPUs of every machine, as SkyPilot names them (`A10G:4`). This and all below is for a stack with the step
    operator `skypilot`; on any other it is ignored, with one line. Empty means what the stack was registered with."""

    instance_type: str | None = None
    """The cloud's name of a machine (`g5.12xlarge`); `compute=g5.12xlarge` is short for it. With SageMaker's names
    (`compute=ml.g5.12xlarge`) the job is one of SageMaker's, see `sagemaker`."""

    cpus: int | str | None = None
    """Virtual CPUs of every machine: a number, or `8+` for at least so many."""

    memory: int | str | None = None
    """Memory of every machine in GiB: a number, or `32+` for at least so much."""

    num_nodes: int | None = None
    """Machines. The processes are shared out evenly among them."""

    use_spot: bool | None = None
    """Spot machines: cheaper, and the cloud may take them away; the run goes on from its last checkpoint on others."""

    infra: str | None = None
    """Where: `aws`, `aws/us-east-1`, `gcp`, `k8s`, ... as SkyPilot writes it. Empty takes the cheapest there is."""

    region: str | None = None
    """The cloud's region; empty tries all of them, the cheapest first."""

    zone: str | None = None
    """The region's zone; empty tries all of them."""

    disk_size: int | None = None
    """Disk of every machine in GB; empty means SkyPilot's default. Data, model and checkpoints must fit on it."""

    image_id: str | None = None
    """Machine image or `docker:IMAGE`; empty means SkyPilot's own."""

    idle_minutes_to_autostop: int | None = None
    """A machine that has had nothing to do for so long takes itself down, whatever became of this process."""

    max_hourly_usd: float | None = None
    """Launch nothing that costs more an hour, all machines together."""

    keep_on_failure: int | float | str | None = None
    """Keep the machines of a job that failed for so long, to look at them: `30m`, `2h`, `90s`, or a number of minutes.
    Empty takes them down at once."""

    max_hours: float | None = None
    """The job is ended after so long, whatever it does: machines take themselves down only when they are idle."""

    resources: dict[str, Any] = field(default_factory=dict)
    """Anything else that SkyPilot knows of resources, handed on as it is (`+compute.resources.disk_tier=best`)."""

    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    """What happens when machines are taken away."""

    def __post_init__(self) -> None:
        if self.usd_per_hour is not None and not 0 < self.usd_per_hour < float("inf"):
            raise ConfigError(f"compute.usd_per_hour={self.usd_per_hour:g}: must be above 0, or null (unknown)")
        self.device = Device(self.device)
        self.packed = PackedMode(self.packed)
        at_least(self, "compute", 1, "num_nodes", "disk_size", "idle_minutes_to_autostop")
        _ = self.keep_minutes
        above_zero(self, "compute", "max_hourly_usd", "max_hours")
        if self.accelerators and not ACCELERATORS.fullmatch(self.accelerators):
            raise ConfigError(f"compute.accelerators={self.accelerators}: write NAME or NAME:COUNT (A10G:4)")
        for key in ("cpus", "memory"):
            value = getattr(self, key)
            if value is not None and not AT_LEAST.fullmatch(str(value)):
                raise ConfigError(f"compute.{key}={value}: a number, or a number and + (8+)")
        if self.accelerators and self.instance_type:
            raise ConfigError(
                f"compute.instance_type={self.instance_type}: says what accelerators={self.accelerators} says; "
                "give one of them"
            )

    @property
    def keep_minutes(self) -> int | None:
        """`keep_on_failure` in minutes."""
        if self.keep_on_failure is None:
            return None
        return whole_minutes("compute.keep_on_failure", self.keep_on_failure)


@dataclass(kw_only=True)
class TimeoutsConfig:
    """How long is waited, in seconds."""

    start: float = 300.0
    """For all processes and machines to find each other, and for one that keeps the others waiting later on."""

    stop: float = 60.0
    """For workers to save and end after Ctrl-C, SIGTERM or SIGUSR1, before they are ended without."""

    kill: float = 10.0
    """For workers to end by themselves after another one of them has died, before they are killed."""

    heartbeat: float = 30.0
    """For a sign of life: a machine that gives none for so long is lost, and the run ends; a run that gives none for
    twice as long may be taken over by another launch (on the Hub, where looking is slow, after 40 minutes)."""

    store: float = 120.0
    """For a store that fails in ways that pass (5xx, timeouts, no connection): it is tried again for so long before a
    save counts as failed. In the background, too. A store times out when it stands still for so long, or for a
    minute."""

    def __post_init__(self) -> None:
        above_zero(self, "launch.timeouts", *vars(self))


@dataclass(kw_only=True)
class LaunchConfig:
    """The worker processes."""

    num_processes: int | str = "auto"
    """`auto`: one process a GPU, one on a CPU or MPS. A number is a promise: so many run, or the run ends."""

    threads: int | None = None
    """CPU threads of each process; empty shares the cores out evenly."""

    detach: bool = False
    """Leave a job that runs on SkyPilot's machines alone once it runs; the same command without this attaches to it."""

    timeouts: TimeoutsConfig = field(default_factory=TimeoutsConfig)
    """How long is waited."""

    nodes: int | None = None
    """Machines that train together; `num_processes` counts the processes of all of them. Empty: what the variables of
    SkyPilot, Slurm, torchrun or SageMaker say, else one."""

    node_rank: int | None = None
    """This machine's number among them, from 0. Node 0 runs the pipeline and writes the results."""

    share: str | None = None
    """Folder or bucket (`s3://bucket/folder`) that all machines read and write; a folder becomes SKYTUNE_HOME. Empty:
    the bucket of `checkpoint.store`, else SKYTUNE_HOME, which must then lie on a file system that all share."""

    master_addr: str | None = None
    """Address of node 0 as the others reach it; empty: what the variables say, else this machine's own."""

    master_port: int | None = None
    """Port on which torch's store listens on node 0. Empty: 29511, or any that is free."""

    hosts: list[str] = field(default_factory=list)
    """The other machines (`[a,me@b]`): this one is node 0 and starts them over SSH, which must need no password; inputs
    and logs go by rsync."""

    gpu_ids: str | None = None
    """GPUs of this machine that may be used (`0,1`), by CUDA's numbers; empty takes all that are visible."""

    accelerate_config: str | None = None
    """A file that `accelerate config` wrote: its options go before these presets, and after what the command line says.
    An option that cannot be honoured is refused by name. Without this key no such file is read."""

    def __post_init__(self) -> None:
        if self.num_processes != "auto":
            try:
                self.num_processes = int(self.num_processes)
            except ValueError:
                raise ConfigError(
                    f"launch.num_processes={self.num_processes}: 'auto' or a number of at least 1"
                ) from None
            if self.num_processes < 1:
                raise ConfigError(f"launch.num_processes={self.num_processes}: 'auto' or a number of at least 1")
        at_least(self, "launch", 1, "threads", "nodes")
        if self.node_rank is not None and self.node_rank < 0:
            raise ConfigError(f"launch.node_rank={self.node_rank}: the first machine has 0")
        if self.master_port is not None and not 0 < self.master_port < 65536:
            raise ConfigError(f"launch.master_port={self.master_port}: must lie between 1 and 65535")
        kind, separator, rest = (self.share or "").partition("://")
        if separator and (kind not in ("s3", "file") or not rest.strip("/")):
            raise ConfigError(f"launch.share={self.share}: a folder, file:///folder or s3://bucket/folder is meant")
        for number, host in enumerate(self.hosts):
            if not host.strip():
                raise ConfigError(f"launch.hosts={self.hosts}: a name is empty")
            if host in self.hosts[:number]:
                raise ConfigError(f"launch.hosts=[{','.join(self.hosts)}]: {host} is named twice")
        if self.gpu_ids is not None and not re.fullmatch(r"[\w-]+(,[\w-]+)*", self.gpu_ids):
            raise ConfigError(f"launch.gpu_ids={self.gpu_ids}: write numbers with commas between them, as in '0,1'")
