"""Which device this process computes on, in which number format, and how all processes find each other."""

import logging
import os
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from ..config import Device, Precision, RunConfig, UserError
from .capabilities import check_strategy
from .precision import ability, resolve, set_matmul

if TYPE_CHECKING:
    from accelerate import Accelerator

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DistContext:
    """The processes that train together, and this one's place among them."""

    rank: int
    size: int
    device: torch.device
    precision: Precision
    """The one that is really used."""
    requested: Precision = Precision.auto
    """The one that the config asks for."""

    @property
    def main(self) -> bool:
        """Whether this process speaks and writes results."""
        return self.rank == 0

    def describe(self) -> str:
        """Return the device as a person would name it, e.g. `cpu` or `cuda NVIDIA H100 80GB HBM3`."""
        if self.device.type == "cuda":
            return f"cuda {torch.cuda.get_device_name(self.device)}"
        return self.device.type

    def synchronize(self) -> None:
        """Wait until the device has done what it was given: to be called before a clock is read."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    def peak_memory_bytes(self) -> int | None:
        """Return the most memory the device's tensors took, None where the device does not count it."""
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None


def choose_device(wanted: Device) -> str:
    """Return `cuda`, `mps` or `cpu`.

    Raises:
        UserError: the device that was asked for is not there.
    """
    if wanted is Device.cuda and not torch.cuda.is_available():
        raise UserError("compute=cuda: no CUDA device is visible (see nvidia-smi); use compute=cpu or compute=auto")
    if wanted is Device.mps and not torch.backends.mps.is_available():
        raise UserError("compute=mps: no Metal device is there; use compute=cpu or compute=auto")
    if wanted is not Device.auto:
        return wanted.value
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def rendezvous(size: int, device: str) -> str | None:
    """Return where the processes of one machine meet: in a file, if the launcher says so (`launch.local`); None where
    torch's own variables say it."""
    file = os.environ.get("SKYTUNE_RENDEZVOUS")
    if not file or size == 1:
        return None
    # On a CPU Accelerate hands rank and size on beside it, and torch wants them once.
    return f"file://{file}" + ("" if device == "cpu" else f"?rank={os.environ['RANK']}&world_size={size}")


def backend(device: str) -> str | None:
    """Return the process group's backend: AWS's library where the launcher says so, else None (Accelerate's choice).

    Raises:
        UserError: this machine has not got it.
    """
    if os.environ.get("SKYTUNE_BACKEND") != "smddp" or device != "cuda":
        return None
    try:
        import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401  it registers itself with torch
    except ImportError as error:
        raise UserError(
            f"sagemaker.distribution=smddp: the image has no smdistributed.dataparallel ({error}): sagemaker.image= "
            "names one that has, sagemaker.distribution=torch needs none"
        ) from error
    return "smddp"


def join(config: RunConfig, asked: int | None) -> tuple["Accelerator", DistContext]:
    """Join the other processes (those of torchrun's environment) and return Accelerate's handle and our place.

    Args:
        asked: how many processes there must be; None when nobody promised a number.

    Raises:
        UserError: another number of processes came up than was asked for, or they did not find each other in time.
    """
    from accelerate import Accelerator, InitProcessGroupKwargs

    came_up = int(os.environ.get("WORLD_SIZE", "1"))
    if asked is not None and came_up != asked:
        raise UserError(f"{asked} worker processes were asked for, {came_up} came up: not training on the wrong number")
    device = choose_device(config.compute.device)
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if device == "cuda" and local_rank >= torch.cuda.device_count():
        raise UserError(
            f"launch.num_processes={came_up}: process {local_rank} has no GPU of its own, "
            f"{torch.cuda.device_count()} are visible; ask for at most that many, or use compute=cpu"
        )
    if device == "mps" and came_up > 1:
        raise UserError(f"launch.num_processes={came_up}: an MPS device serves one process; use 1, or compute=cpu")
    check_strategy(config, came_up, device)
    precision = resolve(config.precision, ability(device, local_rank if device == "cuda" else None))
    if precision.note:
        log.warning("%s", precision.note)
    set_matmul(precision.effective)
    # Whatever the person's own Accelerate settings put into the environment, ours is what the config says.
    for name in [n for n in os.environ if n.startswith(("ACCELERATE_", "FSDP_"))]:
        del os.environ[name]
    options: list[Any] = [
        InitProcessGroupKwargs(
            backend=backend(device),
            timeout=timedelta(seconds=config.launch.timeouts.start),
            init_method=rendezvous(came_up, device),
        )
    ]
    start = time.monotonic()
    try:
        # The precision is the strategy's: Accelerate's wrapper of `forward` is lost whenever a model is unwrapped.
        accelerator = Accelerator(cpu=device == "cpu", mixed_precision="no", kwargs_handlers=options)
    except RuntimeError as error:
        raise UserError(
            f"the {came_up} worker processes did not find each other within {time.monotonic() - start:.0f} s: {error}"
        ) from error
    if accelerator.num_processes != came_up:
        raise UserError(f"{came_up} worker processes were started, but Accelerate runs {accelerator.num_processes}")
    place = accelerator.device
    if place.type == "cuda" and place.index is None:
        place = torch.device("cuda", torch.cuda.current_device())
    world = DistContext(
        accelerator.process_index, accelerator.num_processes, place, precision.effective, precision.requested
    )
    return accelerator, world
