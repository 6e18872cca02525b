"""Which machines are meant: what the stack was registered with, and what the run asks for."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ...config import ComputeConfig, ConfigError, Device, LaunchConfig, from_dict, to_dict

SIZE = ("accelerators", "instance_type", "cpus", "memory")
"""What says how large a machine is: asked for in part, the stack's own answer to all of it is void."""

PLACE = ("infra", "region", "zone")
"""What says where: a cloud asked for voids the stack's region, a region asked for its zone."""

HERE = ("device", "packed", "local", "usd_per_hour")
"""What concerns the processes, or this machine alone: the run decides it."""

DEFAULTS: dict[str, Any] = {"num_nodes": 1, "use_spot": False, "idle_minutes_to_autostop": 10, "max_hours": 24.0}
"""Where neither the stack nor the run says anything."""

VARIABLE = "SKYTUNE_SKYPILOT"
"""Environment variable in which the step operator hands the stack's machine to the step (JSON)."""

STORE = "store"
"""Beside the machine's keys: where runs on this stack that name no store keep their checkpoints."""

ROLE = "sagemaker_role"
"""Likewise: the execution role of SageMaker's jobs on this stack (ARN)."""

MACHINE = [f.name for f in fields(ComputeConfig) if f.name not in (*HERE, "recovery", "resources")]
"""Keys that describe the machine."""


def machines_asked(compute: ComputeConfig) -> dict[str, Any]:
    """Return what the configuration says that only a launcher which brings machines can make true, by key."""
    asked = {key: getattr(compute, key) for key in MACHINE if getattr(compute, key) is not None}
    return asked | ({"resources": compute.resources} if compute.resources else {})


def merged(stack: Mapping[str, Any], asked: ComputeConfig) -> ComputeConfig:
    """Return what is asked for, completed by what the stack was registered with, then by the defaults.

    Raises:
        ConfigError: the stack's settings are none of ours, or together they make no sense.
    """
    values = to_dict(asked)
    base = {key: value for key, value in stack.items() if value is not None}
    if any(values[key] is not None for key in SIZE):
        base = {key: value for key, value in base.items() if key not in SIZE}
    for number, key in enumerate(PLACE):
        if values[key] is not None:
            base = {name: value for name, value in base.items() if name not in PLACE[number:]}
    for key in MACHINE:
        if values[key] is None:
            values[key] = base.get(key, DEFAULTS.get(key))
    values["resources"] = {**(base.get("resources") or {}), **values["resources"]}
    if base.get("recovery") and asked.recovery == type(asked.recovery)():
        values["recovery"] = dict(base["recovery"])
    return from_dict(ComputeConfig, values, "compute")


def processes(compute: ComputeConfig, launch: LaunchConfig, gpus_each: int) -> tuple[int, int]:
    """Return (machines, processes on each of them).

    Args:
        gpus_each: GPUs of every machine.

    Raises:
        ConfigError: the processes cannot be shared out evenly, or there are fewer GPUs than processes.
    """
    nodes = compute.num_nodes or 1
    if launch.num_processes == "auto":
        return nodes, max(1, gpus_each if compute.device is not Device.cpu else 1)
    total = int(launch.num_processes)
    if total % nodes:
        raise ConfigError(
            f"launch.num_processes={total}: cannot be shared out evenly among compute.num_nodes={nodes} machines"
        )
    if gpus_each and compute.device is not Device.cpu and total // nodes > gpus_each:
        raise ConfigError(
            f"launch.num_processes={total}: {total // nodes} processes on every machine, which has {gpus_each} GPUs; "
            "compute.device=cpu runs them without"
        )
    return nodes, total // nodes
