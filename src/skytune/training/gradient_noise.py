"""Noise on gradients (Neelakantan et al. 2015, arXiv:1511.06807): normal, of variance `eta / (1 + step)^0.55`."""

import torch

from ..checkpoint.shards import local_piece
from ..data.order import step_seed

DECAY = 0.55
"""Exponent by which the variance falls; the paper's."""

STREAM = 2**32 - 1
"""Takes the place of a rank: no process draws its dropout from this stream."""


def add_noise(model: torch.nn.Module, eta: float, seed: int, step: int) -> None:
    """Add noise to all gradients: a function of seed and step (from 0), whatever processes hold of each.

    Every process draws the noise of the whole model, on the gradients' device, and takes its part of each tensor.
    """
    generators: dict[torch.device, torch.Generator] = {}
    for parameter in model.parameters():
        if parameter.grad is None:
            continue
        piece = local_piece(parameter.grad)
        device = piece.tensor.device
        if device not in generators:
            generators[device] = torch.Generator(device).manual_seed(step_seed(seed, step, STREAM))
        noise = torch.randn(piece.shape, generator=generators[device], device=device)
        for dimension, (start, length) in enumerate(zip(piece.offset, piece.tensor.shape, strict=True)):
            noise = noise.narrow(dimension, start, length)
        piece.tensor.add_(noise.to(piece.tensor.dtype), alpha=(eta / (1 + step) ** DECAY) ** 0.5)
