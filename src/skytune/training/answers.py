"""What a trained language model answers to the prompts of a split, on any number of processes."""

import numpy as np

from ..config import RunConfig
from ..data.batches import Ragged, TokenTable
from ..distributed.context import DistContext
from ..tasks.chat import last_turn
from ..tasks.generation import generate
from .prediction import eval_batches, gather
from .strategy import Strategy


def with_answers(
    strategy: Strategy,
    table: TokenTable,
    rows: np.ndarray,
    collected: Ragged,
    world: DistContext,
    config: RunConfig,
    ends: list[int],
) -> Ragged:
    """Return what was collected of these rows, each followed by the number of its answer's tokens, and these.

    Collective: all processes call it, each answers its share of the batches.
    """
    ids, labels = table.columns["input_ids"], table.targets
    assert isinstance(labels, Ragged)
    prompts = []
    for row in rows:
        own = slice(ids.offsets[row], ids.offsets[row + 1])
        prompts.append(last_turn(ids.values[own], labels.values[own])[0].astype(np.int64))
    batches = eval_batches(np.array([len(prompt) for prompt in prompts]), config.eval.batch_size, None)
    lockstep = strategy.no_sync() is None
    places: list[np.ndarray] = []
    found: list[np.ndarray] = []
    for start in range(0, len(batches), world.size):
        number = start + world.rank
        batch = batches[number] if number < len(batches) else batches[-1]
        answers = generate(
            strategy.model,
            [prompts[place] for place in batch],
            ends=ends,
            padding=table.padding.token,
            most=config.eval.max_new_tokens,
            batch_size=len(batch),
            lockstep=lockstep and world.size > 1,
            autocast=strategy.autocast,
        )
        if number < len(batches):
            places.append(batch)
            found += [np.array([len(answer), *answer], dtype=np.float32) for answer in answers]
    everywhere, answered = gather(places, Ragged.of(found), world)
    answered = answered.take(np.argsort(everywhere, kind="stable"))
    pairs = zip(_rows(collected), _rows(answered), strict=True)
    return Ragged.of([np.concatenate(pair) for pair in pairs])


def _rows(values: Ragged) -> list[np.ndarray]:
    return np.split(values.values, values.offsets[1:-1])
