"""ZeRO with DeepSpeed, on CPU processes (its own CPU backend), where it is installed."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="the extra deepspeed is not installed"),
]

TrainResult = Callable[[int, dict[str, dict[str, Any]]], dict[str, Any]]


def test_zero_takes_the_steps_of_one_process(
    trained: TrainResult, losses: Callable[[Any], list[float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    # A process that was killed while it compiled DeepSpeed's kernels has left this.
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    (tmp_path / "extensions" / "deepspeed_shm_comm").mkdir(parents=True)
    (tmp_path / "extensions" / "deepspeed_shm_comm" / "lock").touch()
    kept = {"store": str(tmp_path / "store"), "every_steps": 10, "keep": 9, "select": "last"}
    plain: dict[str, Any] = {"callbacks": {}, "batch": {"micro_size": 3}}
    zero = {f"zero{stage}": {"strategy": {"name": f"zero{stage}"}, "checkpoint": kept, **plain} for stage in (1, 2, 3)}
    two = trained(2, zero)
    places = {run: next((tmp_path / "store").glob(f"{run}-*")) / "step-00000010" for run in zero}
    # Others go on from what DeepSpeed's strategies saved, and they from what others saved.
    one = trained(
        1,
        {
            "single": {"strategy": {"name": "single"}, "checkpoint": kept, **plain},
            **{
                f"from-{run}": {"strategy": {"name": "single"}, "resume": str(place), **plain}
                for run, place in places.items()
            },
        },
    )
    place = str(next((tmp_path / "store").glob("single-*")) / "step-00000010")
    again = trained(2, {f"{run}-on": {"strategy": {"name": run}, "resume": place, **plain} for run in zero})
    expected, weights = losses(one["single"]), load_file(one["single"].job.model / "model.safetensors")
    for runs in (two, one, again):
        for run, done in runs.items():
            assert done.result["save_failed"] == "", run
            assert done.result["parameters"] == sum(value.size for value in weights.values())
            assert np.abs(np.array(losses(done)) - np.array(expected)).max() <= 1e-5, run
            found = load_file(done.job.model / "model.safetensors")
            assert found.keys() == weights.keys(), run
            assert max(float(np.abs(found[key] - weights[key]).max()) for key in weights) <= 5e-5, run
    for run in zero:
        assert two[run].result["strategy"] == run
        assert two[run].result["accumulation"] == 2
        names = {path.name for path in places[run].iterdir()}
        assert names == {
            "model.safetensors",
            "optimizer.safetensors",
            "optimizer.json",
            "history.json",
            "manifest.json",
        }
