"""Several classes a row, or none: each class is a question of its own, answered above its threshold."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..config import DataConfig, RunConfig, UserError
from ..data.answers import absent, as_numbers, label_columns, lacks_label, with_labels_joined
from ..data.batches import Ragged, TokenTable
from ..data.labels import shorten
from ..data.rows import Rows
from ..data.targets import Encoded, inputs
from ..data.tokens import with_labels
from ..models.head import Head
from .metrics import Answers, best_threshold, measure
from .packaged_metrics import compute_packaged
from .task import Collected, Scored, Scoring, Section, Task, check_scorable, dense, texts_at
from .text_classification import collect

SEPARATOR = ";"
THRESHOLDS = "skytune_thresholds"
"""Setting of the head: the probability from which each class holds."""

METRICS = ("f1", "f1_micro", "precision", "recall", "accuracy", "roc_auc")
MISTAKES = 10


@dataclass(frozen=True)
class SetTargets:
    """Sets of classes."""

    names: list[str]

    @classmethod
    def find(cls, rows: Rows, config: DataConfig, known: list[str] | None) -> "SetTargets":
        """Return the classes: `data.labels`, the columns of `data.label_columns`, else what stands there, sorted."""
        if rows.label is None:
            raise absent(rows, config)
        present = list(config.label_columns or sorted({name for found in _sets(rows) for name in found or ()}))
        names = list(known or config.labels or present)
        if not names:
            raise UserError(f"{rows.name}: no row has a class: there is nothing to learn")
        return cls(names)

    def encode(self, rows: Rows) -> Encoded:
        """See `data.targets.Targets`."""
        held = np.zeros((len(rows), len(self.names)), dtype=bool)
        missing = np.ones(len(rows), dtype=bool)
        if rows.label is not None and pa.types.is_struct(rows.label.type):
            values, missing = as_numbers(rows)
            if (odd := np.flatnonzero(~np.isin(values, (0, 1)).all(axis=1))).size:
                raise UserError(
                    f"{rows.where(int(odd[0]))}: a class holds (1) or does not (0); there stands another number"
                )
            held[:, [self._place(name, rows, 0) for name in rows.names or self.names]] = values == 1
        elif rows.label is not None:
            for row, found in enumerate(_sets(rows)):
                missing[row] = found is None
                for name in found or ():
                    held[row, self._place(name, rows, row)] = True
        columns = [pa.array(held[:, place]) for place in range(len(self.names))]
        _, strata = np.unique(held, axis=0, return_inverse=True)
        return Encoded(pa.StructArray.from_arrays(columns, names=self.names), strata.reshape(-1), missing)

    def _place(self, name: str, rows: Rows, row: int) -> int:
        if name not in self.names:
            has = f"one of the {len(self.names)} classes ({shorten(self.names)})"
            raise UserError(f"{rows.where(row)}: label '{name}' is not {has}; data.labels=[...] names all")
        return self.names.index(name)

    def about(self, encoded: Encoded) -> str:
        """See `data.targets.Targets`."""
        assert encoded.values is not None
        counts = [
            int(np.sum(encoded.values.field(place).to_numpy(zero_copy_only=False))) for place in range(len(self.names))
        ]
        told = shorten(f"{name} ({count:,})" for name, count in zip(self.names, counts, strict=True))
        return f"{len(self.names)} classes, {sum(counts) / max(1, len(encoded.strata)):.2f} a row: {told}"

    def lay_out(self, rows: Rows, encoded: Encoded, tokenizer: Any, limit: int | None) -> tuple[Any, int]:
        """See `data.targets.Targets`."""
        import datasets

        table, features, truncated = inputs(rows, tokenizer, limit)
        feature = {name: datasets.Value("bool") for name in self.names}
        return with_labels(table, features, encoded.values, feature), truncated


def _sets(rows: Rows) -> list[list[str] | None]:
    """Return the classes of every row: `a;b`, or a list; None where nothing is known."""
    assert rows.label is not None
    named = rows.names or []
    found: list[list[str] | None] = []
    for value in rows.label.to_pylist():
        parts = value if isinstance(value, list) else None if value is None else str(value).split(SEPARATOR)
        told = None if parts is None else [str(part).strip() for part in parts if str(part).strip()]
        found.append(told and [named[int(n)] if n.isdecimal() and int(n) < len(named) else n for n in told])
    return found


def lacking(rows: Rows, config: DataConfig) -> np.ndarray:
    """Return which rows have no label: an empty text says that no class holds."""
    if rows.label is None or pa.types.is_struct(rows.label.type):
        return lacks_label(rows, config)
    return np.asarray(rows.label.is_null().combine_chunks().to_numpy(zero_copy_only=False))


def fits(features: Mapping[str, Any]) -> bool:
    """Whether labels say of each class whether it holds."""
    labels = features.get("labels")
    return isinstance(labels, dict) and all(getattr(value, "dtype", "") == "bool" for value in labels.values())


def model(config: RunConfig, names: list[str], train: TokenTable | None) -> Head:
    """Return a head with a question a class."""
    threshold = config.eval.threshold
    own = {THRESHOLDS: [threshold] * len(names)} if isinstance(threshold, float) else {}
    return Head(settings={"problem_type": "multi_label_classification", **own})


def tune(collected: Collected, targets: np.ndarray | Ragged, scoring: Scoring) -> dict[str, Any]:
    """Return the threshold of each class with its best F1."""
    logits, truth = dense(collected, np.float64), dense(targets, np.int64)
    places = range(len(scoring.names))
    return {THRESHOLDS: [best_threshold(logits[:, place], truth[:, place] == 1) for place in places]}


def thresholds_of(scoring: Scoring) -> np.ndarray:
    """Return the probability from which each class holds, float64 [classes].

    Raises:
        UserError: what the model's configuration says is none.
    """
    found = scoring.settings.get(THRESHOLDS) or [0.5] * len(scoring.names)
    try:
        values = np.array(found, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.zeros(0)
    if values.shape != (len(scoring.names),) or not ((values >= 0) & (values <= 1)).all():
        raise UserError(f"the model's {THRESHOLDS} are damaged: there must be {len(scoring.names)}, from 0 to 1")
    return values


def score(collected: Collected, targets: np.ndarray | Ragged, scoring: Scoring) -> Scored:
    """Return macro averages over the classes; `accuracy` is the share of rows of which all classes are right.

    Raises:
        UserError: no rows; logits that are not finite.
    """
    from scipy.special import expit

    logits, truth = dense(collected, np.float64), dense(targets, np.int64)
    if logits.shape != truth.shape:
        raise UserError(f"cannot score logits of shape {logits.shape} against labels of shape {truth.shape}")
    check_scorable(logits, len(truth))
    shares = expit(logits)
    found = (shares >= thresholds_of(scoring)).astype(np.int64)

    def number(name: str) -> dict[str, float]:
        if name == "loss":
            return {name: float(np.mean(np.logaddexp(0, logits) - truth * logits))}
        if name == "accuracy":
            return {name: float(np.mean((found == truth).all(axis=1)))}
        if name == "roc_auc":  # of the classes that hold for some rows and not for others
            both = [place for place in range(truth.shape[1]) if 0 < truth[:, place].sum() < len(truth)]
            areas = [compute_packaged(name, prediction_scores=logits[:, i], references=truth[:, i])[name] for i in both]
            return {name: float(np.mean(areas)) if areas else float("nan")}
        return dict(compute_packaged(f"sets_{name}", predictions=found, references=truth))

    metrics = measure(scoring.metrics, scoring.extra, Answers(found, truth, logits), number)
    if scoring.shown is None:
        return Scored(dict(metrics), len(truth))
    table = _by_class(scoring, found, truth)
    return Scored(
        dict(metrics),
        len(truth),
        headline={"f1": "macro average", "accuracy": "share"},
        results={"classes": [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]},
        sections=[Section("table", table, "Per class"), _mistakes(scoring, shares, found, truth)],
    )


def _by_class(scoring: Scoring, found: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    from sklearn.metrics import precision_recall_fscore_support

    each = [
        precision_recall_fscore_support(a, b, labels=[1], zero_division=0)
        for a, b in zip(truth.T, found.T, strict=True)
    ]
    columns = [np.concatenate(column) for column in zip(*each, strict=True)]
    values = zip(scoring.names, *(column.tolist() for column in columns), thresholds_of(scoring).tolist(), strict=True)
    return {
        "columns": ["class", "precision", "recall", "F1", "rows", "threshold"],
        "rows": [list(row) for row in values],
    }


def _mistakes(scoring: Scoring, shares: np.ndarray, found: np.ndarray, truth: np.ndarray) -> Section:
    off = np.where(found != truth, np.abs(shares - truth), 0).max(axis=1)
    worst = [int(row) for row in np.argsort(-off, kind="stable")[:MISTAKES] if off[row] > 0]

    def told(held: np.ndarray) -> str:
        return ", ".join(name for name, there in zip(scoring.names, held, strict=True) if there) or "none"

    texts = zip(worst, texts_at(scoring, worst), strict=True)
    rows = [[*shown, told(truth[row]), told(found[row])] for row, shown in texts]
    return Section(
        "table", {"columns": ["text", "where", "true", "predicted"], "rows": rows}, "Most confident mistakes"
    )


def predicted(collected: Collected, scoring: Scoring) -> dict[str, list[Any]]:
    """Return the classes that hold as `a;b`, and the probability of each."""
    from scipy.special import expit

    shares = expit(dense(collected, np.float64))
    held = shares >= thresholds_of(scoring)
    names = np.array(scoring.names, dtype=object)
    found: dict[str, list[Any]] = {"prediction": [SEPARATOR.join(names[row]) for row in held]}
    return found | {f"probability_{name}": shares[:, place].tolist() for place, name in enumerate(scoring.names)}


TASK = Task(
    name="multi-label",
    pipeline="text-classification",
    metrics=METRICS,
    fits=fits,
    columns=label_columns,
    arrange=with_labels_joined,
    lacking=lacking,
    targets=SetTargets.find,
    model=model,
    collect=collect,
    tune=tune,
    score=score,
    predicted=predicted,
)
