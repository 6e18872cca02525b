"""Steps whose loss or gradient is not finite: the run ends, leaves them out, or goes back to its last checkpoint."""

import json
from pathlib import Path
from typing import Any

import pytest
from job_dirs import history, result, weights


def sick(place: Any, name: str, on_nan: str, strategy: str = "auto", **spoiled: list[int]) -> Path:
    more: dict[str, Any] = spoiled.pop("more", {})  # type: ignore[assignment]
    own = {"sick": {"_target_": "worker_callbacks.Sick", **spoiled}}
    settings = {"checkpoint": {"every_steps": 4}, "callbacks": own, "on_nan": on_nan, "strategy": {"name": strategy}}
    job: Path = place.lay(name, **{**settings, **more})
    return job


def sums(job: Path) -> dict[int, dict[str, float]]:
    return dict(map(json.loads, (job / "weights.jsonl").read_text().splitlines()))


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_it_ends_the_run_with_the_rows(lives: Any, place: Any, kind: str) -> None:
    job = sick(place, f"stop-{kind}", "stop", **{kind: [6]})
    life = lives.live(job)
    what = {"loss": "the loss is nan", "gradient": "the gradient's norm is nan"}[kind]
    assert life.code != 0 and f"{what} at step 7 of 12 (rows " in life.output, life.output
    assert "on_nan=skip leaves such steps out" in life.output


@pytest.mark.parametrize(
    ("strategy", "processes", "kind", "clip"),
    [
        ("single", 1, "loss", 1.0),
        ("single", 1, "gradient", 1.0),
        ("single", 1, "gradient", None),
        ("ddp", 2, "gradient", 1.0),
        ("fsdp", 2, "gradient", None),
        ("optimizer_sharding", 2, "gradient", 1.0),
    ],
)
def test_the_step_is_left_out(
    lives: Any, place: Any, strategy: str, processes: int, kind: str, clip: float | None
) -> None:
    more = {"optimizer": {"clip_norm": clip}}
    job = sick(place, f"skip-{strategy}-{kind}-{clip}".lower(), "skip", strategy, more=more, **{kind: [0, 5, 6]})
    life = lives.live(job, processes)
    assert life.code == 0, life.output
    assert life.output.count(": left out") == 3
    after, found = sums(job), result(job)
    assert found["steps"] == 12 and found["skipped_steps"] == 3
    assert after[6] == after[7] == after[5] and after[8] != after[7] and after[4] != after[5]
    losses = {step: record["loss"] for step, record in history(job).items()}
    assert losses[1] is None and losses[6] == losses[7] == losses[5]
    assert all(abs(weight).max() < 100 for weight in weights(job).values())  # not NaN


@pytest.mark.parametrize(("strategy", "processes"), [("single", 1), ("fsdp", 2), ("optimizer_sharding", 2)])
def test_the_run_goes_back(lives: Any, place: Any, strategy: str, processes: int) -> None:
    job = sick(place, f"rewind-{strategy}", "rewind", strategy, loss=[6])
    life = lives.live(job, processes)
    assert life.code == 0, life.output
    assert "weights and optimizer are those of step 4 again" in life.output
    after = sums(job)
    assert after[7] == after[4] != after[6]
    assert result(job)["skipped_steps"] == 3 and result(job)["steps"] == 12


def test_without_a_checkpoint_there_is_nothing_to_go_back_to(lives: Any, place: Any) -> None:
    job = sick(place, "early", "rewind", loss=[2])
    life = lives.live(job)
    assert life.code != 0 and "on_nan=rewind: at step 3 there is no checkpoint yet" in life.output, life.output


def test_ten_in_a_row_are_too_many(lives: Any, place: Any) -> None:
    job = sick(place, "many", "skip", loss=list(range(1, 12)))
    life = lives.live(job)
    assert life.code != 0 and "at step 11 of 12" in life.output, life.output
    assert "10 such steps in a row are too many for on_nan=skip" in life.output
