"""Every number of one evaluation, and the thresholds by which classes are told."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from skytune.config import IMAGES, PACKAGED, UserError
from skytune.config.targets import locate, split_spec

from .own_metrics import load_module, module_script, run_module, run_target
from .packaged_metrics import AREAS, AVERAGED, compute_packaged


def compute(
    metrics: list[str],
    extra: dict[str, dict[str, Any]],
    logits: np.ndarray,
    labels: np.ndarray,
    threshold: float | None = None,
) -> dict[str, float]:
    """Return every metric of one split by name, plus `loss` (mean cross-entropy in nats) and `n_rows`.

    The predicted class is the one with the largest logit, the first of equals. With two columns of logits, F1,
    precision and recall are those of class 1; with more they are macro averages. ROC-AUC and PR-AUC (average
    precision) of more classes are the means of one class against the rest, over those that have rows and are not all
    rows; NaN where there is none.

    Args:
        metrics: names out of `skytune.config.METRICS`, folders of `evaluate` modules, or names of the Hub's.
        extra: the user's own, by name: `{_target_: package.module.function, ...}`; see `run_target`.
        logits: [n, k], any float type; computed in float64.
        labels: [n], class numbers from 0 to k - 1.
        threshold: probability from which the second of two classes is predicted; None: the more probable one is.

    Raises:
        UserError: no rows; a label below 0 (unlabelled) or of no class; logits that are not finite; a metric that
            fails or returns something else than numbers, by name.
    """
    inputs = replace(Inputs.checked(logits, labels), threshold=threshold)
    return {**measure(metrics, extra, inputs, lambda name: _packaged(name, inputs)), "n_rows": len(inputs.labels)}


def measure(
    metrics: Iterable[str], extra: Mapping[str, Any], inputs: Any, own: Callable[[str], dict[str, float]]
) -> dict[str, float]:
    """Return `loss` and every metric by name.

    Args:
        metrics: packaged ones of the task, folders of `evaluate` modules, or names of the Hub's.
        extra: the user's own.
        inputs: `Inputs`, or another object with its fields `predictions`, `labels`, `logits`, `binary`.
        own: gives the number of a packaged one, or of `loss`.
    """
    results = own("loss")
    for name in dict.fromkeys(metrics):
        found = own(name) if name in PACKAGED else run_module(name, inputs)
        add(results, found, f"eval.metrics: {name}")
    for name, spec in extra.items():
        add(results, run_target(name, spec, inputs), f"eval.extra_metrics.{name}")
    return results


@dataclass(frozen=True)
class Answers:
    """The rows of an evaluation whose answers are no single classes: arrays, or lists, a row each."""

    predictions: Any
    labels: Any
    logits: Any
    binary: bool = False


def check(metrics: list[str] | None, extra: dict[str, dict[str, Any]]) -> None:
    """Find every metric that is not ours, so that a wrong name is told before hours of training and not after.

    Raises:
        UserError: there is none of that name.
    """
    for name in metrics or ():
        if name not in PACKAGED and not module_script(name).is_file():
            load_module(name)
    for name, spec in extra.items():
        locate(split_spec(spec)[0], f"eval.extra_metrics.{name}._target_")


@dataclass(frozen=True)
class Inputs:
    """The rows of one evaluation."""

    logits: np.ndarray
    """[n, k], float64."""

    labels: np.ndarray
    """[n], int64."""

    threshold: float | None = None
    """Probability from which the second of two classes is predicted."""

    @classmethod
    def checked(cls, logits: np.ndarray, labels: np.ndarray) -> "Inputs":
        """Return the rows, or say what is wrong with them.

        Raises:
            UserError: no rows, shapes that do not pair up, a label that is no class, logits that are not finite.
        """
        scores, truth = np.asarray(logits), np.asarray(labels)
        if truth.ndim != 1 or scores.ndim != 2 or len(scores) != len(truth) or scores.shape[1] < 2:
            raise UserError(
                f"cannot score logits of shape {scores.shape} against labels of shape {truth.shape}: "
                "a row of at least two logits is needed for every label"
            )
        if not len(truth):
            raise UserError("nothing to score: the split has 0 rows")
        if not np.issubdtype(truth.dtype, np.integer):
            raise UserError(f"labels of type {truth.dtype}: class numbers must be whole numbers")
        classes = scores.shape[1]
        wrong = np.flatnonzero((truth < 0) | (truth >= classes))
        if wrong.size:
            row, label = int(wrong[0]), int(truth[wrong[0]])
            if label == -1:
                raise UserError(
                    f"{wrong.size} of {len(truth)} rows have no label (-1; the first is row {row}): "
                    "an unlabelled split cannot be scored, give one with labels"
                )
            raise UserError(f"row {row} has the label {label}, but the classes go from 0 to {classes - 1}")
        scores = scores.astype(np.float64)
        # One check for NaN, +inf and a row of nothing but -inf; a single -inf is a class ruled out.
        broken = np.flatnonzero(~np.isfinite(scores.max(axis=1)))
        if broken.size:
            raise UserError(
                f"the model's logits are not finite for {broken.size} of {len(truth)} rows (the first is row "
                f"{int(broken[0])}): it diverged, try a smaller optimizer.lr or precision=fp32"
            )
        return cls(scores, truth.astype(np.int64))

    @functools.cached_property
    def predictions(self) -> np.ndarray:
        """Predicted classes, int64 [n]."""
        return decided(self.logits, self.threshold)

    @property
    def binary(self) -> bool:
        """True for two classes."""
        return self.logits.shape[1] == 2

    @functools.cached_property
    def shares(self) -> np.ndarray:
        """Probabilities, float64 [n, k]."""
        from scipy.special import softmax

        return np.asarray(softmax(self.logits, axis=1))

    @property
    def scores(self) -> np.ndarray:
        """The log-odds of class 1 in a two-class task, float64 [n]."""
        return self.logits[:, 1] - self.logits[:, 0]


def decided(logits: np.ndarray, threshold: float | None) -> np.ndarray:
    """Return the predicted class of every row, int64 [n]; see `compute`."""
    if threshold is None:
        return np.asarray(logits.argmax(axis=1))
    return (logits[:, 1] - logits[:, 0] >= math.log(threshold / (1 - threshold))).astype(np.int64)


def best_threshold(odds: np.ndarray, truth: np.ndarray) -> float:
    """Return the probability from which on rows are to count as a class for the best F1.

    Halfway between two rows' log-odds, so that rounding decides nothing; 0.5 where the class has no rows.

    Args:
        odds: [n], log-odds of the class.
        truth: [n], whether it holds.
    """
    if not truth.any():
        return 0.5
    order = np.argsort(-odds, kind="stable")
    sure, right = odds[order], np.cumsum(truth[order])
    f1 = 2 * right / (np.arange(1, len(order) + 1) + truth.sum())
    f1[:-1][sure[:-1] == sure[1:]] = -1  # no threshold parts equals
    best = int(f1.argmax())
    cut = (sure[best] + sure[best + 1]) / 2 if best + 1 < len(sure) else sure[best] - 1
    return float(np.clip(1 / (1 + np.exp(-cut)), 1e-6, 1 - 1e-6))


def _packaged(name: str, inputs: Inputs) -> dict[str, float]:
    if name in AREAS:
        if inputs.binary:
            return compute_packaged(name, prediction_scores=inputs.scores, references=inputs.labels)
        shares = inputs.shares
        there = [
            n for n, rows in enumerate(np.bincount(inputs.labels, minlength=shares.shape[1])) if 0 < rows < len(shares)
        ]
        areas = [compute_packaged(name, prediction_scores=shares[:, n], references=inputs.labels == n) for n in there]
        return {name: float(np.mean([area[name] for area in areas])) if areas else float("nan")}
    kind, _, average = name.partition("_")
    options = {"average": average or ("binary" if inputs.binary else "macro")} if kind in AVERAGED else {}
    given = inputs.logits if name in ("loss", *IMAGES) else inputs.predictions
    found = compute_packaged(kind if options else name, predictions=given, references=inputs.labels, **options)
    return {name: next(iter(found.values()))}


def add(results: dict[str, float], found: dict[str, float], key: str) -> None:
    """Put the numbers `found` into `results`.

    Raises:
        UserError: a name that is there already.
    """
    for name, value in found.items():
        if name in results or name == "n_rows":
            raise UserError(f"{key}: the name '{name}' is taken by another metric")
        results[name] = value
