"""Answers that a language model writes: greedily, in batches, with its key-value cache, each up to its end token."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from ..models.language import plainly


@torch.no_grad()
def generate(
    model: Any,
    prompts: Sequence[np.ndarray],
    *,
    ends: list[int],
    padding: int,
    most: int,
    batch_size: int,
    lockstep: bool = False,
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> list[list[int]]:
    """Return the tokens that the model answers to every prompt with, without the token that ends the answer.

    Prompts of like length are answered together, filled up on the left; what fills them up is masked, so that an answer
    does not depend on its neighbours but for rounding.

    Args:
        model: made by `learn_tokens`, on its device; left in the mode that it was in.
        prompts: token numbers of each, at least one.
        ends: tokens that end an answer.
        padding: token that fills up; it may be one that ends.
        most: tokens of an answer at most.
        lockstep: whether all processes must call the model equally often.
    """
    from transformers import GenerationConfig

    device = next(model.parameters()).device
    how = GenerationConfig(max_new_tokens=most, do_sample=False, eos_token_id=ends, pad_token_id=padding)
    order = sorted(range(len(prompts)), key=lambda number: -len(prompts[number]))
    answers: list[list[int]] = [[] for _ in prompts]
    training = model.training
    model.eval()
    try:
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            width = len(prompts[chosen[0]])
            tokens = np.full((len(chosen), width), padding)
            mask = np.zeros((len(chosen), width), dtype=np.int64)
            for row, number in enumerate(chosen):
                length = len(prompts[number])
                tokens[row, width - length :] = prompts[number]
                mask[row, width - length :] = 1
            with plainly(model), autocast():
                found = model.generate(
                    torch.from_numpy(tokens).to(device),
                    attention_mask=torch.from_numpy(mask).to(device),
                    generation_config=how,
                    synced_gpus=lockstep,
                )
            for number, row in zip(chosen, found[:, width:].tolist(), strict=True):
                end = next((place for place, token in enumerate(row) if token in ends), len(row))
                answers[number] = row[:end]
    finally:
        model.train(training)
    return answers
