"""`compute` and `launch`: on which device, and in how many processes. None of it decides the result."""

from dataclasses import dataclass
from enum import Enum

from .errors import ConfigError


class Device(str, Enum):
    """Kinds of device."""

    auto = "auto"
    cpu = "cpu"
    mps = "mps"
    cuda = "cuda"


class Fast(str, Enum):
    """Whether steps are taken on the fast path."""

    auto = "auto"
    on = "on"
    off = "off"


@dataclass(kw_only=True)
class ComputeConfig:
    """The machine that trains."""

    device: Device = Device.auto
    """`auto` takes CUDA, then MPS, then the CPU; a device that is asked for and not there is an error."""

    fast: Fast = Fast.auto
    """The fast path of the training step: rows packed without padding, all of a step captured in one CUDA graph.
    `auto` takes it on CUDA where the model and the options allow it, and says in one line why not; `on` insists (on a
    CPU too, where it is there for tests and slower); `off` never takes it. The mathematics are the same, rounding is
    not."""

    usd_per_hour: float | None = None
    """What an hour of this machine costs, where you know it: the report then says what the run cost. A machine that is
    rented for the run brings its own price."""

    def __post_init__(self) -> None:
        if self.usd_per_hour is not None and not 0 < self.usd_per_hour < float("inf"):
            raise ConfigError(f"compute.usd_per_hour={self.usd_per_hour:g}: must be above 0, or null (unknown)")
        self.device = Device(self.device)
        self.fast = Fast(self.fast)


@dataclass(kw_only=True)
class LaunchConfig:
    """The worker processes."""

    num_processes: int | str = "auto"
    """`auto`: one process a GPU, one on a CPU or MPS. A number is a promise: so many run, or the run ends."""

    threads: int | None = None
    """CPU threads of each process; empty shares the cores out evenly."""

    grace_seconds: float = 10.0
    """How long workers may take to end after they were asked to, or after another one of them has died, before they are
    killed."""

    stop_seconds: float = 60.0
    """How long workers may take to save and end after Ctrl-C, SIGTERM or SIGUSR1, before they are ended without."""

    start_timeout_seconds: float = 300.0
    """How long all processes may take to find each other."""

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
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"launch.threads={self.threads}: must be at least 1")
        if self.stop_seconds <= 0:
            raise ConfigError(f"launch.stop_seconds={self.stop_seconds}: must be above 0")
        if self.grace_seconds <= 0 or self.start_timeout_seconds <= 0:
            raise ConfigError("launch.grace_seconds and launch.start_timeout_seconds must be above 0")
