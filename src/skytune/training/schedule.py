"""The learning rate and the optimizer. The rate is a function of the optimizer step alone: no scheduler object that
would have to be saved, and no way for the number of processes to enter."""

import math
from collections.abc import Callable
from typing import Any

import torch

from ..config import ConfigError, OptimizerConfig, OptimizerName, ScheduleConfig, ScheduleName
from ..config.targets import instantiate, locate
from .parameter_groups import SCALE, parameter_groups


def factor(config: ScheduleConfig, total_steps: int) -> Callable[[int], float]:
    """Return the factor on the peak rate as a function of the optimizer step (0 is the first).

    The function, and the rounding of the warmup, are transformers' own, so that published recipes carry over: linear
    and cosine decay reach 0 after the last step; a warmup of w steps grows from 0 by 1/w a step.

    Raises:
        ConfigError: the warmup is as long as the whole run, or a function of the user's own does not fit.
    """
    if config._target_:
        return _own(config._target_, config.args, total_steps)
    # A ratio rounds up; of a run of a step or two it leaves the last one.
    warmup = config.warmup_steps or min(math.ceil(total_steps * config.warmup_ratio), total_steps - 1)
    if warmup and warmup >= total_steps:
        raise ConfigError(f"schedule: the warmup of {warmup} steps leaves nothing of the run's {total_steps} steps")
    from transformers import get_scheduler

    name = "constant_with_warmup" if config.name is ScheduleName.constant else config.name.value
    more = {} if config.cycles == 1 else {"scheduler_specific_kwargs": {"num_cycles": config.cycles}}
    name = "cosine_with_restarts" if more else name
    nothing = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    found: Any = get_scheduler(name, nothing, num_warmup_steps=warmup, num_training_steps=total_steps, **more)
    at: Callable[[int], float] = found.lr_lambdas[0]
    return at


def _own(target: str, args: dict[str, Any], total_steps: int) -> Callable[[int], float]:
    """Return a schedule of the user's own; it is tried out, so that what does not fit is said before training."""
    function = locate(target, "schedule._target_")

    def at(step: int) -> float:
        try:
            return float(function(step, total_steps, **args))
        except Exception as error:
            reason = f"failed at step {step} of {total_steps}: {type(error).__name__}: {error}"
            raise ConfigError(f"schedule._target_={target}: {reason}") from error

    at(0)
    return at


def build_optimizer(config: OptimizerConfig, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer over the model's trainable parameters (fused AdamW on CUDA and CPU)."""
    return optimizer_over(config, parameter_groups(model, config))


def optimizer_over(config: OptimizerConfig, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """Return the optimizer over parameter groups."""
    if config._target_:
        return instantiate(config._target_, {"lr": config.lr, **config.args}, groups, key="optimizer._target_")
    if config.name is OptimizerName.sgd:
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)
    devices = {p.device.type for group in groups for p in group["params"]}
    return torch.optim.AdamW(
        groups, lr=config.lr, betas=(config.betas[0], config.betas[1]), eps=config.eps, fused=devices <= {"cuda", "cpu"}
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameter groups, in proportion to the rates they were made with."""
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])
        first = optimizer.param_groups[0]
        base = first["initial_lr"] / first.get(SCALE, 1.0)
        group["lr"] = rate * (group["initial_lr"] / base)
