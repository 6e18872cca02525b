"""Numbers: one or several a row. The network learns them with mean 0 and standard deviation 1 over the train split, and
answers are scaled back; the scale stands in the model's configuration (`skytune_scale`)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..config import CORRELATIONS, ERRORS, DataConfig, RunConfig, UserError
from ..data.answers import absent, as_numbers, label_columns, lacks_label, with_labels_joined
from ..data.batches import Ragged, TokenTable
from ..data.rows import Rows
from ..data.targets import Encoded, inputs
from ..data.tokens import with_labels
from ..models.head import Head
from ..models.outputs import logits_of
from .metrics import Answers, measure
from .packaged_metrics import compute_packaged
from .task import Collected, Scored, Scoring, Section, Task, check_scorable, dense, texts_at

if TYPE_CHECKING:
    import torch

SCALE = "skytune_scale"
"""Setting of the head: `mean` and `std`, a number an output."""

MOST_POINTS = 1000
"""Of a scatter plot."""

MISTAKES = 10


@dataclass(frozen=True)
class NumberTargets:
    """Numbers by name."""

    names: list[str]

    @classmethod
    def find(cls, rows: Rows, config: DataConfig, known: list[str] | None) -> "NumberTargets":
        """Return the names of the outputs: the columns', else the label's with a number."""
        if rows.label is None:
            raise absent(rows, config)
        names = rows.names or config.label_columns
        if names is None:
            values, _ = as_numbers(rows)
            width = values.shape[1]
            names = [config.label] if width == 1 else [f"{config.label}_{place}" for place in range(width)]
        if known is not None and len(known) != len(names):
            raise UserError(
                f"the model gives {len(known)} numbers a row, the data has {len(names)}: {', '.join(names)}"
            )
        return cls(list(known or names))

    def encode(self, rows: Rows) -> Encoded:
        """See `data.targets.Targets`."""
        if rows.label is None:
            values, missing = np.zeros((len(rows), len(self.names))), np.ones(len(rows), dtype=bool)
        else:
            values, missing = as_numbers(rows, len(self.names))
        columns = [pa.array(values[:, place], pa.float32()) for place in range(len(self.names))]
        return Encoded(pa.StructArray.from_arrays(columns, names=self.names), np.zeros(len(rows), np.int64), missing)

    def about(self, encoded: Encoded) -> str:
        """See `data.targets.Targets`."""
        told = []
        for name in self.names:
            assert encoded.values is not None
            values = encoded.values.field(name).to_numpy(zero_copy_only=False).astype(np.float64)
            told.append(f"{name} from {values.min():.4g} to {values.max():.4g}, mean {values.mean():.4g}")
        return "; ".join(told[:3]) + (f" and {len(told) - 3} more" if len(told) > 3 else "")

    def lay_out(self, rows: Rows, encoded: Encoded, tokenizer: Any, limit: int | None) -> tuple[Any, int]:
        """See `data.targets.Targets`."""
        import datasets

        table, features, truncated = inputs(rows, tokenizer, limit)
        feature = {name: datasets.Value("float32") for name in self.names}
        return with_labels(table, features, encoded.values, feature), truncated


def fits(features: Mapping[str, Any]) -> bool:
    """Whether labels are numbers by name."""
    labels = features.get("labels")
    return isinstance(labels, dict) and all("float" in str(getattr(value, "dtype", "")) for value in labels.values())


def model(config: RunConfig, names: list[str], train: TokenTable | None) -> Head:
    """Return a head with one output a number. A module of one's own learns the numbers as they are, by its own loss."""
    if config.model._target_ or train is None:
        return Head(settings={"problem_type": "regression"})
    assert isinstance(train.targets, np.ndarray)
    targets = train.targets.astype(np.float64)
    mean, std = targets.mean(axis=0), targets.std(axis=0)
    scale = {"mean": mean.tolist(), "std": np.where(std > 0, std, 1.0).tolist()}
    return Head(settings={"problem_type": "regression", SCALE: scale}, loss=partial(squared_error, scale=scale))


def squared_error(logits: "torch.Tensor", labels: "torch.Tensor", scale: Mapping[str, list[float]]) -> "torch.Tensor":
    """Return the mean squared error of scaled numbers; both [rows, outputs]."""
    mean, std = logits.new_tensor(scale["mean"]), logits.new_tensor(scale["std"])
    return (logits - (labels - mean) / std).square().mean()


def scale_of(settings: Mapping[str, Any], outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (mean, standard deviation) of what a network was taught, float64 [outputs]; one that brings none has none.

    Raises:
        UserError: what its configuration says is no scale.
    """
    found = settings.get(SCALE) or {"mean": [0.0] * outputs, "std": [1.0] * outputs}
    try:
        mean, std = (np.array(found[key], dtype=np.float64) for key in ("mean", "std"))
        if mean.shape == std.shape == (outputs,) and np.isfinite(mean).all() and np.isfinite(std).all():
            return mean, std
    except (KeyError, TypeError, ValueError):
        pass
    raise UserError(f"the model's {SCALE} is damaged: it must hold mean and std, {outputs} numbers each")


def collect(output: Any, batch: Mapping[str, "torch.Tensor"], head: Head) -> np.ndarray:
    """Return the numbers, float32 [rows, outputs], scaled back."""
    found = logits_of(output)
    rows = len(next(iter(batch.values())))
    found = found.reshape(rows, -1) if found.ndim == 1 else found
    if found.ndim != 2 or len(found) != rows:
        raise UserError(f"the model returned numbers of shape {list(found.shape)} for {rows} rows")
    mean, std = scale_of(head.settings, found.shape[1])
    return (found.float().cpu().numpy() * std + mean).astype(np.float32)


def score(collected: Collected, targets: np.ndarray | Ragged, scoring: Scoring) -> Scored:
    """Return errors and correlations, means over the outputs; `loss` is the mean squared error of scaled numbers.

    Raises:
        UserError: no rows; numbers that are not finite.
    """
    found, truth = dense(collected, np.float64), dense(targets, np.float64)
    if len(truth) and found.shape != truth.shape:
        raise UserError(f"the model gives {found.shape[1]} numbers a row, the data has {truth.shape[1]}")
    check_scorable(found, len(truth), "numbers")
    _, std = scale_of(scoring.settings, truth.shape[1])

    def number(name: str) -> dict[str, float]:
        if name == "loss":
            return {name: float(np.mean(((found - truth) / std) ** 2))}
        columns = range(truth.shape[1])
        each = [compute_packaged(name, predictions=found[:, i], references=truth[:, i])[name] for i in columns]
        return {name: float(np.mean(each))}

    answers = Answers(
        found[:, 0] if found.shape[1] == 1 else found, truth[:, 0] if truth.shape[1] == 1 else truth, found
    )
    metrics = measure(scoring.metrics, scoring.extra, answers, number)
    if scoring.shown is None:
        return Scored(dict(metrics), len(truth))
    always_mean = float(np.mean(truth.std(axis=0)))
    headline = {"rmse": f"the mean alone: {always_mean:.3g}", "pearson": "", "spearman": ""}
    sections = [_plot(name, found[:, place], truth[:, place]) for place, name in enumerate(scoring.names)]
    if len(scoring.names) > 1:
        sections.insert(0, _by_output(scoring.names, found, truth))
    return Scored(
        dict(metrics),
        len(truth),
        headline=headline,
        results={"names": scoring.names, "rmse_of_the_mean": always_mean},
        sections=[*sections, _mistakes(scoring, found, truth, std)],
    )


def _plot(name: str, found: np.ndarray, truth: np.ndarray) -> Section:
    step = max(1, math.ceil(len(truth) / MOST_POINTS))
    points = np.stack([truth, found], axis=1)[::step]
    return Section(
        "scatter", {"points": points.tolist(), "x": "true", "y": "predicted"}, f"Predicted against true: {name}"
    )


def _by_output(names: list[str], found: np.ndarray, truth: np.ndarray) -> Section:
    measures = (*ERRORS, *CORRELATIONS)
    rows = [
        [name, *(compute_packaged(m, predictions=found[:, i], references=truth[:, i])[m] for m in measures)]
        for i, name in enumerate(names)
    ]
    return Section("table", {"columns": ["output", *measures], "rows": rows}, "By output")


def _mistakes(scoring: Scoring, found: np.ndarray, truth: np.ndarray, std: np.ndarray) -> Section:
    off = np.abs((found - truth) / std).mean(axis=1)
    worst = np.argsort(-off, kind="stable")[:MISTAKES]
    rows = [
        [*texts, *(v for pair in zip(truth[row], found[row], strict=True) for v in pair)]
        for row, texts in zip(worst, texts_at(scoring, worst), strict=True)
    ]
    one = len(scoring.names) == 1
    columns = [f"{what}{'' if one else f' {name}'}" for name in scoring.names for what in ("true", "predicted")]
    return Section("table", {"columns": ["text", "where", *columns], "rows": rows}, "Furthest off")


def predicted(collected: Collected, scoring: Scoring) -> dict[str, list[Any]]:
    """Return a column of numbers an output."""
    found = dense(collected, np.float64)
    if len(scoring.names) == 1:
        return {"prediction": found[:, 0].tolist()}
    return {f"prediction_{name}": found[:, place].tolist() for place, name in enumerate(scoring.names)}


TASK = Task(
    name="regression",
    metrics=(*ERRORS, *CORRELATIONS),
    fits=fits,
    columns=label_columns,
    arrange=with_labels_joined,
    lacking=lacks_label,
    targets=NumberTargets.find,
    model=model,
    collect=collect,
    score=score,
    predicted=predicted,
)
