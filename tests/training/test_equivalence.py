"""One step learns from the mean over the global batch, whatever it was cut into (processes x batch x accumulation)."""

from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

pytestmark = pytest.mark.usefixtures("forked")

SPLITS = {"1x8": (1, 8), "2x4": (2, 4), "2x2x2": (2, 2), "1x2x4": (1, 2), "1x3x3": (1, 3)}
"""Name to (processes, micro-batch); 1x3x3 ends every step with a smaller accumulation group."""


def trained(run_job: Any, optimizer: dict[str, Any], processes: int, micro: int, name: str) -> tuple[dict, list[float]]:
    # 150 rows: the last global batch of each epoch has 6 rows, so processes and micro-batches get uneven shares.
    done = run_job(
        rows=150,
        name=name,
        epochs=2,
        max_steps=20,
        model={"dropout": 0.0},
        optimizer=optimizer,
        log={"every_steps": 1},
        batch={"global_size": 8, "micro_size": micro},
        launch={"num_processes": processes, "threads": 1},
        checkpoint={"select": "last"},
    )
    assert done.result["world_size"] == processes
    losses = [record["loss"] for record in done.history if record["kind"] == "step"]
    assert len(losses) == 20
    return load_file(done.job.model / "model.safetensors"), losses


@pytest.mark.parametrize(
    ("optimizer", "weights_within", "losses_within"),
    [
        ({"name": "sgd", "lr": 0.1, "weight_decay": 0.0}, 1e-6, 1e-6),
        ({"name": "adamw", "lr": 1e-3, "gradient_noise": 1e-4}, 5e-5, 1e-5),
    ],
    ids=["sgd", "adamw"],
)
def test_same_weights_for_every_split_of_the_global_batch(
    run_job: Any, optimizer: dict[str, Any], weights_within: float, losses_within: float
) -> None:
    results = {n: trained(run_job, optimizer, p, m, f"split-{n}") for n, (p, m) in SPLITS.items()}
    weights, losses = results.pop("1x8")
    for name, (others, their_losses) in results.items():
        assert np.abs(np.array(their_losses) - np.array(losses)).max() <= losses_within, name
        assert others.keys() == weights.keys()
        worst = max(float(np.abs(others[key] - weights[key]).max()) for key in weights)
        assert worst <= weights_within, (name, worst)


def test_the_weights_did_change(run_job: Any, tiny_model: Any) -> None:
    """Guards the test above against a loop that trains nothing."""
    weights, _ = trained(run_job, {"name": "sgd", "lr": 0.1, "weight_decay": 0.0}, 1, 8, "changed")
    start = load_file(tiny_model / "model.safetensors")
    moved = [float(np.abs(weights[f"bert.{key}"] - value).max()) for key, value in start.items() if "pooler" not in key]
    assert min(moved) >= 0
    assert max(moved) > 1e-3
