"""Promotions decided on tables of predictions: better by luck is not enough, nor better with a class that got worse."""

from typing import Any

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features

from skytune.config import ModelStage, PromoteConfig
from skytune.data.batches import Ragged
from skytune.release.decision import decide
from skytune.release.gate import GateScores
from skytune.report.page import render
from skytune.tasks import TASKS, Scoring, Shown

LIMITS = PromoteConfig(stage=ModelStage.production)
NAMES = ["bad", "fair", "good"]


def on_gate(labels: np.ndarray, logits: np.ndarray, name: str = "new", trained_on: int = 0, **more: Any) -> GateScores:
    names = more.pop("names", NAMES)
    table = Dataset.from_dict({"labels": labels}, features=Features(labels=ClassLabel(names=names)))
    scoring = Scoring(names=names, metrics=["accuracy", "f1"], shown=Shown(table, None), **more)
    rows = np.arange(len(labels))
    return GateScores(
        name, rows, labels, Ragged.of(logits), scoring, TASKS["text-classification"], "accuracy", trained_on
    )


def says(labels: np.ndarray, wrong: np.ndarray, sure: float = 2.0, classes: int = 3) -> np.ndarray:
    """Return logits of a model that has some rows wrong: the class after the right one."""
    answers = np.where(wrong, (labels + 1) % classes, labels)
    return (np.eye(classes)[answers] * sure).astype(np.float32)


LABELS = np.tile(np.arange(3), 100)
DRAW = np.random.default_rng(5)
OLD = DRAW.random(300) < 0.3


def test_a_real_improvement_is_promoted() -> None:
    old = on_gate(LABELS, says(LABELS, OLD), "old")
    new = on_gate(LABELS, says(LABELS, OLD & (np.arange(300) % 3 > 0)))
    found = decide(new, old, LIMITS, "mine", "old-1")
    gained = int((OLD & (np.arange(300) % 3 == 0)).sum())
    assert found.accepted and found.alone == (0, gained), found.line
    assert found.line.startswith("new is production of mine: accuracy 0.") and found.line.endswith("; before: old-1")
    assert found.values == ((~OLD).mean(), (~OLD).mean() + gained / 300)
    page = render("promotion.html.jinja", decision=found, title="x")
    assert "Promoted" in page and "old-1 is archived" in page


def test_better_by_luck_is_not() -> None:
    """Two seeds of one recipe: as many mistakes but two, on other rows."""
    other = DRAW.permutation(OLD)
    other[np.flatnonzero(other)[:2]] = False
    found = decide(on_gate(LABELS, says(LABELS, other)), on_gate(LABELS, says(LABELS, OLD), "old"), LIMITS, "mine")
    assert found.values[1] > found.values[0] and not found.accepted
    assert found.line.startswith("new is not promoted to production of mine: better by more than chance: accuracy 0.")
    assert "(McNemar's p must be below 0.05)" in found.line and "\n" not in found.line
    page = render("promotion.html.jinja", decision=found, title="x")
    assert "Not promoted" in page and "old keeps production" in page


def test_worse_is_not() -> None:
    old, new = on_gate(LABELS, says(LABELS, OLD), "old"), on_gate(LABELS, says(LABELS, OLD | (DRAW.random(300) < 0.2)))
    assert not decide(new, old, LIMITS, "mine").accepted


def test_one_that_loses_a_class_is_not() -> None:
    """Much better over all, and the class 'fair' is lost."""
    new = np.where(LABELS == 1, DRAW.random(300) < 0.6, False)
    old = np.where(LABELS == 1, False, DRAW.random(300) < 0.6)
    found = decide(on_gate(LABELS, says(LABELS, new)), on_gate(LABELS, says(LABELS, old), "old"), LIMITS, "mine")
    assert [check.name for check in found.checks if not check.passed] == ["the class that lost most"], found.line
    assert "the class that lost most: F1 of fair 0." in found.line
    kept = decide(
        on_gate(LABELS, says(LABELS, new)),
        on_gate(LABELS, says(LABELS, old), "old"),
        PromoteConfig(stage=ModelStage.staging, max_class_drop=1.0),
        "mine",
    )
    assert kept.accepted and kept.line.startswith("new is staging of mine")


def test_one_that_is_sure_of_its_mistakes_is_not() -> None:
    new = on_gate(LABELS, says(LABELS, OLD & (np.arange(300) % 3 > 0), 12.0))
    found = decide(new, on_gate(LABELS, says(LABELS, OLD), "old"), LIMITS, "mine")
    assert [check.name for check in found.checks if not check.passed] == ["calibration error"], found.line


@pytest.mark.parametrize("who", ["new", "old"])
def test_one_that_knew_the_gate_is_not(who: str) -> None:
    seen = {"new": 0, "old": 0, who: 7}
    old = on_gate(LABELS, says(LABELS, OLD), "old", seen["old"])
    found = decide(on_gate(LABELS, says(LABELS, OLD & (LABELS > 0)), "new", seen["new"]), old, LIMITS, "mine")
    assert not found.accepted
    assert f": held-out rows that {who} was trained on: 7 of 300 (must be 0)" in found.line


def test_the_first_must_beat_the_most_frequent_class() -> None:
    assert decide(on_gate(LABELS, says(LABELS, OLD)), None, LIMITS, "mine").accepted
    found = decide(on_gate(LABELS, says(LABELS, LABELS > 0)), None, LIMITS, "mine")
    assert not found.accepted and "that of always saying the most frequent class" in found.line


def test_other_classes_are_not_compared() -> None:
    old = on_gate(LABELS, says(LABELS, OLD), "old", names=["bad", "so so", "good"])
    found = decide(on_gate(LABELS, says(LABELS, OLD)), old, LIMITS, "mine")
    assert "the same rows and classes: bad, fair, good against bad, good, so so" in found.line


def test_classes_in_another_order_are_the_same() -> None:
    order = np.array([2, 0, 1])
    logits = says(LABELS, OLD)[:, np.argsort(order)]
    old = on_gate(order[LABELS], logits, "old", names=[NAMES[i] for i in np.argsort(order)])
    found = decide(on_gate(LABELS, says(LABELS, OLD & (np.arange(300) % 3 > 0))), old, LIMITS, "mine")
    assert found.accepted, found.line
    assert all(row["after"] >= row["before"] for row in found.classes)


def test_only_rows_that_both_have_count() -> None:
    whole = on_gate(LABELS, says(LABELS, OLD), "old")
    new = on_gate(LABELS, says(LABELS, OLD & False))
    found = decide(new, whole.on(np.arange(50, 200)[::-1]), LIMITS, "mine")
    assert found.rows == 150 and found.values == ((~OLD[50:200]).mean(), 1.0)


def test_by_force_it_says_what_the_test_said() -> None:
    forced = PromoteConfig(stage=ModelStage.production, force=True)
    found = decide(on_gate(LABELS, says(LABELS, OLD)), on_gate(LABELS, says(LABELS, OLD), "old"), forced, "mine")
    assert found.accepted and found.forced and "forced in spite of better by more than chance" in found.line


def test_numbers_are_compared_by_a_bootstrap() -> None:
    """`task=regression`: the main number is an error, of which less is better."""
    truth = DRAW.normal(size=200)
    columns = {"labels": [{"stars": float(value)} for value in truth]}

    def model(noise: float, seed: int) -> GateScores:
        answers = (truth + np.random.default_rng(seed).normal(size=200) * noise).astype(np.float32)
        scoring = Scoring(names=["stars"], metrics=["rmse"], shown=Shown(Dataset.from_dict(columns), None))
        targets = Ragged.of(truth[:, None].astype(np.float32))
        rows = np.arange(200)
        return GateScores(f"n{seed}", rows, targets, Ragged.of(answers[:, None]), scoring, TASKS["regression"], "rmse")

    better = decide(model(0.3, 1), model(0.9, 2), LIMITS, "mine")
    assert better.accepted and "rmse" in better.line and "gain 0." in better.line, better.line
    lucky = decide(model(0.50, 3), model(0.51, 4), LIMITS, "mine")
    assert not lucky.accepted and "a paired bootstrap's 95 % interval must lie above 0" in lucky.line, lucky.line


def test_a_nasty_class_stays_one_line_and_one_cell() -> None:
    names = ["<script>\n", "fair", "good"]
    new = on_gate(LABELS, says(LABELS, LABELS == 0), names=names)
    found = decide(new, on_gate(LABELS, says(LABELS, OLD & False), "old", names=names), LIMITS, "mine")
    assert found.line.isprintable() and "F1 of <script> 0" in found.line
    assert "<script>" not in render("promotion.html.jinja", decision=found, title="x")
