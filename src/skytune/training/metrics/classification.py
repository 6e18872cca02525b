"""Classification metrics as plain numpy functions; names, arguments and conventions are scikit-learn's.

`predictions` and `references` are sequences of n class numbers. `average="binary"` looks at class 1 alone,
`average="macro"` takes the plain mean over the classes that occur in the references or the predictions.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Classes = Sequence[int] | np.ndarray


def accuracy(predictions: Classes, references: Classes) -> float:
    """Return the share of rows whose class is right, from 0 to 1."""
    predicted, truth = _pair(predictions, references)
    return float(np.mean(predicted == truth))


def precision(predictions: Classes, references: Classes, average: str = "binary") -> float:
    """Return true positives / all predicted positives, from 0 to 1.

    A class that is never predicted counts as 0 (scikit-learn's `zero_division=0`).
    """
    return _averaged("precision", predictions, references, average)


def recall(predictions: Classes, references: Classes, average: str = "binary") -> float:
    """Return true positives / all rows of the class, from 0 to 1.

    A class without a row counts as 0 (scikit-learn's `zero_division=0`).
    """
    return _averaged("recall", predictions, references, average)


def f1(predictions: Classes, references: Classes, average: str = "binary") -> float:
    """Return the harmonic mean of precision and recall, 2 TP / (2 TP + FP + FN), from 0 to 1.

    A class that is neither there nor predicted counts as 0 (scikit-learn's `zero_division=0`). The macro average is
    the mean of the classes' F1, not the F1 of mean precision and mean recall (Opitz and Burst 2019 compare the two).
    """
    return _averaged("f1", predictions, references, average)


def matthews(predictions: Classes, references: Classes) -> float:
    """Return Matthews' correlation coefficient for any number of classes, from -1 to 1.

    It is R_K of Gorodkin, "Comparing two K-category assignments by a K-category correlation coefficient" (2004), and
    for two classes the usual coefficient. Where only one class is predicted, or only one is there, the quotient is
    0/0 and 0 is returned (scikit-learn's convention).
    """
    predicted, truth = _pair(predictions, references)
    table = confusion(predicted, truth, int(max(predicted.max(), truth.max())) + 1)
    # Python's whole numbers: products of counts pass 2**63 with a few million rows.
    rows = int(table.sum())
    there = [int(count) for count in table.sum(axis=1)]
    given = [int(count) for count in table.sum(axis=0)]
    covariance = int(np.trace(table)) * rows - sum(t * g for t, g in zip(there, given, strict=True))
    spread = (rows**2 - sum(t * t for t in there)) * (rows**2 - sum(g * g for g in given))
    return covariance / math.sqrt(spread) if spread else 0.0


def roc_auc(prediction_scores: Sequence[float] | np.ndarray, references: Classes) -> float:
    """Return the area under the ROC curve of a two-class task, from 0 to 1; NaN where only one class is there.

    It is the Mann-Whitney statistic: the chance that a row of class 1 scores higher than a row of class 0, ties
    counting half (midranks), as in Hanley and McNeil, "The meaning and use of the area under a ROC curve" (1982).

    Args:
        prediction_scores: n numbers, higher for class 1; any increasing function of its probability does.
        references: n class numbers, 0 or 1.
    """
    scores, truth = np.asarray(prediction_scores, dtype=np.float64), np.asarray(references)
    if scores.shape != truth.shape or scores.ndim != 1:
        raise ValueError(f"{scores.shape} scores and {truth.shape} references do not pair up")
    positive = truth == 1
    if np.any(~positive & (truth != 0)):
        raise ValueError("the area under the ROC curve is defined for the classes 0 and 1 alone")
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives:
        return math.nan
    _, group, counts = np.unique(scores, return_inverse=True, return_counts=True)
    midranks = np.cumsum(counts) - (counts - 1) / 2
    ranks = float(midranks[group[positive]].sum())
    return (ranks - positives * (positives + 1) / 2) / (positives * negatives)


def cross_entropy(logits: Any, references: Classes) -> float:
    """Return the mean negative log-likelihood in nats, in float64, from logits [n, k]; the training loss's scale."""
    return float(np.mean(row_losses(logits, references)))


def row_losses(logits: Any, references: Classes) -> np.ndarray:
    """Return each row's negative log-likelihood in nats, float64 [n], from logits [n, k]."""
    scores, truth = np.asarray(logits, dtype=np.float64), np.asarray(references, dtype=np.int64)
    return -log_softmax(scores)[np.arange(len(truth)), truth]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return log-probabilities, float64 [n, k]; the row's largest logit is taken off first, so that none overflows."""
    shifted = np.asarray(logits, dtype=np.float64)
    shifted = shifted - shifted.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def confusion(predictions: Classes, references: Classes, classes: int) -> np.ndarray:
    """Return the confusion matrix, int64 [classes, classes]: row = true class, column = predicted class."""
    predicted, truth = _pair(predictions, references)
    return np.bincount(truth * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def per_class(predictions: Classes, references: Classes, classes: int) -> dict[str, np.ndarray]:
    """Return arrays [classes]: `precision`, `recall`, `f1` (0 where undefined), `support` and `predicted` (rows)."""
    table = confusion(predictions, references, classes)
    right, support, given = np.diag(table), table.sum(axis=1), table.sum(axis=0)
    return {
        "precision": _quotient(right, given),
        "recall": _quotient(right, support),
        "f1": _quotient(2 * right, support + given),
        "support": support,
        "predicted": given,
    }


def _averaged(name: str, predictions: Classes, references: Classes, average: str) -> float:
    predicted, truth = _pair(predictions, references)
    top = int(max(predicted.max(), truth.max()))
    if average == "binary":
        if top > 1:
            raise ValueError(f"class {top} in a two-class {name}: use average='macro' for more classes")
        return float(per_class(predicted, truth, 2)[name][1])
    if average != "macro":
        raise ValueError(f"average={average!r}: allowed are 'binary' and 'macro'")
    scores = per_class(predicted, truth, top + 1)
    occurs = (scores["support"] + scores["predicted"]) > 0
    return float(scores[name][occurs].mean())


def _pair(predictions: Classes, references: Classes) -> tuple[np.ndarray, np.ndarray]:
    predicted, truth = np.asarray(predictions, dtype=np.int64), np.asarray(references, dtype=np.int64)
    if predicted.shape != truth.shape or predicted.ndim != 1 or not predicted.size:
        raise ValueError(f"{predicted.shape} predictions and {truth.shape} references do not pair up")
    if min(predicted.min(), truth.min()) < 0:
        raise ValueError("a class number is negative: unlabelled rows (-1) cannot be scored")
    return predicted, truth


def _quotient(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    return np.divide(above, below, out=np.zeros(len(below)), where=below > 0)
