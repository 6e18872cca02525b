"""The metrics that come with this package: `evaluate.Metric`s over scikit-learn, so that no hub is asked for code.

Importing this costs nothing; making the first metric imports scikit-learn and `evaluate` (about a second).
"""

import functools
import importlib
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from skytune.config import CORRELATIONS, ENTITIES, ERRORS, IMAGES

FUNCTIONS = {
    "accuracy": "accuracy_score",
    "f1": "f1_score",
    "precision": "precision_score",
    "recall": "recall_score",
    "matthews": "matthews_corrcoef",
}
"""Of `sklearn.metrics`, by our name."""

AREAS = {"roc_auc": "roc_auc_score", "pr_auc": "average_precision_score"}
"""Areas under a curve, of `sklearn.metrics`."""

AVERAGED = ("f1", "precision", "recall")
NUMBERS = (*ERRORS, *CORRELATIONS)
TOP = 5
"""Classes that count for `top_5`."""

SETS = "sets_"
"""What the names of metrics begin with that take a set of classes a row."""


def import_evaluate() -> Any:
    """Import `evaluate` without its evaluators, which take transformers' pipelines along: four of its five seconds.
    Whoever calls one has them imported then."""
    if "evaluate" not in sys.modules:
        later = ModuleType("evaluate.evaluator")
        later.__dict__["__getattr__"] = _later
        sys.modules[later.__name__] = later
        try:
            import evaluate
        finally:
            del sys.modules[later.__name__]
    import evaluate
    from huggingface_hub import constants

    evaluate.config.HF_EVALUATE_OFFLINE |= constants.HF_HUB_OFFLINE  # it does not look at that one
    return evaluate


def _later(name: str) -> Any:
    if name.startswith("__"):  # no file: `inspect` asks all modules for theirs, in whatever thread
        raise AttributeError(name)
    return functools.partial(_evaluator, name)


def _evaluator(name: str, *args: Any, **options: Any) -> Any:
    found = importlib.import_module("evaluate.evaluator")
    sys.modules["evaluate"].__dict__["evaluator"] = found.evaluator  # where the import has just put the module
    return getattr(found, name)(*args, **options)


def packaged(name: str) -> Any:
    """Return a packaged metric (of `skytune.config.PACKAGED`, or `loss`) as an `evaluate.Metric`.

    Its `compute` takes `references` (n class numbers) and `predictions`: n class numbers, logits [n, k] for `loss` and
    `top_5`.
    `roc_auc` and `pr_auc` take `prediction_scores` (n numbers, higher for class 1) instead, as the Hub's do, and `f1`,
    `precision` and `recall` take `average` ("binary": class 1 alone; "macro"). Those of numbers take n numbers. What is
    undefined is 0, the area under a curve and a correlation NaN. Arrays go to scikit-learn and SciPy as they are, and
    nothing is written: rows added before are held in memory.
    """
    from datasets import Features, Sequence, Value

    evaluate: Any = import_evaluate()
    Metric: Any = evaluate.Metric
    scored = "prediction_scores" if name in AREAS else "predictions"
    truth: Any = Value("float64" if name in NUMBERS else "int64")
    if name in ENTITIES or name.startswith(SETS):
        truth = Sequence(Value("string" if name in ENTITIES else "int64"))
    kind: Any = {
        **dict.fromkeys(("loss", *IMAGES), Sequence(Value("float64"))),
        **dict.fromkeys(AREAS, Value("float64")),
    }.get(name, truth)
    layout = "numpy" if all(isinstance(part, Value) for part in (kind, truth)) else None
    features = Features({scored: kind, "references": truth})

    class PackagedMetric(Metric):
        def _info(self) -> Any:
            return evaluate.MetricInfo(description=name, citation="", features=features, format=layout)

        def _build_data_dir(self) -> str:
            return ""

        def compute(self, **given: Any) -> Any:
            """Return the number by name."""
            if given.get(scored) is None or given.get("references") is None or len(self):
                return Metric.compute(self, **given)
            return self._compute(**given)

        def _compute(self, **given: Any) -> dict[str, float]:
            return compute_packaged(name, **given)

    return PackagedMetric(keep_in_memory=True)


def compute_packaged(name: str, references: Any, **given: Any) -> dict[str, float]:
    """Return what `packaged(name).compute` does, without `evaluate` and `datasets`, which take most of a second to
    import."""
    measured: Callable[..., float] = _score
    if name in NUMBERS or name in ENTITIES or name.startswith(SETS):
        measured = _of_numbers if name in NUMBERS else _of_entities if name in ENTITIES else _of_sets
    plain = list if name in ENTITIES else np.asarray
    scored = plain(given.pop("prediction_scores" if name in AREAS else "predictions"))
    return {name.removeprefix(SETS): measured(name, plain(references), scored, **given)}


def _of_sets(name: str, truth: np.ndarray, found: np.ndarray) -> float:
    """Return an average over classes; both int [n, classes], 0 or 1."""
    from sklearn import metrics

    kind, _, average = name.removeprefix(SETS).partition("_")
    function = getattr(metrics, FUNCTIONS[kind])
    if truth.shape[1] == 1:  # scikit-learn takes one column for two classes
        return float(function(truth[:, 0], found[:, 0], zero_division=0))
    return float(function(truth, found, average=average or "macro", zero_division=0))


def entities(truth: list[list[str]], found: list[list[str]]) -> list[list[Any]]:
    """Return name, precision, recall, F1 and support of every type of entity; tags as in `_of_entities`."""
    from seqeval.metrics import classification_report

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = classification_report(_tags(truth), _tags(found), output_dict=True, zero_division=0)
    return [
        [name, *(number.item() for number in values.values())]  # in this order
        for name, values in report.items()
        if not name.endswith(" avg")
    ]


def _of_entities(name: str, truth: list[list[str]], found: list[list[str]]) -> float:
    """Return a number of whole entities, given by B- and I- tags; of tags without them, of every word's tag."""
    from seqeval import metrics

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is not there
        function = getattr(metrics, f"{name.removeprefix('entity_')}_score")
        return float(function(_tags(truth), _tags(found), zero_division=0))


def _tags(rows: list[list[str]]) -> list[list[str]]:
    return [[tag if tag == "O" or tag[:2] in ("B-", "I-") else f"B-{tag}" for tag in row] for row in rows]


def _of_numbers(name: str, truth: np.ndarray, found: np.ndarray) -> float:
    from scipy import stats
    from sklearn import metrics

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is not defined
        if name in ERRORS:
            return float(
                {"rmse": metrics.root_mean_squared_error, "mae": metrics.mean_absolute_error}[name](truth, found)
            )
        if len(truth) < 2:
            return float("nan")
        if name == "r2":
            return float(metrics.r2_score(truth, found, force_finite=False))
        return float({"pearson": stats.pearsonr, "spearman": stats.spearmanr}[name](truth, found).statistic)


def _score(name: str, truth: np.ndarray, scores: np.ndarray, average: str = "binary") -> float:
    if name == "loss":
        from scipy.special import log_softmax

        return float(-np.mean(log_softmax(scores.astype(np.float64), axis=1)[np.arange(len(truth)), truth]))
    from sklearn import metrics

    if name in IMAGES:
        if scores.shape[1] <= TOP:
            return 1.0
        return float(metrics.top_k_accuracy_score(truth, scores, k=TOP, labels=range(scores.shape[1])))
    if name in AREAS:
        if len(np.unique(truth)) < 2:
            return float("nan")
        # A class that is ruled out has infinite odds.
        return float(getattr(metrics, AREAS[name])(truth, np.nan_to_num(scores, posinf=1e300, neginf=-1e300)))
    # Each pair of classes once, with its count as weight: scikit-learn takes 15 ms for 100,000 rows, for each metric.
    if truth.shape != scores.shape:
        raise ValueError(f"{scores.shape} predictions and {truth.shape} references do not pair up")
    low = min(truth.min(), scores.min())
    span = max(truth.max(), scores.max()) - low + 1
    pairs, counts = np.unique((truth - low) * span + scores - low, return_counts=True)
    truth, scores = (part + low for part in np.divmod(pairs, span))
    options = {"average": average, "zero_division": 0} if name in AVERAGED else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class that is not there is no news
        return float(getattr(metrics, FUNCTIONS[name])(truth, scores, sample_weight=counts, **options))
