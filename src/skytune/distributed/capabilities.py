"""What a machine cannot run: one line each, before any data is read. Needs no torch where there is no GPU to ask."""

import importlib.util
import os

from ..config import OnNan, Precision, RunConfig, StrategyName, UserError
from ..config.installing import add_extra


def chosen(config: RunConfig, processes: int) -> StrategyName:
    """Return the strategy of a run on so many processes (never `auto`)."""
    if config.strategy.name is not StrategyName.auto:
        return config.strategy.name
    return StrategyName.single if processes == 1 else StrategyName.ddp


def check_strategy(config: RunConfig, processes: int, device: str) -> None:
    """Refuse a strategy that this machine, this number of processes or the installed packages cannot run.

    Args:
        device: `cpu`, `cuda` or `mps`.

    Raises:
        UserError: with the way out.
    """
    name = chosen(config, processes)
    if name in (StrategyName.single, StrategyName.dp) and processes > 1:
        raise UserError(
            f"strategy={name.value} is one process, {processes} were asked for: use strategy=ddp, or "
            "launch.num_processes=1"
        )
    if name in (StrategyName.fsdp, StrategyName.optimizer_sharding) and device == "mps":
        raise UserError(f"strategy={name.value}: an MPS device cannot exchange tensors; use strategy=single")
    together = config.strategy.shard_processes
    if together is not None and processes % together:
        raise UserError(f"strategy.shard_processes={together}: does not divide the {processes} processes")
    if name.is_zero:
        if config.ema.decay:
            raise UserError(f"strategy={name.value}: has no averaged weights (ema.decay); strategy=fsdp has")
        lacking = {
            "schedule.unfreeze_epochs": config.schedule.unfreeze_epochs,
            "optimizer.gradient_noise": config.optimizer.gradient_noise,
            f"on_nan={config.on_nan.value}": config.on_nan is not OnNan.stop,
        }
        if key := next((key for key, value in lacking.items() if value), None):
            raise UserError(
                f"strategy={name.value}: DeepSpeed takes the step itself, without {key}; strategy=fsdp has it"
            )
        # DeepSpeed's own variable: whoever sets it knows what it is for (tests).
        if device != "cuda" and os.environ.get("DS_ACCELERATOR") != device:
            raise UserError(
                f"strategy={name.value}: DeepSpeed needs CUDA GPUs, this is {device}; use strategy=fsdp, which does "
                "the same on any device"
            )
        if importlib.util.find_spec("deepspeed") is None:
            raise UserError(
                f"strategy={name.value}: DeepSpeed is not installed: {add_extra('deepspeed')} "
                "(or use strategy=fsdp, which needs nothing more)"
            )


def check_precision(wanted: Precision, device: str) -> None:
    """Refuse a precision that cannot be had and is not replaced by another one.

    Args:
        device: `cpu`, `cuda` or `mps`.

    Raises:
        UserError: with the way out.
    """
    if wanted in (Precision.fp16, Precision.fp8):
        from .precision import ability, resolve

        resolve(wanted, ability(device))
