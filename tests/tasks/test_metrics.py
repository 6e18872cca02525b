import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from skytune.config import METRICS, MORE, ConfigError, EvalConfig, UserError
from skytune.tasks import metrics, packaged_metrics

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
    """Which looks at every row here, and at every pair of classes there."""
    from sklearn import metrics as sk

    logits, labels = sample
    classes = logits.shape[1]
    predicted = logits.argmax(1)
    found = metrics.compute([*METRICS, *MORE], {}, logits, labels)
    options = {"zero_division": 0, "average": "binary" if classes == 2 else "macro"}
    odds = np.exp(logits.astype("float64"))
    expected = {
        "accuracy": sk.accuracy_score(labels, predicted),
        "f1": sk.f1_score(labels, predicted, **options),
        "precision": sk.precision_score(labels, predicted, **options),
        "recall": sk.recall_score(labels, predicted, **options),
        "matthews": sk.matthews_corrcoef(labels, predicted),
        "loss": sk.log_loss(labels, odds / odds.sum(axis=1, keepdims=True), labels=range(classes)),
        "n_rows": len(labels),
        "f1_macro": sk.f1_score(labels, predicted, average="macro", zero_division=0),
    }
    for name in ("f1", "precision", "recall"):
        score = getattr(sk, f"{name}_score")
        expected[f"{name}_weighted"] = score(labels, predicted, average="weighted", zero_division=0)
    shares = softmax(logits.astype("float64"), axis=1)
    there = [n for n in range(classes) if 0 < (labels == n).sum() < len(labels)]
    areas = {"roc_auc": sk.roc_auc_score, "pr_auc": sk.average_precision_score}
    for name, area in areas.items():
        if not there:
            assert math.isnan(found.pop(name))
        elif classes == 2:
            expected[name] = area(labels, logits[:, 1] - logits[:, 0])
        else:  # scikit-learn itself wants rows of every class
            expected[name] = np.mean([area(labels == n, shares[:, n]) for n in there])
            if len(there) == classes and name == "roc_auc":
                assert found[name] == pytest.approx(area(labels, shares, multi_class="ovr"), abs=1e-9)
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


def score(name: str, predictions: object, references: object, **options: object) -> float:
    return packaged_metrics.packaged(name).compute(predictions=predictions, references=references, **options)[name]


def test_known_values() -> None:
    truth, predicted = [1, 1, 1, 0, 0, 0, 0, 0], [1, 1, 0, 1, 0, 0, 0, 0]
    assert score("accuracy", predicted, truth) == 0.75
    assert score("precision", predicted, truth) == pytest.approx(2 / 3)
    assert score("recall", predicted, truth) == pytest.approx(2 / 3)
    assert score("f1", predicted, truth) == pytest.approx(2 / 3)
    assert score("f1", predicted, truth, average="macro") == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert score("matthews", predicted, truth) == pytest.approx((2 * 4 - 1 * 1) / math.sqrt(3 * 3 * 5 * 5))
    assert score("loss", [[0.0, 0.0], [1000.0, 0.0]], [1, 0]) == pytest.approx(math.log(2) / 2)
    area = packaged_metrics.packaged("roc_auc")
    assert area.compute(prediction_scores=[0.1, 0.4, 0.35, 0.8], references=[0, 0, 1, 1]) == {"roc_auc": 0.75}
    assert area.compute(prediction_scores=[-math.inf, math.inf], references=[0, 1]) == {"roc_auc": 1}
    with pytest.raises(ValueError, match="do not pair up"):
        score("f1", [0], [0, 1])


def test_matthews_counts_do_not_overflow() -> None:
    half = 2_000_000
    truth = np.repeat([0, 1], half)
    assert score("matthews", truth, truth) == pytest.approx(1)


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
    with pytest.raises(UserError, match=message):
        metrics.compute(["accuracy"], {}, np.zeros((4, 2)), np.array(labels))


def test_impossible_logits_are_refused() -> None:
    labels = np.array([0, 1, 0])
    for bad in (np.nan, np.inf):
        with pytest.raises(UserError, match=r"not finite for 1 of 3 rows \(the first is row 1\)"):
            metrics.compute(["accuracy"], {}, np.array([[0, 1], [bad, 0], [1, 0]]), labels)
    with pytest.raises(UserError, match="0 rows"):
        metrics.compute(["accuracy"], {}, np.zeros((0, 2)), np.zeros(0, dtype=int))
    with pytest.raises(UserError, match="at least two logits"):
        metrics.compute(["accuracy"], {}, np.zeros((3, 1)), labels)


# As `evaluate` knows them

SCORE_TWICE = """
import inspect, socket, sys
from pathlib import Path
import numpy as np

def refuse(*_, **__):
    raise AssertionError("a metric asked the network")

socket.socket.connect = socket.getaddrinfo = refuse
from skytune.tasks import metrics, packaged_metrics
assert not {"evaluate", "sklearn"} & set(sys.modules), "importing the room costs what is not needed yet"
class Looks:  # as `inspect` does, in another thread, while `evaluate` is imported
    def find_spec(self, name, *_):
        if name.startswith("evaluate."):
            for module in list(sys.modules.values()):
                inspect.getmodule(module), inspect.getsourcefile(module) if getattr(module, "__file__", None) else 0
sys.meta_path.insert(0, Looks())
right = int(sys.argv[1])
labels = np.arange(60) % 2
predicted = np.where(np.arange(60) < right, labels, 1 - labels)
for _ in range(4):
    found = metrics.compute(["accuracy", "f1"], {}, np.stack([np.zeros(60), predicted - 0.5], axis=1), labels)
    assert found["accuracy"] == right / 60, found
assert not {"evaluate", "datasets"} & set(sys.modules), "numbers cost what only others' metrics need"
module = packaged_metrics.packaged("accuracy")  # as `evaluate` documents it, a batch at a time
for start in range(0, 60, 20):
    module.add_batch(predictions=predicted[start : start + 20], references=labels[start : start + 20])
assert module.compute() == {"accuracy": right / 60}
import evaluate
assert isinstance(module, evaluate.Metric)
assert not {"torch", "transformers", "matplotlib"} & set(sys.modules), "the command has no use for them"
if right == 20:
    for _ in range(2):  # whoever wants them has them
        assert evaluate.evaluator("text-classification").task == "text-classification"
print(list(Path(sys.argv[2]).rglob("*")))
"""


def test_two_processes_at_once_write_nothing_and_ask_nobody(tmp_path: Path) -> None:
    env = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "HOME": str(tmp_path), "PYTHONPATH": str(SOURCE)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SCORE_TWICE, right, str(tmp_path)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for right in ("20", "45")
    ]
    for process in started:
        out, err = process.communicate(timeout=600)
        assert (process.returncode, out.strip()) == (0, b"[]"), err.decode()[-2000:]


def test_a_name_of_the_hub_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the hub was asked although it must not be")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for name in ("rouge", "somebody/theirs"):
        with pytest.raises(UserError, match=f"eval.metrics: {name}: no such metric: none of accuracy, .* the Hub does"):
            metrics.check([name], {})
    with pytest.raises(ConfigError, match=r"unknown metric 'acuracy'; .*, such as evaluate-metric/acuracy$"):
        EvalConfig(metrics=["acuracy"])


def test_a_name_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import evaluate

    folder = weighted_module(tmp_path)
    asked = []

    def load(path: str, **options: object) -> object:
        asked.append((path, options))
        return real(str(folder), **options)

    real = evaluate.load
    monkeypatch.setattr(evaluate, "load", load)
    logits, labels = draw(2)
    metrics.check(["somebody/theirs"], {})
    found = metrics.compute(["somebody/theirs", "accuracy"], {}, logits, labels)
    assert found["theirs_accuracy"] == found["accuracy"]
    assert asked == 2 * [("somebody/theirs", {"keep_in_memory": True})]


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
    with pytest.raises(UserError, match=message) as caught:
        metrics.compute([], {"mine": {"_target_": f"{user_module}.{function}"}}, *draw(2))
    assert "\n" not in str(caught.value)


def weighted_module(place: Path) -> Path:
    source = USER_MODULE[USER_MODULE.index("class Weighted") :]
    folder = place / "balanced"
    folder.mkdir(exist_ok=True)
    (folder / "balanced.py").write_text("import datasets\nimport evaluate\n\n" + source)
    return folder


def test_a_folder_with_a_module(tmp_path: Path) -> None:
    folder = weighted_module(tmp_path)
    logits, labels = draw(3)
    found = metrics.compute([str(folder), "accuracy"], {}, logits, labels)
    assert found["balanced_accuracy"] == found["accuracy"]
    source = (folder / "balanced.py").read_text()
    (folder / "balanced.py").write_text(source.replace("weight *", "weight * 10 *"))
    assert metrics.compute([str(folder)], {}, logits, labels)["balanced_accuracy"] == pytest.approx(
        10 * found["accuracy"]
    )
    with pytest.raises(UserError, match=r"no such metric, .*missing\.py is missing"):
        metrics.check([f"{tmp_path}/missing"], {})


def test_a_name_is_given_once(user_module: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the name 'accuracy' is taken"):
        metrics.compute(["accuracy"], {"accuracy": {"_target_": f"{user_module}.error_rate"}}, *draw(2))
