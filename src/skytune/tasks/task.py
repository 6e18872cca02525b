"""The form of a task: what its parts are called with, and what they answer."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import EvalConfig, RunConfig, UserError
from ..data.batches import Ragged, TokenTable
from ..data.targets import Reading
from ..models.head import Head

if TYPE_CHECKING:
    import torch

Collected = Ragged
"""What is kept of every row of a split: float32 numbers, as many a row as the task wants."""


class Shown(Sequence[Any]):
    """The rows of a split as a person reads them: the file's own texts, or else, decoded when one is asked for, those
    that the model saw.

    Args:
        own: a data set of `text` and `where` (it stands), a row a row of the split; None where they are not known.
    """

    def __init__(self, split: Any, tokenizer: Any, rows: np.ndarray | None = None, own: Any = None) -> None:
        # Plain numbers: in torch's format one row would import torch.
        self.split, self.tokenizer, self.rows, self.own = split.with_format(None), tokenizer, rows, own

    def __len__(self) -> int:
        return len(self.split if self.rows is None else self.rows)

    def picked(self, rows: np.ndarray) -> "Shown":
        """Return these rows, in this order."""
        return Shown(self.split, self.tokenizer, rows, self.own)

    def where(self, place: int) -> str:
        """Return where a row stands: `reviews.csv, line 6`; of a split that is no file's, its number."""
        number = self._number(place)
        return f"row {number + 1}" if self.own is None else str(self.own[number]["where"])

    def _number(self, place: Any) -> int:
        return int(place if self.rows is None else self.rows[place])

    def row(self, place: int) -> dict[str, Any]:
        """Return all columns of a row."""
        return dict(self.split[self._number(place)])

    def words(self, place: int, ignored: int) -> list[str]:
        """Return the words of a row of which each has one label, made of their tokens."""
        row = self.row(place)
        starts = [at for at, label in enumerate(row["labels"]) if label != ignored]
        ends = [*starts[1:], len(row["labels"])]
        tokens = (row["input_ids"][start:end] for start, end in zip(starts, ends, strict=True))
        return [self.tokenizer.decode(part, skip_special_tokens=True) for part in tokens]

    def __getitem__(self, place: Any) -> Any:
        if self.own is not None:
            return self.own[self._number(place)]["text"]
        row = self.row(place)
        if self.tokenizer is None or "input_ids" not in row:
            return f"row {self._number(place)}"
        return self.tokenizer.decode(row["input_ids"], skip_special_tokens=True)


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """What there is to know where a split is scored."""

    names: list[str]
    """Classes or outputs."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the head: scales, thresholds."""

    metrics: list[str] = field(default_factory=list)
    """Numbers that are asked for (`eval.metrics`)."""

    extra: Mapping[str, Any] = field(default_factory=dict)
    """The user's own (`eval.extra_metrics`)."""

    mistakes: int = 10
    """How many of them are shown."""

    shown: Sequence[Any] | None = None
    """The rows (usually `Shown`), where sections for the report are wanted; None during training."""

    @classmethod
    def of(cls, config: EvalConfig, names: list[str], **more: Any) -> "Scoring":
        """Return what a configuration asks for, `resolved`."""
        return cls(names=names, metrics=list(config.metrics or []), extra=config.extra_metrics, **more)


@dataclass(frozen=True)
class Section:
    """A part of the report."""

    macro: str
    """What draws it: a macro of `report/sections.html.jinja`. `pairs`, `table` and `scatter` serve any task."""

    values: dict[str, Any]
    """What it is given: plain values that JSON can hold."""

    title: str = ""
    """Its heading; empty where the macro has headings of its own."""


@dataclass(frozen=True)
class Scored:
    """What is said of one split."""

    metrics: dict[str, float | None]
    """Numbers by name; None where one is not defined."""

    n_rows: int
    headline: dict[str, str] = field(default_factory=dict)
    """The numbers that stand first, with what is to be said of each ("share": of rows; it gets an interval)."""

    results: dict[str, Any] = field(default_factory=dict)
    """Further plain values for `<split>_results.json`."""

    sections: list[Section] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        metrics = {
            name: value if value is not None and math.isfinite(value) else None for name, value in self.metrics.items()
        }
        return {**asdict(self), "metrics": metrics}


def dense(values: "np.ndarray | Ragged", kind: Any) -> np.ndarray:
    """Return rows that all have one length as an array [n, k] of a type."""
    found = values.dense() if isinstance(values, Ragged) else values
    return np.asarray(found.reshape(len(found), -1), dtype=kind)


def check_scorable(values: np.ndarray, rows: int, what: str = "logits") -> None:
    """Refuse what a task cannot score.

    Raises:
        UserError: no rows; numbers that are not finite.
    """
    if not rows:
        raise UserError("nothing to score: the split has 0 rows")
    broken = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))
    if broken.size:
        raise UserError(
            f"the model's {what} are not finite for {broken.size} of {len(values)} rows (the first is row "
            f"{int(broken[0])}): it diverged, try a smaller optimizer.lr or precision=fp32"
        )


def texts_at(scoring: Scoring, rows: np.ndarray | Sequence[int]) -> list[tuple[str, str]]:
    """Return the texts of some rows that are shown, and where each stands."""
    shown, found = scoring.shown, []
    assert shown is not None
    for row in map(int, rows):
        found.append((str(shown[row])[:2000], shown.where(row) if isinstance(shown, Shown) else f"row {row + 1}"))
    return found


def no_columns(collected: Collected, scoring: Scoring) -> dict[str, list[Any]]:
    """Return nothing: a task whose predictions are no columns of a table."""
    return {}


def every_row(table: TokenTable) -> None:
    """Return None: every row counts once."""


def own_head(config: RunConfig, names: list[str], train: TokenTable | None) -> Head:
    """Return the head of one class a text, with the model's own loss."""
    return Head()


@dataclass(frozen=True, kw_only=True)
class Task(Reading):
    """What is learned from a row, in six answers: `columns`, `targets` (with `lacking` and `arrange`, see
    `skytune.data.targets.Reading`), `model`, `weigh`, `collect`, `score`."""

    name: str
    """As `task=NAME` names it."""

    metrics: tuple[str, ...]
    """The numbers that `score` has; all of them where `eval.metrics` is empty. The first is the main one."""

    more_metrics: tuple[str, ...] = ()
    """Further ones that `eval.metrics` may name."""

    pipeline: str = ""
    """What `transformers.pipeline` calls it; empty where it has none."""

    fits: Callable[[Mapping[str, Any]], bool]
    """Whether a prepared split of these features is this task's."""

    model: Callable[[RunConfig, list[str], TokenTable | None], Head] = own_head
    """What is asked of the network, for these names; the train split is given where it trains."""

    weigh: Callable[[TokenTable], np.ndarray | None] = every_row
    """Units of the loss of every row, int64 [rows], each at least 1: tokens that count. None: each row is one. The
    model's loss (or the head's) is the mean over the units of a micro-batch; it counts as much as its share of the
    units of the global batch, so that the split into processes and micro-batches changes nothing."""

    collect: Callable[[Any, Mapping[str, "torch.Tensor"], Head], "np.ndarray | list[np.ndarray]"]
    """What is kept of each row of a batch: float32 [rows, k], or an array a row. Called with the model's output (it got
    no labels) and the whole batch, labels included, on the model's device.

    Raises UserError where the output is not what it should be."""

    score: Callable[[Collected, "np.ndarray | Ragged", Scoring], Scored]
    """What is said of a split; `metrics` always has `loss`.

    Raises UserError where it cannot be scored."""

    tune: Callable[[Collected, "np.ndarray | Ragged", Scoring], dict[str, Any]] | None = None
    """Settings of the head (thresholds) that are chosen on the validation split when training is over, where
    `eval.threshold=f1` asks for it; None: it has none."""

    weighs_classes: bool = False
    """Whether `loss.*` means something to it."""

    augments: bool = False
    """Whether `augment.*` means something to it."""

    ends: Callable[[Any, RunConfig], list[int]] | None = None
    """Tokens that end what the model writes itself (`eval.generate`), for a tokenizer; None where it writes nothing.
    To what was collected of each row are then added the number of the answer's tokens, and these."""

    predicted: Callable[[Collected, Scoring], dict[str, list[Any]]] = no_columns
    """New columns for a table whose rows were predicted, by name."""

    def collector(self, head: Head) -> "Callable[[Any, Mapping[str, torch.Tensor]], np.ndarray | list[np.ndarray]]":
        """Return `collect` for a head."""
        return lambda output, batch: self.collect(output, batch, head)
