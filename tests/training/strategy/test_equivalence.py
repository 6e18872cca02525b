"""Every strategy takes the same steps as one process alone, and really cuts up what it says that it cuts up."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

TrainResult = Callable[[int, dict[str, dict[str, Any]]], dict[str, Any]]

# 150 rows: the last global batch of each epoch has 6, so shares and accumulation groups are uneven and partial.
CAPTURED = {"strategy": {"name": "fsdp"}, "compute": {"packed": "on"}}
AVERAGED = {"ema": {"decay": 0.9}, "eval": {"every_steps": 3}}
SGD = {"optimizer": {"name": "sgd", "lr": 0.05}}
ALONE = {
    "single": {"strategy": {"name": "single"}},
    "dp": {"strategy": {"name": "dp"}},
    "fsdp-captured": CAPTURED,
    "sgd": {"strategy": {"name": "single"}, **SGD},
}
TWO = {
    "ddp": {"strategy": {"name": "ddp"}},
    "ddp-accumulated": {"strategy": {"name": "ddp"}, "batch": {"micro_size": 3}},
    "ddp-unused": {"strategy": {"name": "ddp", "find_unused_parameters": True, "activation_checkpointing": True}},
    "fsdp": {"strategy": {"name": "fsdp"}, "batch": {"micro_size": 3}},
    "fsdp-grad-op": {"strategy": {"name": "fsdp", "sharding": "grad_op"}, "batch": {"micro_size": 3}},
    "fsdp-twice": {"strategy": {"name": "fsdp", "activation_checkpointing": True}},
    "fsdp-captured": {**CAPTURED, "batch": {"micro_size": 3}},
    "fsdp-captured-sgd": {**CAPTURED, **SGD},
    "fsdp-averaged": {"strategy": {"name": "fsdp"}, **AVERAGED},
    "fsdp-captured-averaged": {**CAPTURED, **AVERAGED},
    "optimizer": {"strategy": {"name": "optimizer_sharding"}, "batch": {"micro_size": 2}},
}
FOUR = {
    "fsdp": {"strategy": {"name": "fsdp", "wrap": "BertLayer"}},
    "fsdp-hybrid": {"strategy": {"name": "fsdp", "sharding": "hybrid", "shard_processes": 2}},
    "fsdp-captured-hybrid": {**CAPTURED, "strategy": {"name": "fsdp", "sharding": "hybrid", "shard_processes": 2}},
    "optimizer": {"strategy": {"name": "optimizer_sharding"}},
}


@pytest.mark.slow
def test_same_losses_and_weights_as_one_process(
    trained: TrainResult, losses: Callable[[Any], list[float]], tiny_model: Path
) -> None:
    one, two, four = trained(1, ALONE), trained(2, TWO), trained(4, FOUR)
    alone = one["single"]
    expected, weights = losses(alone), load_file(alone.job.model / "model.safetensors")
    numbers = alone.job.seen[0]["state_numbers"]

    # The baseline learned something, and wraps nothing.
    assert len(set(expected)) == 20
    start = load_file(tiny_model / "model.safetensors")
    assert max(np.abs(weights[f"bert.{k}"] - v).max() for k, v in start.items() if "pooler" not in k) > 1e-3
    assert {kind for kind, *_ in alone.job.seen[0]["parameters"].values()} == {"Parameter"}
    assert alone.job.seen[0]["optimizers"] == ["AdamW"]

    for processes, runs in ((1, one), (2, two), (4, four)):
        for name, done in runs.items():
            assert done.result["world_size"] == processes
            assert done.result["save_failed"] == "", name
            assert str(done.result.get("steps_taken")).startswith("captured") == ("captured" in name), name
            right = losses(one["sgd"]) if "sgd" in name else expected
            assert np.abs(np.array(losses(done)) - np.array(right)).max() <= 1e-5, (name, processes)
            if "sgd" in name or "averaged" in name:  # an average is what is kept and exported
                continue
            found = load_file(done.job.model / "model.safetensors")
            assert found.keys() == weights.keys(), name
            worst = max(float(np.abs(found[key] - weights[key]).max()) for key in weights)
            assert worst <= 5e-5, (name, processes, worst)

    assert one["dp"].result["strategy"] == "single"  # on a CPU it is nothing else
    for name in ("ddp", "ddp-accumulated", "ddp-unused"):
        assert two[name].result["strategy"] == "ddp"
        for seen in two[name].job.seen:
            assert seen["state_numbers"] == numbers
            assert {kind for kind, *_ in seen["parameters"].values()} == {"Parameter"}
    for name in ("fsdp", "fsdp-grad-op", "fsdp-twice"):
        cut_up(two[name], 2, numbers)
    cut_up(four["fsdp"], 4, numbers)
    hybrid = four["fsdp-hybrid"].job.seen
    assert hybrid[0]["placements"] == ["(Replicate(), Shard(dim=0))"]
    assert [seen["parameters"] for seen in hybrid[:2]] == [seen["parameters"] for seen in hybrid[2:]]
    assert hybrid[0]["state_numbers"] + hybrid[1]["state_numbers"] == numbers
    for runs in (two, four):
        held = [seen["state_numbers"] for seen in runs["optimizer"].job.seen]
        assert sum(held) == numbers
        assert 0 < min(held) <= max(held) < numbers
        for seen in runs["optimizer"].job.seen:
            assert seen["optimizers"] == ["AdamW", "ZeroRedundancyOptimizer"]
            assert all(kind == "Parameter" and shape == local for kind, shape, local in seen["parameters"].values())


def cut_up(done: Any, processes: int, numbers: int) -> None:
    """Every parameter is a DTensor of which each process has some rows, and all have all of them together."""
    ranks = [seen["parameters"] for seen in done.job.seen]
    assert len(ranks) == processes
    for name, (kind, shape, _) in ranks[0].items():
        assert kind == "DTensor", name
        assert sum(rank[name][2][0] for rank in ranks) == shape[0], name
        assert all(rank[name][2][1:] == shape[1:] for rank in ranks), name
        assert max(rank[name][2][0] for rank in ranks) <= -(-shape[0] // processes), name
    held = [seen["state_numbers"] for seen in done.job.seen]
    assert sum(held) == numbers
    assert max(held) < numbers / processes * 1.2
    # Each block is a unit of its own: all weights gathered at once would save no memory.
    assert "FSDPBertLayer" in done.job.seen[0]["classes"]
    assert done.job.seen[0]["placements"] == ["(Shard(dim=0),)"]
