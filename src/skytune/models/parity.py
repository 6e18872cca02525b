"""Holds gradients of another form of a model against its own, before that form is trusted to train it."""

from collections.abc import Sequence

import torch
from torch import Tensor

WITHIN = {torch.float32: 1e-2, torch.bfloat16: 0.25}
"""Largest relative error of one parameter's gradient, ||found - expected|| / ||expected||. Rounding stays far below; a
term that is missing is 1."""

NEGLIGIBLE = 1e-3
"""Gradients smaller than this share of the largest are not looked at: a key's bias has none but rounding."""


def worst_gradient(
    names: Sequence[str], expected: Sequence[Tensor | None], found: Sequence[Tensor | None]
) -> tuple[str, float]:
    """Return the parameter whose gradient is furthest off, and its relative error (infinite where one form has a
    gradient and the other has none)."""
    both = []
    for name, one, other in zip(names, expected, found, strict=True):
        if (one is None) != (other is None):
            return name, float("inf")
        if one is not None and other is not None:
            both.append((name, one.float().norm(), (other.float() - one.float()).norm()))
    if not both:
        return "", 0.0
    norms, gaps = torch.stack([norm for _, norm, _ in both]), torch.stack([gap for _, _, gap in both])
    errors = torch.where(norms > NEGLIGIBLE * norms.max(), gaps / norms.clamp(min=1e-30), 0.0)
    worst = int(errors.argmax())
    return both[worst][0], float(errors[worst])
