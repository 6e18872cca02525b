"""One class a text."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import METRICS, MORE, RunConfig, UserError
from ..data.batches import Ragged, TokenTable
from ..data.columns import text_columns
from ..data.targets import ClassTargets, lacks_class, odd_classes
from ..models.head import Head
from ..models.outputs import logits_of
from .classification import evaluate_split
from .losses import class_loss
from .metrics import best_threshold, compute, decided
from .task import Collected, Scored, Scoring, Section, Task

if TYPE_CHECKING:
    import torch

THRESHOLD = "skytune_threshold"
"""Setting of the head: the probability from which the second of two classes is predicted."""


def fits(features: Mapping[str, Any]) -> bool:
    """Whether labels are single classes."""
    return type(features.get("labels")).__name__ == "ClassLabel" and "image" not in features


def model(config: RunConfig, names: list[str], train: TokenTable | None) -> Head:
    """Return the head of one class a text, with the loss that `loss.*` asks for."""
    own = {THRESHOLD: config.eval.threshold} if isinstance(config.eval.threshold, float) else {}
    return Head(settings={**Head().settings, **own}, loss=class_loss(config.loss, names, train))


def collect(output: Any, batch: Mapping[str, "torch.Tensor"], head: Head) -> np.ndarray:
    """Return the logits, float32 [rows, classes]."""
    found = logits_of(output)
    rows = len(next(iter(batch.values())))
    if found.ndim != 2 or len(found) != rows:
        raise UserError(f"the model returned logits of shape {list(found.shape)} for {rows} rows")
    return np.asarray(found.float().cpu().numpy())


def score(collected: Collected, targets: np.ndarray | Ragged, scoring: Scoring) -> Scored:
    """Return every metric; with rows to show, confusion, calibration and mistakes as well."""
    logits = collected.dense()
    assert isinstance(targets, np.ndarray)
    threshold = threshold_of(scoring)
    if scoring.shown is None:
        metrics = compute(scoring.metrics, dict(scoring.extra), logits, targets, threshold)
        return Scored({name: value for name, value in metrics.items() if name != "n_rows"}, len(targets))
    shown, extra = scoring.shown, dict(scoring.extra)
    found = evaluate_split(
        logits, targets, scoring.names, scoring.metrics, extra, shown, scoring.mistakes, threshold=threshold
    )
    names = scoring.names
    return Scored(
        metrics=found.pop("metrics"),
        n_rows=found["n_rows"],
        headline={"accuracy": "share", "f1": "macro average" if len(names) > 2 else f"of “{names[1]}”"},
        results={
            "classes": found["classes"],
            "majority": found["majority"],
            "confusion": found["confusion"],
            "calibration_error": found["calibration"]["ece"],
        },
        sections=[Section("classification", found)],
    )


def predicted(collected: Collected, scoring: Scoring) -> dict[str, list[Any]]:
    """Return the class with the largest logit, its probability, and that of every class."""
    from scipy.special import softmax

    shares = softmax(collected.dense().astype(np.float64), axis=1)
    best = decided(collected.dense(), threshold_of(scoring))
    found: dict[str, list[Any]] = {"prediction": [scoring.names[number] for number in best]}
    found["probability"] = shares[np.arange(len(best)), best].tolist()
    return {**found, **{f"probability_{name}": shares[:, place].tolist() for place, name in enumerate(scoring.names)}}


def threshold_of(scoring: Scoring) -> float | None:
    """Return the probability from which the second of two classes is predicted; None: the more probable one is.

    Raises:
        UserError: what the model's configuration says is no probability.
    """
    found = scoring.settings.get(THRESHOLD)
    if found is None or (isinstance(found, float) and 0 < found < 1 and len(scoring.names) == 2):
        return found
    raise UserError(f"the model's {THRESHOLD}={found} is no probability for the second of {len(scoring.names)} classes")


def tune(collected: Collected, targets: np.ndarray | Ragged, scoring: Scoring) -> dict[str, Any]:
    """Return the threshold with the best F1 of the second of two classes."""
    if len(scoring.names) != 2:
        raise UserError(f"eval.threshold=f1: there are {len(scoring.names)} classes, and a threshold needs two")
    assert isinstance(targets, np.ndarray)
    logits = collected.dense().astype(np.float64)
    return {THRESHOLD: best_threshold(logits[:, 1] - logits[:, 0], targets == 1)}


TASK = Task(
    name="text-classification",
    pipeline="text-classification",
    metrics=METRICS,
    more_metrics=MORE,
    fits=fits,
    columns=text_columns,
    targets=ClassTargets.find,
    lacking=lacks_class,
    odd=odd_classes,
    model=model,
    collect=collect,
    tune=tune,
    weighs_classes=True,
    score=score,
    predicted=predicted,
)
