"""Gradients summed over real processes (gloo), against one process with all rows."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers

from skytune.config import OptimizerConfig
from skytune.data.batches import TokenTable
from skytune.training.fast.models import PackedModel
from skytune.training.fast.packing import DeviceTable
from skytune.training.fast.taking import PackedSteps
from skytune.training.fast.together import Together, shares
from skytune.training.order import SampleOrder
from skytune.training.schedule import build_optimizer

BATCH, STEPS = 8, 5


def trained(vocabulary: int, micro: int, rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor, list[bool], int]:
    """Return the flat weights, this process's losses, whether words were exchanged by their tokens, and its budget."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=vocabulary, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=48,
        max_position_embeddings=40, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).train()
    random = np.random.default_rng(1)
    ids = [random.integers(0, vocabulary, size=n).tolist() for n in random.integers(1, 23, size=20)]
    data = TokenTable(pa.table({"input_ids": ids, "labels": random.integers(0, 2, size=20)}), 0)
    order = SampleOrder(data.lengths, seed=3, global_size=BATCH, bucket_batches=1)
    optimizer = build_optimizer(OptimizerConfig(lr=3e-3), model)
    steps = PackedSteps(
        PackedModel(model, optimizer, torch.float32), DeviceTable(data, torch.device("cpu")), order, seed=3, rank=rank,
        world_size=size, micro_size=micro, clip_norm=1.0, total_steps=STEPS,
    )  # fmt: skip
    taken: list[bool] = []
    together = steps.packed.together
    if together is not None:
        finish = together.finish
        together.finish = lambda: (taken.append(together.by_tokens), finish())  # type: ignore[assignment, func-returns-value]
    told = steps.take(0, [3e-3] * STEPS)
    return steps.model.arena.weights.clone(), told[0], taken, steps.computed_tokens


def process(rank: int, size: int, vocabulary: int, micro: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    torch.save(trained(vocabulary, micro, rank, size), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("vocabulary", "micro", "by_tokens"),
    [(1500, 4, [True] * 5), (60, 4, [False] * 5), (1500, 2, [False, False, True, False, False])],
    ids=["by tokens", "a table smaller than the tokens", "accumulated"],
)
def test_two_processes_learn_what_one_learns(
    vocabulary: int, micro: int, by_tokens: list[bool], tmp_path: Path
) -> None:
    """Weights to 5e-6, losses to 1e-5; the last step of an epoch has 4 rows: one micro-batch a process."""
    expected, losses, _, _ = trained(vocabulary, 8, 0, 1)
    arguments = (2, vocabulary, micro, str(tmp_path))
    torch.multiprocessing.start_processes(process, args=arguments, nprocs=2, start_method="spawn")
    found: list[Any] = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert [part[2] for part in found] == [by_tokens] * 2
    assert torch.equal(found[0][0], found[1][0]), "both have the same weights, to the bit"
    torch.testing.assert_close(found[0][0], expected, atol=5e-6, rtol=0)
    torch.testing.assert_close(found[0][1] + found[1][1], losses, atol=1e-5, rtol=0)
    assert found[0][3] == found[1][3], "both compute as many tokens: they wait for each other anyway"


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
def test_parts_cover_all_layers_once(count: int) -> None:
    starts, end = [10, 20, 30, 40, 50], 60
    parts = shares(starts, end, count)
    assert len(parts) == min(count, 5)
    assert [part.start for part in parts.values()] == [starts[number] for number in parts]
    covered = sorted((part.start, part.stop) for part in parts.values())
    assert covered[0][0] == 10 and covered[-1][1] == 60
    assert all(before[1] == after[0] for before, after in pairwise(covered))
    together = Together(torch.zeros(80), parts, slice(0, 8))
    assert [(part.start, part.stop) for part in together.rest] == [(8, 10), (60, 80)]
