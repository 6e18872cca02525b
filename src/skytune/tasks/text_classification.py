"""One class a text."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import METRICS, UserError
from ..data.batches import Ragged
from ..data.columns import text_columns
from ..data.targets import ClassTargets, lacks_class
from ..models.head import Head
from ..models.outputs import logits_of
from .classification import evaluate_split
from .metrics import compute
from .task import Collected, Scored, Scoring, Section, Task

if TYPE_CHECKING:
    import torch


def fits(features: Mapping[str, Any]) -> bool:
    """Whether labels are single classes."""
    return type(features.get("labels")).__name__ == "ClassLabel"


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
    if scoring.shown is None:
        metrics = compute(scoring.metrics, dict(scoring.extra), logits, targets)
        return Scored({name: value for name, value in metrics.items() if name != "n_rows"}, len(targets))
    found = evaluate_split(logits, targets, scoring.names, scoring.metrics, dict(scoring.extra), scoring.shown)
    names = scoring.names
    return Scored(
        metrics=found.pop("metrics"),
        n_rows=found["n_rows"],
        headline={"accuracy": "share", "f1": "macro average" if len(names) > 2 else f"of “{names[1]}”"},
        results={
            "classes": found["classes"],
            "confusion": found["confusion"],
            "calibration_error": found["calibration"]["ece"],
        },
        sections=[Section("classification", found)],
    )


def predicted(collected: Collected, scoring: Scoring) -> dict[str, list[Any]]:
    """Return the class with the largest logit, its probability, and that of every class."""
    from scipy.special import softmax

    shares = softmax(collected.dense().astype(np.float64), axis=1)
    best = shares.argmax(axis=1)
    found: dict[str, list[Any]] = {"prediction": [scoring.names[number] for number in best]}
    found["probability"] = shares.max(axis=1).tolist()
    return {**found, **{f"probability_{name}": shares[:, place].tolist() for place, name in enumerate(scoring.names)}}


TASK = Task(
    name="text-classification",
    pipeline="text-classification",
    metrics=METRICS,
    fits=fits,
    columns=text_columns,
    targets=ClassTargets.find,
    lacking=lacks_class,
    collect=collect,
    score=score,
    predicted=predicted,
)
