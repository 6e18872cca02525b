"""A run that has learned nothing says so, and what to try; a run that has learned does not."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skytune.config import METRICS, RunConfig, TaskConfig, from_dict, to_dict
from skytune.data.batches import Ragged
from skytune.report.learned import nothing_learned
from skytune.tasks import Scoring, find_task


def warning(logits: Any, labels: Any, losses: list[float] = [0.5], steps: int = 1000, **config: Any) -> str:  # noqa: B006
    names = [f"c{n}" for n in range(logits.shape[1])]
    scoring = Scoring(names=names, metrics=list(METRICS), shown=[f"row {row}" for row in range(len(labels))])
    task = find_task(TaskConfig(name="text-classification"))
    found = task.score(Ragged.of(np.asarray(logits, dtype="float32")), np.asarray(labels), scoring).as_dict()
    history = [{"kind": "validation", "metrics": {"loss": loss}} for loss in losses]
    values = {"schedule": {"warmup_ratio": 0.1}, **config}
    return nothing_learned(found, history, {"steps": steps}, to_dict(from_dict(RunConfig, values)))


LABELS = np.array([0] * 40 + [1] * 60)
CHANCE = -(0.4 * math.log(0.4) + 0.6 * math.log(0.6))


def logits(right: int) -> Any:
    """As many rows right as asked for, of both classes."""
    predicted = LABELS.copy()
    wrong = np.r_[0:40:2, 40:100:2, 1:40:2, 41:100:2][: 100 - right]
    predicted[wrong] = 1 - predicted[wrong]
    return np.stack([1.0 - predicted, predicted], axis=1) * 3


def test_predictions_that_are_all_the_same() -> None:
    line = warning(np.tile([0.0, 2.0], (100, 1)), LABELS)
    assert line.startswith(
        "nothing was learned: every test row is taken for 'c1'; likely causes: a learning rate of 5e-"
    )
    assert line.endswith("; try the same command with optimizer.lr=1e-05")


def test_an_accuracy_at_the_majoritys() -> None:
    assert "accuracy 0.600 is not above 0.600, that of always saying the most" in warning(logits(60), LABELS)
    assert warning(logits(61), LABELS) == ""


def test_a_loss_that_never_went_below_the_classes_shares() -> None:
    line = warning(logits(70), LABELS, losses=[0.70, CHANCE * 0.99])
    assert "the validation loss never went clearly below 0.673, that of the classes' shares alone" in line
    assert warning(logits(70), LABELS, losses=[0.70, CHANCE * 0.9]) == ""
    assert warning(logits(70), LABELS, losses=[]) == ""


@pytest.mark.parametrize(
    ("steps", "config", "parts"),
    [
        (1000, {"schedule": {"warmup_ratio": 0.0}}, ["no warmup", "schedule.warmup_ratio=0.1", "optimizer.lr=1e-05"]),
        (50, {}, ["only 50 steps", "epochs=4"]),
        (10, {"max_steps": 10, "epochs": 2}, ["only 10 steps", "epochs=40", "max_steps=null"]),
        (1000, {"model": {"pretrained": False}}, ["all weights are new"]),
        (1000, {"model": {"freeze_backbone": True}}, ["labels that do not go with their texts"]),
    ],
)
def test_causes_and_what_to_try(steps: int, config: dict[str, Any], parts: list[str]) -> None:
    from skytune.config.compose import compose_run

    line = warning(np.tile([0.0, 2.0], (100, 1)), LABELS, steps=steps, **config)
    assert all(part in line for part in parts), line
    words = line.partition("; try the same command with ")[2].split()
    compose_run(Path(__file__).parents[2] / "configs", words)  # each is a setting as it stands


def test_few_rows_one_class_and_other_tasks_say_nothing() -> None:
    assert warning(np.tile([0.0, 2.0], (9, 1)), [0, 1] * 4 + [1]) == ""
    assert warning(np.tile([0.0, 2.0], (50, 1)), [1] * 50) == ""
    assert nothing_learned({"metrics": {"rmse": 1.0}, "n_rows": 100, "results": {}}, [], {}, {}) == ""
