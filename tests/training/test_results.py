"""What a run says of itself: padding as it was computed, and the devices that computed it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from skytune.config import BatchConfig, Precision, RunConfig
from skytune.data.order import SampleOrder
from skytune.training import results
from skytune.training.results import padding_share
from skytune.training.strategy.ddp import DataParallel, Threads

LENGTHS = np.array([1, 9, 2, 8, 4, 10])


def share(size: int, micro: int, world: int, multiple: int, steps: int = 99) -> float:
    order = SampleOrder(LENGTHS, seed=1, global_size=size, bucket_batches=1)
    config = RunConfig(batch=BatchConfig(global_size=size, pad_multiple=multiple))
    run: Any = SimpleNamespace(config=config, world=SimpleNamespace(size=world), micro_batch=micro, step=steps)
    return padding_share(order, run)


@pytest.mark.parametrize("world", [1, 2])
def test_a_row_by_itself_is_not_padded(world: int) -> None:
    assert share(size=6, micro=1, world=world, multiple=1) == 0.0


def test_whole_batches_are_padded_to_their_longest_row() -> None:
    assert share(size=6, micro=6, world=1, multiple=1) == pytest.approx(1 - 34 / 60, abs=1e-4)


def test_no_row_is_wider_than_the_longest_of_all() -> None:
    assert share(size=6, micro=1, world=1, multiple=64) == pytest.approx(1 - 34 / 60, abs=1e-4)


def test_a_process_without_rows_computes_one_all_the_same() -> None:
    """Five rows on four processes: two each, of which three are made up by the batch's first row."""
    order = SampleOrder(LENGTHS[:5], seed=1, global_size=5, bucket_batches=1)
    first = LENGTHS[order.rows(0)[0]]
    config = RunConfig(batch=BatchConfig(global_size=5, pad_multiple=1))
    run: Any = SimpleNamespace(config=config, world=SimpleNamespace(size=4), micro_batch=1, step=1)
    assert padding_share(order, run) == pytest.approx(1 - 24 / (24 + 3 * first), abs=1e-4)


def test_dp_computes_on_all_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    world: Any = SimpleNamespace(size=1, device=torch.device("cpu"), precision=Precision.bf16, describe=lambda: "x")
    strategy = DataParallel(RunConfig(), world)
    assert strategy.devices == 1
    strategy.module = Threads(torch.nn.Linear(1, 1), gpus=2)
    assert strategy.devices == 2
    monkeypatch.setattr(results, "peak", lambda device, precision: 100.0)
    run: Any = SimpleNamespace(train_seconds=1.0, world=world, flops=100.0, data_seconds=0.0, skipped=0)
    run.devices = strategy.devices
    assert results.efficiency(run)["mfu"] == 0.5
