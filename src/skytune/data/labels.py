"""Labels: which classes there are, in which order, and every row's number; anything that is not one is named."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..config import ConfigError, UserError
from .rows import Rows

MISSING = -1
"""The number of a label that is not known, as in GLUE's test splits."""

NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")


@dataclass(frozen=True)
class Classes:
    """The classes of a data set."""

    names: list[str]
    """Class names in the order of their numbers."""

    by_name: bool
    """Whether the data says names (else: numbers from 0)."""

    def __str__(self) -> str:
        plain = self.by_name or self.names == [str(number) for number in range(len(self.names))]
        shown = self.names if plain else [f"{number}={name}" for number, name in enumerate(self.names)]
        return ", ".join(shown[:10]) + (", ..." if len(shown) > 10 else "")


@dataclass(frozen=True)
class Raw:
    """A label column, each different value once."""

    codes: np.ndarray
    """Position in `values` of every row."""

    values: list[int | str | float | None]
    """What stands there: whole numbers, names, None where nothing is known; a float is not whole and is an error."""

    def row_of(self, code: int) -> int:
        """Return the first row with this value."""
        return int(np.flatnonzero(self.codes == code)[0])


def find_classes(rows: Rows, given: list[str] | None) -> Classes:
    """Decide the classes from the train split.

    Names that are given (or declared by the data set) set the order; else names are sorted, and numbers must run
    from 0 without a gap.

    Args:
        rows: the whole train split, before anything is cut off.
        given: `data.labels`.

    Raises:
        UserError: a label is missing or not a whole number, numbers with a gap, fewer than two classes.
        ConfigError: `data.labels` does not fit the names that the data set declares.
    """
    if len(rows) == 0:
        raise UserError(f"{rows.name}: 0 rows are left, nothing to train on")
    raw = _raw(rows)
    _no_missing(rows, raw)
    if given is not None and rows.names is not None and len(given) != len(rows.names):
        raise ConfigError(f"data.labels={given}: the data set has {len(rows.names)} classes: {', '.join(rows.names)}")
    # As a set: " a" and "a", "1" and "1.0" are the same class, but different entries of the column.
    values = {value for value in raw.values if value is not None}
    names = given if given is not None else rows.names
    numbers = all(isinstance(value, int) for value in values)
    if names is not None:
        known = set(names)
        by_name = not numbers or (rows.names is None and all(str(value) in known for value in values))
        classes = Classes(list(names), by_name)
    elif numbers:
        _check_gap(rows, raw)
        classes = Classes([str(number) for number in range(len(values))], by_name=False)
    else:
        classes = Classes(sorted(str(value) for value in values), by_name=True)
    numbered = encode(rows, classes)
    present = np.unique(numbered)
    if len(present) < 2:
        raise UserError(
            f"{rows.name}: all {len(rows):,} rows have the label '{classes.names[present[0]]}': "
            "a classifier needs at least two classes"
        )
    return classes


def encode(rows: Rows, classes: Classes) -> np.ndarray:
    """Return every row's class number (int64); -1 where the label is not known.

    Raises:
        UserError: a label outside the classes; the message names it and its row.
    """
    if rows.label is None:
        return np.full(len(rows), MISSING, dtype=np.int64)
    raw = _raw(rows)
    position = {name: number for number, name in enumerate(classes.names)}
    table = np.full(len(raw.values) + 1, MISSING, dtype=np.int64)
    for code, value in enumerate(raw.values):
        if value is None:
            continue
        if classes.by_name and str(value) in position:
            table[code] = position[str(value)]
        elif not classes.by_name and isinstance(value, int) and 0 <= value < len(classes.names):
            table[code] = value
        else:
            raise UserError(
                f"{rows.where(raw.row_of(code))}: label {value!r} is not one of the {len(classes.names)} classes "
                f"({classes}); data.labels names the classes"
            )
    return table[raw.codes]


def labelled(rows: Rows, numbers: np.ndarray, whole: bool) -> bool:
    """Return whether a split has labels.

    Args:
        rows: the split.
        numbers: its class numbers.
        whole: a split without any label is allowed (a test split as in GLUE).

    Raises:
        UserError: some rows have a label and some have none, or none has one and `whole` is false.
    """
    lacking = numbers == MISSING
    if not lacking.any():
        return True
    if lacking.all() and whole:
        return False
    raise UserError(
        f"{rows.where(int(lacking.argmax()))}: has no label (empty or -1), and so have {int(lacking.sum()):,} of "
        f"{len(numbers):,} rows of {rows.name}; only a test or validation split may come without, and then wholly"
    )


def _raw(rows: Rows) -> Raw:
    column: Any = rows.label
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column)
    try:
        encoded = (
            column.dictionary_encode().combine_chunks()
            if not pa.types.is_dictionary(column.type)
            else (column.unify_dictionaries().combine_chunks())
        )
    except pa.ArrowNotImplementedError as error:
        raise UserError(f"{rows.name}: labels of type {column.type} are neither names nor numbers") from error
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0) if encoded.num_chunks else pa.array([], column.type).dictionary_encode()
    values = [_value(value) for value in encoded.dictionary.to_pylist()]
    codes = pc.fill_null(encoded.indices.cast(pa.int64()), len(values)).to_numpy(zero_copy_only=False)
    values.append(None)
    texts = [value for value in values if isinstance(value, str)]
    if texts and all(NUMBER.fullmatch(text) for text in texts):
        values = [
            _value(float(v)) if isinstance(v, str) and "." in v else _value(int(v)) if isinstance(v, str) else v
            for v in values
        ]
    raw = Raw(codes, values)
    for code, value in enumerate(values):
        if isinstance(value, float):
            raise UserError(f"{rows.where(raw.row_of(code))}: label {value} is not a whole number")
    return raw


def _value(value: Any) -> int | str | float | None:
    if value is None or isinstance(value, bool):
        return None if value is None else str(value)
    if isinstance(value, int):
        return None if value == MISSING else value
    if isinstance(value, float):
        return _value(int(value)) if value.is_integer() else value
    return str(value).strip() or None


def _no_missing(rows: Rows, raw: Raw) -> None:
    missing = np.array([value is None for value in raw.values])[raw.codes]
    labelled(rows, np.where(missing, MISSING, 0), whole=False)


def _check_gap(rows: Rows, raw: Raw) -> None:
    numbers = sorted({value for value in raw.values if isinstance(value, int)})
    for expected, number in enumerate(numbers):
        if number != expected:
            code = raw.values.index(number)
            raise UserError(
                f"{rows.where(raw.row_of(code))}: label {number}, but no row has label {expected}: numbers run from 0 "
                "without a gap; data.labels names all classes in order (then a class may be absent)"
            )
