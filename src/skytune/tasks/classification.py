"""Everything that is said about one evaluated split, as plain values that JSON can hold."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from skytune.config import METRICS, MORE, UserError

from .metrics import compute, decided

BINS = 15
TEXT_LIMIT = 2000
GUO = "Guo et al., On Calibration of Modern Neural Networks, ICML 2017"


def evaluate_split(
    logits: np.ndarray,
    labels: np.ndarray,
    class_names: Sequence[str],
    metrics: list[str],
    extra: dict[str, dict[str, Any]],
    texts: Sequence[Any] | None = None,
    confusions: int = 10,
    threshold: float | None = None,
) -> dict[str, Any]:
    """Score one split.

    Args:
        logits: [n, k], any float type.
        labels: [n], class numbers from 0 to k - 1.
        class_names: k names in the order of their numbers.
        metrics: as in `skytune.tasks.metrics.compute`.
        extra: likewise.
        texts: n texts (or pairs of texts), shown with the mistakes.
        threshold: as in `compute`.
        confusions: how many of the most confident mistakes are kept.

    Returns:
        `metrics` (by name; None where a number is not defined) and `n_rows`; `majority`: the packaged metrics of who
        always says the most frequent class (its loss is the entropy of the classes' shares); `classes`: name,
        precision, recall, f1, support and predicted rows of each; `averages` of them; `confusion`: counts [k][k], row =
        true class; `calibration`: see there; `mistakes`: row, where it stands, text, true and predicted class and their
        probabilities, most confident first; `n_mistakes`; `own_texts`: whether these are the texts of the file.

    Raises:
        UserError: rows that cannot be scored, or a metric that fails; see `skytune.tasks.metrics.compute`.
    """
    from scipy.special import softmax
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    scored = compute(metrics, extra, logits, labels, threshold)
    truth = np.asarray(labels).astype(np.int64)
    classes = np.asarray(logits).shape[1]
    if len(class_names) != classes:
        raise UserError(f"the model gives {classes} numbers per row, but there are {len(class_names)} class names")
    if texts is not None and len(texts) != len(truth):
        raise UserError(f"{len(texts)} texts for {len(truth)} predictions: they are not of the same split")
    probabilities = softmax(np.asarray(logits, dtype=np.float64), axis=1)
    predicted = decided(np.asarray(logits, dtype=np.float64), threshold)
    confusion = confusion_matrix(truth, predicted, labels=range(classes))
    columns = precision_recall_fscore_support(truth, predicted, labels=range(classes), zero_division=0)
    table = dict(zip(("precision", "recall", "f1", "support"), columns, strict=True))
    table["predicted"] = confusion.sum(axis=0)
    names = [str(name) for name in class_names]
    counts = confusion.sum(axis=1)
    # What is known of a row that nobody looks at: the shares of the classes.
    blind = np.broadcast_to(np.log(np.maximum(counts, 0.5) / max(counts.sum(), 1)), (len(truth), classes))
    majority = compute([name for name in metrics if name in (*METRICS, *MORE)], {}, blind, labels)
    return {
        "metrics": {name: _finite(value) for name, value in scored.items() if name != "n_rows"},
        "n_rows": len(truth),
        "majority": {name: _finite(value) for name, value in majority.items() if name != "n_rows"},
        "classes": [
            {"name": names[i], **{column: values[i].item() for column, values in table.items()}} for i in range(classes)
        ],
        "averages": _averages(truth, predicted),
        "confusion": confusion.tolist(),
        "calibration": calibration(probabilities, truth),
        "mistakes": _mistakes(probabilities, predicted, truth, names, texts, confusions),
        "n_mistakes": int(np.sum(predicted != truth)),
        "own_texts": _own(texts),
    }


def _averages(truth: np.ndarray, predicted: np.ndarray) -> list[dict[str, Any]]:
    """Return precision, recall and F1 as macro and as weighted averages."""
    from sklearn.metrics import precision_recall_fscore_support

    found = []
    for kind in ("macro", "weighted"):
        values = precision_recall_fscore_support(truth, predicted, average=kind, zero_division=0)[:3]
        numbers = zip(("precision", "recall", "f1"), map(float, values), strict=True)
        found.append({"name": f"{kind} average", **dict(numbers)})
    return found


def calibration(probabilities: np.ndarray, labels: np.ndarray, bins: int = BINS) -> dict[str, Any]:
    """Compare how sure the model is with how often it is right.

    Rows fall into bins of equal width by the probability of their predicted class; the expected calibration error is
    the mean over rows of |accuracy - confidence| of their bin (Guo et al. 2017, equations 1 to 3; 15 bins as there).

    Args:
        probabilities: [n, k], rows that sum to 1.
        labels: [n].
        bins: number of bins between 0 and 1; bin m holds ((m - 1) / bins, m / bins].

    Returns:
        `ece` (0 to 1), `bins`: low, high, rows, accuracy and mean confidence (None for an empty bin), and `source`.
    """
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    found, error = [], 0.0
    for number in range(bins):
        inside = place == number
        rows = int(inside.sum())
        accuracy = float(right[inside].mean()) if rows else None
        sure = float(confidence[inside].mean()) if rows else None
        if accuracy is not None and sure is not None:
            error += rows / len(labels) * abs(accuracy - sure)
        found.append(
            {"low": number / bins, "high": (number + 1) / bins, "rows": rows, "accuracy": accuracy, "confidence": sure}
        )
    return {"ece": error, "bins": found, "source": GUO}


def wilson(right: float, rows: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the 95 % interval of a share of `rows` independent rows (Wilson 1927, score interval), from 0 to 1."""
    middle = (right + z * z / (2 * rows)) / (1 + z * z / rows)
    half = z * math.sqrt(right * (1 - right) / rows + z * z / (4 * rows * rows)) / (1 + z * z / rows)
    return max(0.0, middle - half), min(1.0, middle + half)


def _mistakes(
    probabilities: np.ndarray,
    predicted: np.ndarray,
    labels: np.ndarray,
    names: list[str],
    texts: Any,
    count: int,
) -> list[dict[str, Any]]:
    own = _own(texts)
    confidence = probabilities[np.arange(len(predicted)), predicted]
    wrong = np.flatnonzero(predicted != labels)
    first = wrong[np.argsort(-confidence[wrong], kind="stable")][:count]
    return [
        {
            "row": int(row),
            "where": texts.where(int(row)) if own else "",
            "text": None if texts is None else _text(texts[int(row)]),
            "true": names[labels[row]],
            "predicted": names[predicted[row]],
            "probability": float(confidence[row]),
            "probability_true": float(probabilities[row, labels[row]]),
        }
        for row in first
    ]


def _own(texts: Any) -> bool:
    """Whether these are the texts of the file, with where they stand there (see `task.Shown`)."""
    return getattr(texts, "own", None) is not None


def _text(value: Any) -> str:
    text = " ⏐ ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return text if len(text) <= TEXT_LIMIT else text[:TEXT_LIMIT].rstrip() + " …"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
