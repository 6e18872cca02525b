"""The numbers of each task are scikit-learn's, SciPy's and seqeval's, on random and on degenerate rows."""

import itertools
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest
import seqeval.metrics
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit
from sklearn import metrics as sk

from skytune.config import TaskConfig, UserError
from skytune.data.batches import IGNORED, Ragged
from skytune.tasks import Scoring, find_task
from skytune.tasks.packaged_metrics import packaged
from skytune.tasks.task import Shown

NAMES = ["O", "B-a", "I-a", "B-b", "I-b"]


def scored(task: str, collected: Any, targets: Any, names: list[str], **more: Any) -> dict[str, Any]:
    found = find_task(TaskConfig(name=task))
    return found.score(collected, targets, Scoring(names=names, metrics=list(found.metrics), **more)).metrics


def same(found: float, wanted: float) -> bool:
    return bool(np.isclose(found, wanted, rtol=0, atol=1e-9, equal_nan=True))


def numbers(rows: int, outputs: int, seed: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.RandomState(seed)
    found, truth = random.randn(2, rows, outputs).astype(np.float32)
    if kind == "constant predictions":
        found[:] = 0.5
    elif kind == "constant truth":
        truth[:] = 2.0
    return found, truth


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["random", "constant predictions", "constant truth"])
@pytest.mark.parametrize(("rows", "outputs"), [(50, 1), (50, 3), (2, 1), (1, 2)])
def test_numbers(rows: int, outputs: int, kind: str) -> None:
    found, truth = numbers(rows, outputs, rows, kind)
    got = scored("regression", Ragged.of(found), truth, [str(n) for n in range(outputs)])
    a, b = found.astype(float), truth.astype(float)
    assert same(got["rmse"], sk.root_mean_squared_error(b, a)) and same(got["mae"], sk.mean_absolute_error(b, a))
    assert same(got["loss"], np.mean((a - b) ** 2))
    for name, function in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
        each = [function(b[:, i], a[:, i]).statistic if rows > 1 else np.nan for i in range(outputs)]
        assert same(got[name], np.mean(each)), name
    if rows > 1 and kind != "constant truth":
        assert same(got["r2"], sk.r2_score(b, a))


def test_numbers_are_scaled_back_and_the_loss_is_of_scaled_ones() -> None:
    import torch

    from skytune.models import Head

    task = find_task(TaskConfig(name="regression"))
    scale = {"mean": [10.0], "std": [4.0]}
    head = Head(settings={"skytune_scale": scale})
    logits = torch.tensor([[0.5], [-1.0]])
    got = task.collect({"logits": logits}, {"input_ids": torch.zeros(2, 3)}, head)
    assert got.tolist() == [[12.0], [6.0]]
    truth = np.array([[14.0], [6.0]], np.float32)
    metrics = scored("regression", Ragged.of(got), truth, ["x"], settings=head.settings)
    assert same(metrics["loss"], 0.5**2 / 2) and same(metrics["rmse"], np.sqrt(2))
    with pytest.raises(UserError, match="skytune_scale is damaged"):
        task.collect(
            {"logits": logits}, {"input_ids": torch.zeros(2, 3)}, Head(settings={"skytune_scale": {"mean": []}})
        )


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=25, deadline=None)
@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 99), st.sampled_from([0.0, 0.3, 1.0]))
def test_sets(rows: int, classes: int, seed: int, share: float) -> None:
    """Also where a class holds for no row, or for all."""
    random = np.random.RandomState(seed)
    logits = random.randn(rows, classes).astype(np.float32)
    truth = (random.rand(rows, classes) < share).astype(np.float32)
    got = scored("multi-label", Ragged.of(logits), truth, [str(n) for n in range(classes)])
    whole, found = truth.astype(int), (expit(logits.astype(float)) >= 0.5).astype(int)
    each = [
        sk.f1_score(whole[:, i], found[:, i], zero_division=0) for i in range(classes)
    ]  # of one class scikit-learn takes columns for a single question
    assert same(got["f1"], np.mean(each))
    assert same(got["f1_micro"], sk.f1_score(whole.ravel(), found.ravel(), zero_division=0))
    assert same(got["accuracy"], np.mean((whole == found).all(axis=1)))
    both = [i for i in range(classes) if 0 < whole[:, i].sum() < rows]
    wanted = np.mean([sk.roc_auc_score(whole[:, i], logits[:, i]) for i in both]) if both else np.nan
    assert same(got["roc_auc"], wanted)
    shares = expit(logits.astype(float))
    assert same(got["loss"], -np.mean(whole * np.log(shares) + (1 - whole) * np.log1p(-shares)))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 99), st.booleans())
def test_entities(lengths: list[int], seed: int, nothing: bool) -> None:
    """Also where there is no entity at all; tokens that count for nothing stand between the words."""
    random = np.random.RandomState(seed)
    words = sum(lengths)
    logits = random.randn(words, len(NAMES)).astype(np.float32)
    truth = np.zeros(words, int) if nothing else random.randint(0, len(NAMES), words)
    ends = np.cumsum([0, *lengths])
    rows = [truth[a:b] for a, b in itertools.pairwise(ends)]
    targets = Ragged.of([np.array([IGNORED, *(x for tag in row for x in (tag, IGNORED))]) for row in rows])
    targets = Ragged(targets.values.astype(np.int64), targets.offsets, targets.longest)
    got = scored(
        "token-classification",
        Ragged.of([logits[a:b].ravel() for a, b in itertools.pairwise(ends)]),
        targets,
        NAMES,
    )
    found = logits.argmax(axis=1)
    actual, told = (
        [[NAMES[n] for n in numbers[a:b]] for a, b in itertools.pairwise(ends)] for numbers in (truth, found)
    )
    assert same(got["entity_f1"], seqeval.metrics.f1_score(actual, told, zero_division=0))
    assert same(got["entity_precision"], seqeval.metrics.precision_score(actual, told, zero_division=0))
    assert same(got["accuracy"], sk.accuracy_score(truth, found))
    assert same(
        got["loss"],
        sk.log_loss(
            truth,
            np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum(1, keepdims=True),
            labels=range(len(NAMES)),
        ),
    )


def test_tags_that_are_no_entities_are_counted_one_by_one() -> None:
    truth, found = [["NOUN", "VERB", "O"]], [["NOUN", "NOUN", "O"]]
    assert packaged("entity_recall").compute(predictions=found, references=truth) == {"entity_recall": 0.5}


@pytest.mark.parametrize("task", ["regression", "multi-label", "token-classification"])
def test_numbers_that_are_not_finite_are_refused(task: str) -> None:
    broken = Ragged.of(np.array([[np.nan, 0.0]], np.float32))
    targets: Any = np.zeros((1, 2), np.float32)
    if task == "token-classification":
        targets = Ragged(np.array([0]), np.array([0, 1]))
    with pytest.raises(UserError, match="not finite"):
        scored(task, broken, targets, ["O", "B-a"])


@pytest.mark.parametrize("name", ["regression", "multi-label", "token-classification"])
def test_mistakes_say_where_they_stand(name: str) -> None:
    """By the file's own line, where it is known; see `tests/data/test_lines.py` for what that is."""
    own = [{"text": "a b", "where": "test.csv, line 9"}, {"text": "c d", "where": "test.csv, line 14"}]
    split = datasets.Dataset.from_dict({"labels": [[0, 1]] * 2, "input_ids": [[1, 2]] * 2})
    tokenizer = SimpleNamespace(decode=lambda ids, **_: str(ids))
    logits, targets = {
        "regression": ([[0.0], [9.0]], np.array([[0.0], [1.0]])),
        "multi-label": ([[-5.0, 5.0], [5.0, 5.0]], np.array([[0, 1], [0, 1]])),
        "token-classification": ([[5.0, 0.0, 0.0, 5.0], [5.0, 0.0, 5.0, 0.0]], Ragged.of(np.array([[0, 1], [0, 1]]))),
    }[name]
    names = ["score"] if name == "regression" else ["O", "B-x"]
    scoring = Scoring(names=names, shown=Shown(split, tokenizer, own=own))
    found = find_task(TaskConfig(name=name)).score(Ragged.of(np.array(logits)), targets, scoring)
    assert "test.csv, line 14" in str([section.values for section in found.sections])
