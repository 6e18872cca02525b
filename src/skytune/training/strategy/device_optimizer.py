"""What a fused Adam is told, from numbers on the device: rate, clipping factor, and whether to do nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam


def reads_tensors(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer takes its rate, and word to do nothing, from the device."""
    known = type(optimizer) in (torch.optim.Adam, torch.optim.AdamW)
    return known and all(group["fused"] and not group["differentiable"] for group in optimizer.param_groups)


def local(tensor: Any) -> Tensor:
    """Return what this process holds of a tensor, which may be a DTensor: their module takes long to import."""
    found: Tensor = tensor.detach().to_local() if hasattr(tensor, "to_local") else tensor
    return found


def update(optimizer: Any, rates: list[Tensor], factor: Tensor, skip: Tensor) -> None:
    """Have a fused Adam update its weights: all of them, or this process's shards, whose kernel takes no such tensors
    beside DTensors."""
    if not any(hasattr(p, "to_local") for group in optimizer.param_groups for p in group["params"]):
        with told_on_device(optimizer, rates, factor, skip):
            optimizer.step()
        return
    with torch.no_grad():
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            tensors: list[list[Tensor]] = [[] for _ in range(6)]
            optimizer._init_group(group, *tensors)
            beta1, beta2 = group["betas"]
            adam(
                *([local(tensor) for tensor in each] for each in tensors),
                fused=True,
                lr=rate,
                grad_scale=factor,
                found_inf=skip,
                beta1=beta1,
                beta2=beta2,
                **{
                    name: group[name]
                    for name in ("amsgrad", "weight_decay", "eps", "maximize", "decoupled_weight_decay")
                },
            )


@contextmanager
def told_on_device(optimizer: Any, rates: list[Tensor], factor: Tensor, skip: Tensor) -> Iterator[None]:
    """Have a fused Adam read rate, factor and word to do nothing from tensors, as torch's GradScaler has it."""
    before = [(group["lr"], group["capturable"]) for group in optimizer.param_groups]
    optimizer.grad_scale, optimizer.found_inf = factor, skip
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"], group["capturable"] = rate, rate.is_cuda
    try:
        yield
    finally:
        del optimizer.grad_scale, optimizer.found_inf
        for group, (lr, capturable) in zip(optimizer.param_groups, before, strict=True):
            group["lr"], group["capturable"] = lr, capturable
