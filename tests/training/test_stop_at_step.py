"""A run that stops at a step (a rung of a search) leaves its scores there, and goes on as if it never had stopped."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from skytune.launch import LocalLauncher
from skytune.launch.warm import WarmWorkers


@pytest.fixture(scope="module")
def launcher() -> Iterator[LocalLauncher]:
    workers = WarmWorkers()
    yield LocalLauncher(warm=workers)
    workers.close()


def state(outcome: Any) -> tuple[Any, Any]:
    kept = ("kind", "step", "loss", "lr", "grad_norm", "rows", "metrics")
    history = [{key: record.get(key) for key in kept} for record in outcome.history]
    return history, load_file(outcome.job.model / "model.safetensors")


@pytest.mark.parametrize("more", [{}, {"ema": {"decay": 0.9}, "early_stopping": {"patience": 1}}])
def test_stopped_twice_and_gone_on_is_the_straight_run(
    run_job: Callable[..., Any], launcher: LocalLauncher, monkeypatch: Any, tmp_path: Any, more: dict[str, Any]
) -> None:
    # 8 steps an epoch; step 4 is followed by a validation, step 6 by none.
    chosen = {"epochs": 2, "eval": {"every_steps": 4}, "log": {"every_steps": 1}, "checkpoint": {"metric": "loss"}}
    first = run_job(launcher=launcher, stop_at_step=4, **chosen, **more)
    assert (first.result["status"], first.result["steps"]) == ("paused", 4)
    scores = first.result["paused"]["metrics"]
    assert 0 < scores["loss"] < 2 and not first.job.model.exists(), "scored, and nothing handed on"
    # Whoever dies after the save and before the result comes back to the rung, and finds the same.
    again = run_job(launcher=launcher, stop_at_step=4, **chosen, **more)
    assert again.result["resumed_from"] == 4 and again.result["paused"]["metrics"] == scores
    second = run_job(launcher=launcher, stop_at_step=6, **chosen, **more)
    assert second.result["resumed_from"] == 4
    if second.result["status"] == "paused":
        validated = [record for record in second.history if record["kind"] == "validation"]
        assert [record["step"] for record in validated] == [4], "the one that was due there, once"
        if not more:
            assert validated[0]["metrics"] == scores
    last = run_job(launcher=launcher, **chosen, **more)
    assert last.result["status"] == "completed" and last.job.root == first.job.root, "the same run all along"
    monkeypatch.setenv("SKYTUNE_HOME", str(tmp_path / "elsewhere"))
    straight = run_job(launcher=launcher, **chosen, **more)
    (history, weights), (other, reference) = state(last), state(straight)
    assert history == other and all(np.array_equal(weights[name], reference[name]) for name in reference)


def test_a_step_behind_the_end_stops_nothing(run_job: Callable[..., Any], launcher: LocalLauncher) -> None:
    assert run_job(launcher=launcher, stop_at_step=8).result["status"] == "completed"
