"""`loss.*` and `eval.threshold`: what is computed, what leaves run keys alone, and what is refused."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn import metrics as sk

from skytune.config import ConfigError, LossConfig, RunConfig, TaskConfig, from_dict
from skytune.data.batches import Ragged, TokenTable
from skytune.launch import run_key
from skytune.tasks import Scoring, find_task
from skytune.tasks.losses import class_loss
from skytune.tasks.metrics import best_threshold

LABELS = np.array([0, 0, 0, 1, 2, 2])
LOGITS = torch.tensor(np.random.RandomState(1).randn(6, 3), dtype=torch.float32)
NAMES = ["a", "b", "c"]


def table(labels: np.ndarray = LABELS) -> TokenTable:
    return TokenTable(pa.table({"input_ids": [[1, 2]] * len(labels), "labels": labels}))


def by_hand(weights: np.ndarray, smoothing: float = 0.0, gamma: float = 0.0) -> float:
    shares = LOGITS.double().softmax(1).numpy()
    right = shares[np.arange(6), LABELS]
    plain = -weights[LABELS] * np.log(right)
    spread = -(weights * np.log(shares)).mean(axis=1)
    return float(np.mean(((1 - smoothing) * plain + smoothing * spread) * (1 - right) ** gamma))


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"class_weights": "balanced"}, by_hand(6 / (3 * np.array([3.0, 1.0, 2.0])))),
        ({"class_weights": [1, 0, 2.5]}, by_hand(np.array([1, 0, 2.5]))),
        ({"label_smoothing": 0.1}, by_hand(np.ones(3), smoothing=0.1)),
        ({"focal_gamma": 2.0}, by_hand(np.ones(3), gamma=2.0)),
        (
            {"class_weights": [1, 2, 3], "label_smoothing": 0.2, "focal_gamma": 1.0},
            by_hand(np.array([1, 2, 3]), 0.2, 1.0),
        ),
    ],
    ids=str,
)
def test_losses(values: dict[str, Any], wanted: float) -> None:
    loss = class_loss(from_dict(LossConfig, values), NAMES, table())
    assert loss is not None
    assert float(loss(LOGITS, torch.tensor(LABELS))) == pytest.approx(wanted, abs=1e-6)


def test_the_mean_over_rows_adds_up_for_every_split() -> None:
    loss = class_loss(LossConfig(class_weights="balanced", focal_gamma=1.5), NAMES, table())
    assert loss is not None
    labels = torch.tensor(LABELS)
    parts = sum(float(loss(LOGITS[a:b], labels[a:b])) * (b - a) / 6 for a, b in ((0, 1), (1, 4), (4, 6)))
    assert parts == pytest.approx(float(loss(LOGITS, labels)), abs=1e-6)


def test_run_keys_say_nothing_of_what_is_not_set() -> None:
    prints = {"data": "a", "weights": "b"}
    keys = {
        run_key(from_dict(RunConfig, values), prints)
        for values in (
            {},
            {"task": {"name": "text-classification"}, "checkpoint": {"metric": "accuracy"}},
            {"eval": {"metrics": ["f1", "accuracy"]}},
        )
    }
    assert len(keys) == 1
    for values in ({"task": {"name": "regression"}}, {"loss": {"focal_gamma": 1.0}}, {"eval": {"threshold": "f1"}}):
        assert run_key(from_dict(RunConfig, values), prints) not in keys


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loss": {"class_weights": "even"}}, "loss.class_weights=even: must be balanced"),
        ({"loss": {"class_weights": [1, -1]}}, r"loss.class_weights=\[1, -1\]: must be"),
        ({"loss": {"label_smoothing": 1.0}}, "loss.label_smoothing=1.0: must be"),
        ({"eval": {"threshold": "best"}}, "eval.threshold=best: must be f1, or a probability"),
        ({"eval": {"threshold": 1.5}}, "eval.threshold=1.5: must be f1"),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_dict(RunConfig, values)


def test_weights_for_other_classes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"loss.class_weights has 2 numbers, there are 3 classes: a, b, c"):
        class_loss(LossConfig(class_weights=[1, 2]), NAMES, table())


@pytest.mark.parametrize("seed", range(6))
def test_no_threshold_has_a_better_f1(seed: int) -> None:
    random = np.random.RandomState(seed)
    odds = np.round(random.randn(40), 1)  # with equals
    truth = random.rand(40) < 0.3
    shares = 1 / (1 + np.exp(-odds))
    found = sk.f1_score(truth, shares >= best_threshold(odds, truth))
    every = [sk.f1_score(truth, shares >= share) for share in np.unique(shares)]
    assert found == pytest.approx(max(every), abs=1e-12)


def test_a_threshold_decides_between_two_classes() -> None:
    task = find_task(TaskConfig(name="text-classification"))
    logits, labels = np.array([[0.0, 0.1], [0.0, 3.0], [0.0, -1.0]], np.float32), np.array([0, 1, 0])
    assert task.tune is not None
    settings = task.tune(Ragged.of(logits), labels, Scoring(names=["n", "y"]))
    assert 0.53 < settings["skytune_threshold"] < 0.95
    scoring = Scoring(names=["n", "y"], metrics=["accuracy"], settings=settings, shown=["a", "b", "c"])
    scored = task.score(Ragged.of(logits), labels, scoring)
    assert scored.metrics["accuracy"] == 1 and scored.results["confusion"] == [[2, 0], [0, 1]]
    assert task.predicted(Ragged.of(logits), scoring)["prediction"] == ["n", "y", "n"]


def test_each_of_several_classes_has_its_own() -> None:
    task = find_task(TaskConfig(name="multi-label"))
    assert task.tune is not None
    logits = np.array([[-1.0, 3.0], [-2.0, 2.0], [-3.0, 1.0]], np.float32)
    truth = np.array([[1, 1], [0, 0], [0, 0]], np.float32)
    scoring = Scoring(names=["a", "b"], metrics=["f1"])
    settings = task.tune(Ragged.of(logits), truth, scoring)
    tuned = Scoring(names=["a", "b"], metrics=["f1"], settings=settings)
    assert task.score(Ragged.of(logits), truth, scoring).metrics["f1"] == 0.25
    assert task.score(Ragged.of(logits), truth, tuned).metrics["f1"] == 1
