"""Tries a packed model out before it is trusted: logits and gradients of a few rows, against the model's own.

Kernels are compiled for the card at hand, and models have corners that nobody thought of; a wrong gradient trains
something all the same.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from ...data.batches import TokenTable
from ..prediction import logits_of
from .ops import Drop
from .packing import GRAIN
from .step import PackedStep

ROWS = 8

WITHIN = {torch.float32: 1e-2, torch.bfloat16: 0.25}
"""Largest relative error of one parameter's gradient, ||found - expected|| / ||expected||. Rounding stays far below; a
term that is missing is 1."""

NEGLIGIBLE = 1e-3
"""Gradients smaller than this share of the largest are not looked at: a key's bias has none but rounding."""

OFF = Drop(0.0, 0)


def disagreement(module: nn.Module, step: PackedStep, table: TokenTable, rows: np.ndarray) -> str:
    """Return in what the packed form differs from the model without dropout, as the end of a sentence; empty if equal.

    Weights, optimizer state and random numbers are left as they are.

    Args:
        module: the fp32 model, on the step's device.
        rows: rows of the table to try; the first few are taken.
    """
    arena, device = step.model.arena, step.whole.device
    rows = rows[: min(ROWS, len(step.rows))]
    training = module.training
    module.eval()
    step.model.shell.eval()
    shapes = step.model.shapes
    step.model.shapes = [replace(shape, attention=OFF, project=OFF, fall=OFF) for shape in shapes]
    try:
        tensors = {name: tensor.to(device) for name, tensor in table.batch(rows).items()}
        labels = tensors.pop("labels")
        with torch.autocast(device.type, torch.bfloat16, enabled=arena.low is not arena.weights):
            expected = logits_of(module(**tensors)).float()
        nn.functional.cross_entropy(expected, labels).backward()
        step.rows.fill_(-1)
        step.rows[: len(rows)] = torch.from_numpy(rows).to(device)
        step.share.fill_(1 / len(rows))
        step.run(-(-int(table.lengths[rows].sum()) // GRAIN) * GRAIN, update=False, alone=True)
        loss = nn.functional.cross_entropy(expected.detach(), labels)
        within = WITHIN[arena.low.dtype]
        if not torch.isclose(step.loss, loss, atol=within / 5, rtol=within / 5):
            return f"the packed form's loss is {float(step.loss):.4f}, the model's {float(loss):.4f}"
        name, error = _worst_gradient(module, step)
        return "" if error <= within else f"the packed form's gradient of {name} is {error:.0%} off the model's"
    finally:
        step.model.shapes = shapes
        module.zero_grad(set_to_none=True)
        module.train(training)
        step.model.shell.train()


def _worst_gradient(module: nn.Module, step: PackedStep) -> tuple[str, float]:
    """Return the parameter whose gradient is furthest off, and its relative error."""
    named = [(name, p) for name, p in module.named_parameters() if p.grad is not None]
    norms = torch.stack([p.grad.float().norm() for _, p in named])
    gaps = torch.stack([(step.model.arena.grad_of(p).float() - p.grad.float()).norm() for _, p in named])
    errors = torch.where(norms > NEGLIGIBLE * norms.max(), gaps / norms.clamp(min=1e-30), 0.0)
    worst = int(errors.argmax())
    return named[worst][0], float(errors[worst])
