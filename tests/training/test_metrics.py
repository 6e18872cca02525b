import math
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skytune.config import METRICS, ConfigError, UserError
from skytune.training import metrics
from skytune.training.metrics.classification import confusion, log_softmax

SOURCE = Path(metrics.__file__).parents[3]


def draw(classes: int, rows: int = 97, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    logits = rng.normal(size=(rows, classes)).astype("float32")
    logits[np.arange(rows), labels] += 1
    return logits, labels


@st.composite
def rows(draw_from: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    classes = draw_from(st.integers(2, 6))
    count = draw_from(st.integers(1, 40))
    # Few distinct values: ties in the scores are the rule.
    values = st.lists(st.integers(-3, 3), min_size=classes, max_size=classes)
    logits = draw_from(st.lists(values, min_size=count, max_size=count))
    labels = draw_from(st.lists(st.integers(0, classes - 1), min_size=count, max_size=count))
    return np.array(logits, dtype="float32") / 2, np.array(labels)


@settings(max_examples=150, deadline=None)
@given(rows())
def test_same_numbers_as_scikit_learn(sample: tuple[np.ndarray, np.ndarray]) -> None:
    sk = pytest.importorskip("sklearn.metrics")
    logits, labels = sample
    classes = logits.shape[1]
    predicted = logits.argmax(1)
    found = metrics.compute(list(METRICS), {}, logits, labels)
    options = {"zero_division": 0, "average": "binary" if classes == 2 else "macro"}
    probabilities = np.exp(log_softmax(logits))
    expected = {
        "accuracy": sk.accuracy_score(labels, predicted),
        "f1": sk.f1_score(labels, predicted, **options),
        "precision": sk.precision_score(labels, predicted, **options),
        "recall": sk.recall_score(labels, predicted, **options),
        "matthews": sk.matthews_corrcoef(labels, predicted),
        "loss": sk.log_loss(labels, probabilities, labels=range(classes)),
        "n_rows": len(labels),
    }
    if classes == 2 and len(set(labels.tolist())) == 2:
        expected["roc_auc"] = sk.roc_auc_score(labels, logits[:, 1] - logits[:, 0])
    else:
        assert math.isnan(found.pop("roc_auc"))
    assert found == pytest.approx(expected, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(rows(), st.randoms(use_true_random=False))
def test_order_of_rows_plays_no_part(sample: tuple[np.ndarray, np.ndarray], random: object) -> None:
    logits, labels = sample
    order = list(range(len(labels)))
    random.shuffle(order)  # type: ignore[attr-defined]
    once = metrics.compute(list(METRICS), {}, logits, labels)
    again = metrics.compute(list(METRICS), {}, logits[order], labels[order])
    assert again == pytest.approx(once, abs=1e-12, nan_ok=True)


def test_known_values() -> None:
    truth, predicted = [1, 1, 1, 0, 0, 0, 0, 0], [1, 1, 0, 1, 0, 0, 0, 0]
    assert metrics.accuracy(predicted, truth) == 0.75
    assert metrics.precision(predicted, truth) == pytest.approx(2 / 3)
    assert metrics.recall(predicted, truth) == pytest.approx(2 / 3)
    assert metrics.f1(predicted, truth) == pytest.approx(2 / 3)
    assert metrics.matthews(predicted, truth) == pytest.approx((2 * 4 - 1 * 1) / math.sqrt(3 * 3 * 5 * 5))
    assert metrics.roc_auc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]) == 0.75
    assert metrics.cross_entropy([[0.0, 0.0], [1000.0, 0.0]], [1, 0]) == pytest.approx(math.log(2) / 2)
    assert confusion(predicted, truth, 2).tolist() == [[4, 1], [1, 2]]


def test_matthews_counts_do_not_overflow() -> None:
    half = 2_000_000
    truth = np.repeat([0, 1], half)
    assert metrics.matthews(truth, truth) == 1.0


def test_nothing_divided_by_zero(recwarn: pytest.WarningsRecorder) -> None:
    logits = np.tile([1.0, 0.0], (5, 1))
    found = metrics.compute(list(METRICS), {}, logits, np.zeros(5, dtype=int))
    assert (found["accuracy"], found["f1"], found["precision"], found["recall"], found["matthews"]) == (1, 0, 0, 0, 0)
    assert math.isnan(found["roc_auc"])
    assert not recwarn.list


@pytest.mark.parametrize("count", [1, 2, 97])
def test_number_of_rows_is_exact(count: int) -> None:
    logits, labels = draw(3, count)
    assert metrics.compute(["accuracy"], {}, logits, labels)["n_rows"] == count


def test_loss_is_computed_in_float64() -> None:
    logits, labels = draw(2, 5000)
    assert metrics.compute([], {}, logits, labels) == metrics.compute([], {}, logits.astype("float64"), labels)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, -1, 1, -1], r"2 of 4 rows have no label \(-1; the first is row 1\)"),
        ([0, 1, 7, 1], "row 2 has the label 7, but the classes go from 0 to 1"),
        ([0, 1, -5, 1], "row 2 has the label -5"),
        ([0.0, 1.0, 0.0, 1.0], "whole numbers"),
        ([0, 1], "a row of at least two logits"),
    ],
)
def test_impossible_labels_are_refused(labels: list[int], message: str) -> None:
    for score in (metrics.compute, metrics.score_with_modules):
        with pytest.raises(UserError, match=message):
            score(["accuracy"], {}, np.zeros((4, 2)), np.array(labels))


def test_impossible_logits_are_refused() -> None:
    labels = np.array([0, 1, 0])
    for bad in (np.nan, np.inf):
        with pytest.raises(UserError, match=r"not finite for 1 of 3 rows \(the first is row 1\)"):
            metrics.compute(["accuracy"], {}, np.array([[0, 1], [bad, 0], [1, 0]]), labels)
    with pytest.raises(UserError, match="0 rows"):
        metrics.compute(["accuracy"], {}, np.zeros((0, 2)), np.zeros(0, dtype=int))
    with pytest.raises(UserError, match="at least two logits"):
        metrics.compute(["accuracy"], {}, np.zeros((3, 1)), labels)
    with pytest.raises(ValueError, match="negative"):
        metrics.accuracy([0, 1], [0, -1])
    with pytest.raises(ValueError, match="average='macro'"):
        metrics.f1([0, 1, 2], [0, 1, 2])


# The same through `evaluate`


@pytest.mark.parametrize("classes", [2, 3])
def test_modules_agree(classes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("evaluate")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a metric asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    logits, labels = draw(classes)
    ours = metrics.compute(list(METRICS), {}, logits, labels)
    theirs = metrics.score_with_modules(list(METRICS), {}, logits, labels)
    assert list(theirs) == list(ours)
    assert theirs == pytest.approx(ours, abs=1e-12, nan_ok=True)


def test_every_metric_is_a_module() -> None:
    evaluate = pytest.importorskip("evaluate")
    assert evaluate.__file__ is not None and "site-packages" in evaluate.__file__  # the library, not a module of ours
    for name in (*METRICS, "loss"):
        module = evaluate.load(str(metrics.module_path(name)))
        assert isinstance(module, evaluate.Metric)
        assert module.description and name in module.inputs_description
    with pytest.raises(ConfigError, match="unknown metric 'rouge'"):
        metrics.module_path("rouge")


@pytest.mark.slow
def test_two_processes_on_one_empty_cache(tmp_path: Path) -> None:
    pytest.importorskip("evaluate")
    script = textwrap.dedent(
        """
        import sys, numpy as np
        from skytune.training import metrics
        labels = np.arange(60) % 2
        logits = np.stack([np.zeros(60), np.where(np.arange(60) < int(sys.argv[1]), labels, 1 - labels) - 0.5], axis=1)
        for _ in range(4):
            found = metrics.score_with_modules(["accuracy", "f1"], {}, logits, labels)
            assert found["accuracy"] == int(sys.argv[1]) / 60, found
        import evaluate
        for _ in range(2):  # as a user would call it, rows in the shared cache folder
            module = evaluate.load(str(metrics.module_path("accuracy")))
            assert module.compute(predictions=logits.argmax(1), references=labels)["accuracy"] == int(sys.argv[1]) / 60
        print("right")
        """
    )
    env = {
        **os.environ,
        "HF_HOME": str(tmp_path / "hf"),
        "HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(SOURCE),
    }
    started = [
        subprocess.Popen([sys.executable, "-c", script, right], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for right in ("20", "45")
    ]
    for process in started:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out.strip()) == (0, b"right"), err.decode()[-2000:]


def test_a_bare_worker_needs_neither_evaluate_nor_datasets() -> None:
    script = (
        "import sys; sys.modules.update(evaluate=None, datasets=None, sklearn=None); import numpy as np;"
        "from skytune.training import metrics;"
        "print(metrics.compute(['accuracy', 'roc_auc'], {}, np.eye(2), np.array([0, 1]))['accuracy'])"
    )
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "1.0", done.stderr


# Metrics of the user's own

USER_MODULE = """
import evaluate, datasets

def error_rate(predictions, references):
    assert type(predictions) is list and type(predictions[0]) is int
    return sum(p != r for p, r in zip(predictions, references)) / len(references)

def both(*, predictions, references, scale=1):
    return {"right": scale * sum(p == r for p, r in zip(predictions, references)), "rows": len(references)}

def confidence(predictions, references, logits):
    return logits.max()

def kappa(**kwargs):
    return {"kappa": len(kwargs["predictions"])}

def broken(predictions, references):
    raise KeyError("oops")

def words(predictions, references):
    return {"a": "high"}

def takes_less(predictions):
    return 1.0

class NoMetric:
    pass

class Weighted(evaluate.Metric):
    def _info(self):
        features = {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
        return evaluate.MetricInfo(description="d", citation="", features=datasets.Features(features))

    def _compute(self, predictions, references, weight=1.0):
        return {"accuracy": weight * sum(p == r for p, r in zip(predictions, references)) / len(references)}
"""


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "user_metrics_for_test"
    (tmp_path / f"{name}.py").write_text(USER_MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_user_functions(user_module: str) -> None:
    pytest.importorskip("evaluate")
    logits, labels = draw(2)
    right = int((logits.argmax(1) == labels).sum())
    extra = {
        "errors": {"_target_": f"{user_module}.error_rate"},
        "both": {"_target_": f"{user_module}.both", "scale": 2},
        "confidence": {"_target_": f"{user_module}.confidence"},
        "kappa": {"_target_": f"{user_module}.kappa"},
        "weighted": {"_target_": f"{user_module}.Weighted", "weight": 3.0, "seed": 1},
    }
    found = metrics.compute(["accuracy"], extra, logits, labels)
    assert found["errors"] == pytest.approx(1 - right / 97)
    assert (found["both_right"], found["both_rows"]) == (2 * right, 97)
    assert found["confidence"] == pytest.approx(float(logits.max()))
    assert found["kappa"] == 97
    assert found["weighted_accuracy"] == pytest.approx(3 * right / 97)
    assert all(type(value) is float for name, value in found.items() if name != "n_rows")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("broken", r"eval\.extra_metrics\.mine: .*broken failed: KeyError: 'oops'"),
        ("words", r"eval\.extra_metrics\.mine: returned a='high': must be a number"),
        ("takes_less", r"eval\.extra_metrics\.mine\._target_=.*takes_less: got an unexpected keyword argument"),
        ("NoMetric", r"eval\.extra_metrics\.mine=.*NoMetric: a class needs a method compute"),
        ("missing", r"eval\.extra_metrics\.mine\._target_=.*has no 'missing'"),
    ],
)
def test_a_user_metric_that_fails_is_named(user_module: str, function: str, message: str) -> None:
    pytest.importorskip("evaluate")
    with pytest.raises(UserError, match=message) as caught:
        metrics.compute([], {"mine": {"_target_": f"{user_module}.{function}"}}, *draw(2))
    assert "\n" not in str(caught.value)


def test_a_folder_with_a_module(tmp_path: Path) -> None:
    pytest.importorskip("evaluate")
    folder = tmp_path / "balanced"
    folder.mkdir()
    source = USER_MODULE[USER_MODULE.index("class Weighted") :]
    (folder / "balanced.py").write_text("import datasets\nimport evaluate\n\n" + source)
    logits, labels = draw(3)
    found = metrics.compute([str(folder), "accuracy"], {}, logits, labels)
    assert found["balanced_accuracy"] == found["accuracy"]
    (folder / "balanced.py").write_text(
        "import datasets\nimport evaluate\n\n" + source.replace("weight *", "weight * 10 *")
    )
    assert metrics.compute([str(folder)], {}, logits, labels)["balanced_accuracy"] == pytest.approx(
        10 * found["accuracy"]
    )
    with pytest.raises(UserError, match=r"no such metric, .*missing\.py is missing"):
        metrics.compute([f"{tmp_path}/missing"], {}, logits, labels)


def test_a_name_is_given_once(user_module: str, tmp_path: Path) -> None:
    pytest.importorskip("evaluate")
    with pytest.raises(UserError, match="the name 'accuracy' is taken"):
        metrics.compute(["accuracy"], {"accuracy": {"_target_": f"{user_module}.error_rate"}}, *draw(2))
