"""The packaged metrics: `evaluate.Metric`s over scikit-learn that are made here, so that no hub is asked for code.

Importing this costs nothing; making the first metric imports scikit-learn and `evaluate` (about a second).
"""

import functools
import importlib
import sys
import warnings
from types import ModuleType
from typing import Any

import numpy as np

FUNCTIONS = {
    "accuracy": "accuracy_score",
    "f1": "f1_score",
    "precision": "precision_score",
    "recall": "recall_score",
    "matthews": "matthews_corrcoef",
}
"""Of `sklearn.metrics`, by our name."""

AVERAGED = ("f1", "precision", "recall")


def import_evaluate() -> Any:
    """Import `evaluate` without its evaluators, which take transformers' pipelines along: four of its five seconds.
    Whoever calls one has them imported then."""
    if "evaluate" not in sys.modules:
        later = ModuleType("evaluate.evaluator")
        later.__dict__["__getattr__"] = lambda name: functools.partial(_evaluator, name)
        sys.modules[later.__name__] = later
        try:
            import evaluate
        finally:
            del sys.modules[later.__name__]
    import evaluate
    from huggingface_hub import constants

    evaluate.config.HF_EVALUATE_OFFLINE |= constants.HF_HUB_OFFLINE  # it does not look at that one
    return evaluate


def _evaluator(name: str, *args: Any, **options: Any) -> Any:
    found = importlib.import_module("evaluate.evaluator")
    sys.modules["evaluate"].__dict__["evaluator"] = found.evaluator  # where the import has just put the module
    return getattr(found, name)(*args, **options)


def packaged(name: str) -> Any:
    """Return a packaged metric (of `skytune.config.METRICS`, or `loss`) as an `evaluate.Metric`.

    Its `compute` takes `references` (n class numbers) and `predictions`: n class numbers, logits [n, k] for `loss`.
    `roc_auc` takes `prediction_scores` (n numbers, higher for class 1) instead, as the Hub's does, and `f1`,
    `precision` and `recall` take `average` ("binary": class 1 alone; "macro"). What is undefined is 0, the area under a
    curve NaN. Arrays go to scikit-learn as they are, and nothing is written: rows added before are held in memory.
    """
    from datasets import Features, Sequence, Value

    evaluate: Any = import_evaluate()
    Metric: Any = evaluate.Metric
    scored = "prediction_scores" if name == "roc_auc" else "predictions"
    kind: Any = {"loss": Sequence(Value("float64")), "roc_auc": Value("float64")}.get(name, Value("int64"))
    layout = None if name == "loss" else "numpy"
    features = Features({scored: kind, "references": Value("int64")})

    class Packaged(Metric):
        def _info(self) -> Any:
            return evaluate.MetricInfo(description=name, citation="", features=features, format=layout)

        def _build_data_dir(self) -> str:
            return ""

        def compute(self, **given: Any) -> Any:
            """Return the number by name."""
            if given.get(scored) is None or given.get("references") is None or len(self):
                return Metric.compute(self, **given)
            return self._compute(**given)

        def _compute(self, references: Any, **given: Any) -> dict[str, float]:
            return {name: _score(name, np.asarray(references), np.asarray(given.pop(scored)), **given)}

    return Packaged(keep_in_memory=True)


def _score(name: str, truth: np.ndarray, scores: np.ndarray, average: str = "binary") -> float:
    if name == "loss":
        from scipy.special import log_softmax

        return float(-np.mean(log_softmax(scores.astype(np.float64), axis=1)[np.arange(len(truth)), truth]))
    from sklearn import metrics

    if name == "roc_auc":
        if len(np.unique(truth)) < 2:
            return float("nan")
        # A class that is ruled out has infinite odds.
        return float(metrics.roc_auc_score(truth, np.nan_to_num(scores, posinf=1e300, neginf=-1e300)))
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
