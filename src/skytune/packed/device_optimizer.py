"""What a fused Adam is told, from numbers on the device: rate, clipping factor, and whether to do nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def reads_tensors(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer takes its rate, and word to do nothing, from the device."""
    known = type(optimizer) in (torch.optim.Adam, torch.optim.AdamW)
    return known and all(group["fused"] and not group["differentiable"] for group in optimizer.param_groups)


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
