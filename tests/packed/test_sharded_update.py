"""Gradients summed over real processes (gloo), against one process with all rows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers

from skytune.config import OptimizerConfig, Precision, RunConfig
from skytune.data.batches import TokenTable
from skytune.data.order import SampleOrder
from skytune.distributed.context import DistContext
from skytune.job import JobDir
from skytune.training.callbacks.base import Run
from skytune.training.packed_step import PackedTrainStep
from skytune.training.schedule import build_optimizer
from skytune.training.strategy import Strategy

BATCH, STEPS = 8, 5


@dataclass
class TrainResult:
    before: torch.Tensor
    """The flat weights before they were brought together."""
    flat: list[torch.Tensor]
    """Weights and Adam's averages."""
    losses: torch.Tensor
    by_tokens: list[bool]
    tokens: int
    own: list[slice]


def trained(vocabulary: int, micro: int, rank: int, size: int) -> TrainResult:
    """Train five steps of 8 rows, the last one of an epoch of 4."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=40,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = transformers.BertForSequenceClassification(config).train()
    random = np.random.default_rng(1)
    ids = [random.integers(0, vocabulary, size=n).tolist() for n in random.integers(1, 23, size=20)]
    data = TokenTable(pa.table({"input_ids": ids, "labels": random.integers(0, 2, size=20)}))
    order = SampleOrder(data.lengths, seed=3, global_size=BATCH, bucket_batches=1)
    optimizer = build_optimizer(OptimizerConfig(lr=3e-3), model)
    world, settings = DistContext(rank, size, torch.device("cpu"), Precision.fp32), RunConfig(seed=3)
    run = Run(settings, JobDir("/nonexistent"), world, model, STEPS, order.steps_per_epoch, micro_batch=micro)
    steps = PackedTrainStep(run, Strategy(settings, world), optimizer, order, data, lambda: False)
    taken: list[bool] = []
    together = steps.packed.together
    if together is not None:
        finish = together.finish
        together.finish = lambda: (taken.append(together.by_tokens), finish())  # type: ignore[assignment, func-returns-value]
    told = steps.advance(0, [3e-3] * STEPS)
    arena = steps.model.arena
    before = arena.weights.clone()
    steps.collect()
    own = [] if together is None else [share.own for share in together.shares.values()]
    return TrainResult(before, [arena.weights, arena.first, arena.second], told[0], taken, steps.computed_tokens, own)


def process(rank: int, size: int, vocabulary: int, micro: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    torch.save(vars(trained(vocabulary, micro, rank, size)), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


PROCESS = """
import os, sys
sys.path.append({!r})
from test_sharded_update import process
process(int(os.environ["RANK"]), {}, {}, {}, {!r})
"""


@pytest.mark.parametrize(
    ("size", "vocabulary", "micro", "by_tokens"),
    [
        (2, 1501, 4, [True] * 5),
        (2, 60, 4, [False] * 5),
        (2, 1501, 2, [False, False, True, False, False]),
        (3, 1501, 3, [True] * 5),
    ],
    ids=["by tokens", "a table smaller than the tokens", "accumulated", "three"],
)
def test_processes_learn_what_one_learns(
    lives: Any, size: int, vocabulary: int, micro: int, by_tokens: list[bool], tmp_path: Path
) -> None:
    """Weights to 5e-6, losses to 1e-5, Adam's averages to 1e-6; every process updates its share alone."""
    expected = trained(vocabulary, 8, 0, 1)
    life = lives.live(
        tmp_path, size, PROCESS.format(str(Path(__file__).parent), size, vocabulary, micro, str(tmp_path))
    )
    assert life.code == 0, life.output
    found = [TrainResult(**torch.load(tmp_path / f"{rank}.pt", weights_only=False)) for rank in range(size)]
    assert [part.by_tokens for part in found] == [by_tokens] * size
    for part in found[1:]:
        assert all(map(torch.equal, part.flat, found[0].flat)), "all have the same weights and state, to the bit"
    torch.testing.assert_close(found[0].flat[0], expected.flat[0], atol=5e-6, rtol=0)
    for learned, right in zip(found[0].flat[1:], expected.flat[1:], strict=True):
        torch.testing.assert_close(learned, right, atol=1e-6, rtol=0)
    torch.testing.assert_close(sum(part.losses for part in found), expected.losses, atol=1e-5, rtol=0)
    assert len({part.tokens for part in found}) == 1, "all compute as many tokens: they wait for each other anyway"
    for number, part in enumerate(found):
        assert len(part.own) == 4, "three layers and the table of words"
        for cut in part.own:
            assert torch.equal(part.before[cut], part.flat[0][cut])
        for cut in part.own[1:]:  # the first is on its way to everybody at the end of a step
            assert not torch.equal(found[number - 1].before[cut], part.flat[0][cut]), "nobody else updated it"
