import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skytune.config import METRICS, UserError
from skytune.tasks.classification import calibration, evaluate_split, wilson
from skytune.tasks.metrics import compute

NAMES = ["negative", "positive"]


def test_everything_about_a_small_split() -> None:
    logits = np.array([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0], [0.0, 1.0], [0.0, 4.0]])
    labels = np.array([0, 1, 1, 0, 0])
    found = evaluate_split(logits, labels, NAMES, list(METRICS), {}, ["a", "b", "c", ("d", "e"), "f" * 5000])
    assert found["n_rows"] == 5 and found["n_mistakes"] == 3
    assert found["metrics"]["accuracy"] == pytest.approx(0.4)
    assert found["confusion"] == [[1, 2], [1, 1]]  # row: true class
    assert found["classes"][1] == pytest.approx(
        {"name": "positive", "precision": 1 / 3, "recall": 0.5, "f1": 0.4, "support": 2, "predicted": 3}
    )
    assert [entry["support"] for entry in found["classes"]] == [3, 2]
    first, second, third = found["mistakes"]
    assert (first["row"], first["true"], first["predicted"]) == (4, "negative", "positive")
    assert first["probability"] == pytest.approx(1 / (1 + np.exp(-4)))
    assert first["probability"] + first["probability_true"] == pytest.approx(1)
    assert len(first["text"]) < 2010 and first["text"].endswith("…")
    assert {second["row"], third["row"]} == {2, 3}
    assert second["text"] == "c" and third["text"] == "d ⏐ e"
    json.dumps(found, allow_nan=False)


def test_numbers_are_those_of_the_worker() -> None:
    rng = np.random.default_rng(1)
    logits, labels = rng.normal(size=(50, 2)).astype("float32"), rng.integers(0, 2, 50)
    worker = compute(list(METRICS), {}, logits, labels)
    found = evaluate_split(logits, labels, NAMES, list(METRICS), {})
    assert {**found["metrics"], "n_rows": found["n_rows"]} == pytest.approx(worker, abs=1e-12)
    assert found["mistakes"][0]["text"] is None


def test_a_number_that_is_not_defined_is_none() -> None:
    found = evaluate_split(np.array([[1.0, 0.0]]), np.array([0]), NAMES, ["roc_auc", "accuracy"], {})
    assert found["metrics"]["roc_auc"] is None and found["metrics"]["accuracy"] == 1.0
    json.dumps(found, allow_nan=False)


def test_what_does_not_fit_is_refused() -> None:
    logits, labels = np.zeros((3, 2)), np.array([0, 1, 0])
    with pytest.raises(UserError, match="2 numbers per row, but there are 3 class names"):
        evaluate_split(logits, labels, ["a", "b", "c"], [], {})
    with pytest.raises(UserError, match="2 texts for 3 predictions"):
        evaluate_split(logits, labels, NAMES, [], {}, ["x", "y"])
    with pytest.raises(UserError, match="have no label"):
        evaluate_split(logits, labels - 1, NAMES, ["accuracy"], {})


def test_calibration_error_by_hand() -> None:
    # Two rows at 0.9 with one right, two at 0.6 with both right: (2 * 0.4 + 2 * 0.4) / 4.
    probabilities = np.array([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.4, 0.6]])
    found = calibration(probabilities, np.array([0, 1, 0, 1]))
    assert found["ece"] == pytest.approx(0.4)
    assert [b["rows"] for b in found["bins"] if b["rows"]] == [2, 2]
    assert "Guo" in found["source"] and len(found["bins"]) == 15


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(-8, 8), st.integers(0, 2)), min_size=1, max_size=50), st.integers(1, 20))
def test_calibration_counts_every_row_once(rows: list[tuple[float, int]], bins: int) -> None:
    logits = np.array([[score, 0.0, -score] for score, _ in rows])
    odds = np.exp(logits)
    found = calibration(odds / odds.sum(1, keepdims=True), np.array([label for _, label in rows]), bins)
    assert sum(b["rows"] for b in found["bins"]) == len(rows)
    assert 0 <= found["ece"] <= 1
    for b in found["bins"]:
        assert b["rows"] == 0 or b["low"] - 1e-9 <= b["confidence"] <= b["high"] + 1e-9


def test_interval_of_an_accuracy() -> None:
    # Values of statsmodels' proportion_confint(8, 10, method="wilson").
    assert wilson(0.8, 10) == pytest.approx((0.49016, 0.94331), abs=1e-4)
    low, high = wilson(1.0, 1)
    assert 0 < low < 1 and high == 1.0
