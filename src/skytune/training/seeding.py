"""Random streams as functions of (seed, step, rank): nothing about them has to be saved."""

import numpy as np
import torch


def step_seed(seed: int, step: int, rank: int) -> int:
    """Return the 63-bit seed of one optimizer step on one process."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> 1)


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed torch's random streams (dropout): a resumed run draws what the uninterrupted one would have drawn."""
    torch.manual_seed(step_seed(seed, step, rank))
