"""What is read of a table and what is learned from it, as a task answers it; and the answers for one class a row."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from ..config import DataConfig, ModelConfig
from .columns import Columns, text_columns
from .labels import MISSING, Classes, encode, find_classes, read_labels, shorten
from .quality import class_oddities, contradicting_labels, small_test
from .rows import Rows
from .tokens import tokenize, tokenizer_of, with_labels


@dataclass(frozen=True)
class Encoded:
    """What is to be learned, row by row."""

    values: pa.Array | None
    """The column `labels`; None where the task makes it when it lays rows out."""

    strata: np.ndarray
    """int64 [rows]: parts of the data are cut so that every number keeps its share."""

    missing: np.ndarray
    """bool [rows]: nothing is known of these rows."""

    def take(self, positions: np.ndarray) -> "Encoded":
        """Return the rows at these positions."""
        values = None if self.values is None else self.values.take(pa.array(positions, pa.int64()))
        return Encoded(values, self.strata[positions], self.missing[positions])


class Targets(Protocol):
    """What a task learns from one data set; found in its train split."""

    @property
    def names(self) -> list[str]:
        """Classes or outputs in their order; empty where there are none."""

    def encode(self, rows: Rows) -> Encoded:
        """Return what is to be learned from each row.

        Raises:
            UserError: a value that cannot be, with its row and the way out.
        """

    def about(self, encoded: Encoded) -> str:
        """Say in a few words what the train split holds: `2 classes: negative (60), positive (60)`."""

    def lay_out(self, rows: Rows, encoded: Encoded, tokenizer: Any, limit: int | None) -> tuple[Any, int]:
        """Return a split as a `datasets.Dataset` in torch format, with `labels`, and how many rows were cut off.

        Args:
            tokenizer: None where no column of the table is text.
            limit: longest row in tokens; None is no limit.
        """


def nothing_odd(
    targets: Targets, config: DataConfig, rows: Rows, strata: np.ndarray, parts: Mapping[str, np.ndarray]
) -> list[str]:
    """Return nothing: a task of which nobody has said what is odd."""
    return []


def odd_classes(
    targets: Targets, config: DataConfig, rows: Rows, strata: np.ndarray, parts: Mapping[str, np.ndarray]
) -> list[str]:
    """Return what is odd about the classes of rows that can be trained on all the same; see `Reading.odd`."""
    counts = {name: np.bincount(part[part >= 0], minlength=len(targets.names)) for name, part in parts.items()}
    lines = [*contradicting_labels(rows, strata, targets.names), *class_oddities(targets.names, counts, config)]
    return lines + small_test(len(parts["test"]), cut=config.test is None)


def as_read(rows: Rows, config: DataConfig) -> Rows:
    """Return the rows as they are."""
    return rows


def inputs(rows: Rows, tokenizer: Any, limit: int | None) -> tuple[pa.Table, dict[str, Any], int]:
    """Return what a model is given of each row as a table with its features, and how many texts were cut off."""
    if rows.other is None:
        return tokenize(rows, tokenizer, limit)
    dataset = rows.other.flatten_indices() if rows.other._indices is not None else rows.other
    return dataset.with_format("arrow")[:], dict(dataset.features), 0


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The answers of a task that concern a table; `skytune.tasks.Task` has them among its own."""

    columns: Callable[[DataConfig], Columns]
    """Which columns are read."""

    targets: Callable[[Rows, DataConfig, list[str] | None], Targets]
    """What is learned, from the train split; the names of a trained model that is to be scored are given."""

    lacking: Callable[[Rows, DataConfig], np.ndarray]
    """Which rows (bool) have no label; `data.bad_rows=drop` leaves them out of train."""

    arrange: Callable[[Rows, DataConfig], Rows] = as_read
    """Makes of the columns that were read what the task goes on with: texts for messages and for the search for leaks
    in `Rows.text`, rows that cannot be used, with what is wrong, in `Rows.odd`."""

    opens: Callable[[DataConfig, ModelConfig], tuple[Any, int | None]] = tokenizer_of
    """What makes of rows what the model reads, and is stored beside it (`save_pretrained`): its tokenizer, its image
    processor; and the most tokens that a row may have."""

    inputs: Callable[[Rows, Any, int | None], tuple[pa.Table, dict[str, Any], int]] = inputs
    """What a model is given of each row; called with what `opens` returns. See the function of this name."""

    odd: Callable[[Targets, DataConfig, Rows, np.ndarray, Mapping[str, np.ndarray]], list[str]] = nothing_odd
    """What a person should hear of before training: called with the rows of train as they were read (none where no text
    stands in several strata), their `strata`, and those of every split in the end."""


def lacks_class(rows: Rows, config: DataConfig) -> np.ndarray:
    """Return which rows have no class."""
    return read_labels(rows, config).lacking()


@dataclass(frozen=True)
class ClassTargets:
    """One class a row."""

    classes: Classes

    @classmethod
    def find(cls, rows: Rows, config: DataConfig, known: list[str] | None) -> "ClassTargets":
        """Decide the classes from the train split; see `labels.find_classes`."""
        return cls(find_classes(rows, config, known))

    @property
    def names(self) -> list[str]:
        """See `Targets`."""
        return self.classes.names

    def encode(self, rows: Rows) -> Encoded:
        """See `Targets`."""
        numbers = encode(rows, self.classes)
        return Encoded(pa.array(numbers, pa.int64()), numbers, numbers == MISSING)

    def about(self, encoded: Encoded) -> str:
        """See `Targets`."""
        counts = np.bincount(encoded.strata, minlength=len(self.names))
        told = shorten(f"{name} ({count:,})" for name, count in zip(self.names, counts, strict=True))
        return f"{len(self.names)} classes: {told}"

    def lay_out(self, rows: Rows, encoded: Encoded, tokenizer: Any, limit: int | None) -> tuple[Any, int]:
        """See `Targets`; a data set that brings numbers is taken as it is."""
        import datasets

        table, features, truncated = inputs(rows, tokenizer, limit)
        return with_labels(table, features, encoded.values, datasets.ClassLabel(names=self.names)), truncated


CLASSES = Reading(columns=text_columns, targets=ClassTargets.find, lacking=lacks_class, odd=odd_classes)
