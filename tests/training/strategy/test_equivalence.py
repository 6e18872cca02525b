"""Every strategy takes the same steps as one process alone, and really cuts up what it says that it cuts up."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

Run = Callable[..., Any]

ALONE: dict[str, tuple[list[float], dict[str, Any], int]] = {}
"""What `single` gave: losses, weights, numbers in the optimizer's state. Trained once for all tests here."""


def losses(done: Any) -> list[float]:
    return [record["loss"] for record in done.history if record["kind"] == "step"]


@pytest.fixture
def alone(witnessed: Run) -> tuple[list[float], dict[str, Any], int]:
    if not ALONE:
        done = witnessed("single", "single", 1)
        (seen,) = done.job.seen
        assert done.result["strategy"] == "single"
        assert {"DistributedDataParallel", "DataParallel"}.isdisjoint(seen["classes"])
        assert {kind for kind, *_ in seen["parameters"].values()} == {"Parameter"}
        assert seen["optimizers"] == ["AdamW"]
        ALONE["it"] = (losses(done), load_file(done.job.model / "model.safetensors"), seen["state_numbers"])
        learned(done)
    return ALONE["it"]


def learned(done: Any) -> None:
    found = losses(done)
    assert len(found) == 20
    assert len(set(found)) == 20


def same(done: Any, alone: tuple[list[float], dict[str, Any], int]) -> None:
    """The losses and the exported weights are those of one process."""
    expected, weights, _ = alone
    assert np.abs(np.array(losses(done)) - np.array(expected)).max() <= 1e-5
    found = load_file(done.job.model / "model.safetensors")
    assert found.keys() == weights.keys()
    worst = max(float(np.abs(found[name] - weights[name]).max()) for name in weights)
    assert worst <= 5e-5
    assert done.result["save_failed"] == ""


def cut_up(done: Any) -> list[dict[str, Any]]:
    """Every parameter is a DTensor of which each process has some rows, and all have all of them together."""
    ranks = [seen["parameters"] for seen in done.job.seen]
    for name, (kind, shape, _) in ranks[0].items():
        assert kind == "DTensor", name
        assert sum(rank[name][2][0] for rank in ranks) == shape[0], name
        assert all(rank[name][2][1:] == shape[1:] for rank in ranks), name
        assert max(rank[name][2][0] for rank in ranks) <= -(-shape[0] // len(ranks)), name
    return ranks


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [False, True], ids=["whole", "accumulated"])
def test_ddp(witnessed: Run, alone: Any, accumulate: bool) -> None:
    # 150 rows: the last global batch of each epoch has 6 rows, so the accumulation groups are uneven and partial.
    done = witnessed("ddp", "ddp", 2, batch={"micro_size": 3 if accumulate else None})
    assert done.result["accumulation"] == (2 if accumulate else 1)
    same(done, alone)
    for seen in done.job.seen:
        assert seen["state_numbers"] == alone[2]
        assert {kind for kind, *_ in seen["parameters"].values()} == {"Parameter"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "settings", "micro"),
    [(2, {}, 3), (4, {}, None), (2, {"sharding": "grad_op"}, 3), (2, {"activation_checkpointing": True}, None)],
    ids=["two", "four", "grad_op", "activation_checkpointing"],
)
def test_fsdp(witnessed: Run, alone: Any, processes: int, settings: dict[str, Any], micro: int | None) -> None:
    done = witnessed("fsdp", {"name": "fsdp", **settings}, processes, batch={"micro_size": micro})
    same(done, alone)
    cut_up(done)
    held = [seen["state_numbers"] for seen in done.job.seen]
    assert sum(held) == alone[2]
    assert max(held) < alone[2] / processes * 1.2
    # Each block is a unit of its own: all weights at once would save no memory.
    assert "FSDPBertLayer" in done.job.seen[0]["classes"]
    assert done.job.seen[0]["placements"] == ["(Shard(dim=0),)"]


@pytest.mark.slow
def test_fsdp_hybrid(witnessed: Run, alone: Any) -> None:
    """Cut up within groups of two, copied between the groups."""
    done = witnessed("hybrid", {"name": "fsdp", "sharding": "hybrid", "shard_processes": 2}, 4)
    same(done, alone)
    assert done.job.seen[0]["placements"] == ["(Replicate(), Shard(dim=0))"]
    held = [seen["state_numbers"] for seen in done.job.seen]
    assert held[:2] == held[2:]
    assert sum(held[:2]) == alone[2]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_optimizer_sharding(witnessed: Run, alone: Any, processes: int) -> None:
    done = witnessed("sharded", "optimizer_sharding", processes, batch={"micro_size": 2})
    same(done, alone)
    held = [seen["state_numbers"] for seen in done.job.seen]
    assert sum(held) == alone[2]
    assert max(held) < alone[2]
    assert min(held) > 0
    for seen in done.job.seen:
        assert seen["optimizers"] == ["AdamW", "ZeroRedundancyOptimizer"]
        assert all(kind == "Parameter" and shape == local for kind, shape, local in seen["parameters"].values())


def test_the_baseline_left_its_initial_weights(alone: Any, tiny_model: Path) -> None:
    """Guards the tests above against a loop that trains nothing."""
    start = load_file(tiny_model / "model.safetensors")
    moved = [np.abs(alone[1][f"bert.{key}"] - value).max() for key, value in start.items() if "pooler" not in key]
    assert max(moved) > 1e-3
