"""How many processes a machine should run, found out without importing torch, which takes seconds, if that can be."""

import ctypes
import importlib.util
import os
import platform
import runpy
import sys
from itertools import takewhile
from pathlib import Path

from ..config import ComputeConfig, ConfigError, Device, LaunchConfig, RunConfig, UserError
from ..distributed.capabilities import check_precision, check_strategy
from .multinode.topology import nodes_of

DRIVER_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Present where a GPU driver is loaded: NVIDIA, AMD, and either of them under Windows' Linux."""


def count_gpus() -> int:
    """Return the number of CUDA (or ROCm) devices that this process may use."""
    if not any(Path(file).exists() for file in DRIVER_FILES):
        return 0
    if (found := _count_by_driver()) is not None:
        return found
    import torch

    return torch.cuda.device_count()


def _count_by_driver() -> int | None:
    """Return what torch would count, by asking NVIDIA's driver as it does; None where torch itself is to be asked: it
    is of no CUDA build, the driver does not answer, CUDA_VISIBLE_DEVICES is no list of different numbers."""
    named, spec, count = os.environ.get("CUDA_VISIBLE_DEVICES"), importlib.util.find_spec("torch"), ctypes.c_int(-1)
    numbers = named.split(",") if named is not None else []
    if spec is None or spec.origin is None or not all(map(str.isdecimal, numbers)) or len({*numbers}) < len(numbers):
        return None
    if runpy.run_path(str(Path(spec.origin).with_name("version.py"))).get("cuda") is None:
        return None
    try:
        driver = ctypes.CDLL("libnvidia-ml.so.1")
        if driver.nvmlInit() or driver.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return None
    except (OSError, AttributeError):
        return None
    if named is None:
        return count.value
    return len(list(takewhile(lambda number: int(number) < count.value, numbers)))  # CUDA goes no further either


def visible_gpus() -> list[str]:
    """Return the names of the CUDA (or ROCm) devices that this process may use, as CUDA_VISIBLE_DEVICES has them."""
    count = count_gpus()
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return named[:count] if named else [str(number) for number in range(count)]


def check_machine(config: RunConfig) -> None:
    """Refuse what this machine cannot run, before any data is read; the workers look again, more closely.

    Raises:
        UserError: a device that is not there, more processes than GPUs, a number of them that machines cannot share
            evenly, or a strategy or precision that cannot be had.
    """
    compute, launch = config.compute, config.launch
    nodes = nodes_of(launch, os.environ).count
    wanted = 1 if launch.num_processes == "auto" else processes_each(compute, launch, nodes)
    if compute.device is Device.mps and sys.platform != "darwin":
        raise UserError("compute=mps: only Macs have it; use compute=cpu or compute=auto")
    if compute.device is Device.cuda and count_gpus() < wanted:
        raise UserError(
            f"compute=cuda: {wanted} GPU{'s are' if wanted > 1 else ' is'} needed, {count_gpus()} are visible "
            "(see nvidia-smi); use compute=cpu, or a smaller launch.num_processes"
        )
    every = nodes if launch.num_processes == "auto" else 1  # a number counts the processes of all machines
    check_strategy(config, processes_wanted(compute, launch) * every, device_here(compute))
    check_precision(config.precision, device_here(compute))


def device_here(compute: ComputeConfig) -> str:
    """Return `cuda`, `mps` or `cpu`: what a worker on this machine would compute on."""
    if compute.device is not Device.auto:
        return compute.device.value
    if count_gpus():
        return "cuda"
    return "mps" if sys.platform == "darwin" and platform.machine() == "arm64" else "cpu"


def processes_wanted(compute: ComputeConfig, launch: LaunchConfig) -> int:
    """Return the number of worker processes: what was asked for, else one a GPU, else one."""
    if launch.num_processes != "auto":
        return int(launch.num_processes)
    if compute.device in (Device.cpu, Device.mps):
        return 1
    return max(1, count_gpus())


def processes_each(compute: ComputeConfig, launch: LaunchConfig, nodes: int) -> int:
    """Return the processes of every machine: an even share of what was asked for, else one a GPU, else one.

    Raises:
        ConfigError: they cannot be shared out evenly.
    """
    if launch.num_processes == "auto":
        return processes_wanted(compute, launch)
    total = int(launch.num_processes)
    if total % nodes:
        raise ConfigError(f"launch.num_processes={total}: cannot be shared out evenly among {nodes} machines")
    return total // nodes


def threads_each(launch: LaunchConfig, processes: int) -> int:
    """Return the CPU threads of every process: an even share of the cores this process may use."""
    if launch.threads:
        return launch.threads
    return max(1, _cores() // processes)


def machine_is_busy() -> bool:
    """Return whether other work keeps half of this machine's cores or more: the load average of the last minute.

    Threads that spin while they wait for each other are 1.25 times as fast as threads that sleep where the cores are
    theirs, and take the cores from each other where something else runs on them (5.6 s against 1.3 s a step, both seen
    on 2 cores).
    """
    return hasattr(os, "getloadavg") and os.getloadavg()[0] >= _cores() / 2


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
