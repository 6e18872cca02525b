"""Columns of labels that are not one class: numbers, lists, several columns; read, joined and checked."""

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..config import ConfigError, DataConfig, UserError
from .columns import Column, Columns, missing, text_columns
from .rows import Rows

PART = "label:"
"""What the roles of `data.label_columns` begin with."""


def label_columns(config: DataConfig) -> Columns:
    """Return the columns of one text (or two) and of labels of any kind."""
    texts = tuple(column for column in text_columns(config) if column.role != "label")
    if config.label_columns is None:
        return (*texts, Column("label", config.label, "data.label", kind="values", needed=False))
    parts = [
        Column(f"{PART}{name}", name, "data.label_columns", kind="values", needed=False)
        for name in config.label_columns
    ]
    return (*texts, *parts)


def with_labels_joined(rows: Rows, config: DataConfig) -> Rows:
    """Return rows whose `data.label_columns` are one struct in `Rows.label`, where the table has them.

    Raises:
        ConfigError: it has some of them.
    """
    if config.label_columns is None:
        return rows
    roles = [f"{PART}{name}" for name in config.label_columns]
    lacking = [role for role in roles if role not in rows.more]
    if lacking:
        if len(lacking) < len(roles):
            raise absent(rows, config, lacking[0].removeprefix(PART))
        return rows
    parts = [rows.more[role].combine_chunks() for role in roles]
    joined = pa.StructArray.from_arrays(parts, names=config.label_columns)
    more = {role: column for role, column in rows.more.items() if role not in roles}
    return dataclasses.replace(rows, label=pa.chunked_array([joined]), names=list(config.label_columns), more=more)


def absent(rows: Rows, config: DataConfig, name: str | None = None) -> ConfigError:
    """Return the error of a table without its label."""
    where = rows.parts[0][0] if rows.parts else rows.name
    key = "data.label" if config.label_columns is None else "data.label_columns"
    lost = name or (config.label_columns or [config.label])[0]
    return ConfigError(missing(key, lost, lost, rows.columns, where, [config.text, config.text_pair or ""]))


def lacks_label(rows: Rows, config: DataConfig) -> np.ndarray:
    """Return which rows have no label: null, or, of several columns, none."""
    if rows.label is None:
        return np.zeros(len(rows), dtype=bool)
    kind = rows.label.type
    if pa.types.is_struct(kind):
        parts = [_blank(pc.struct_field(rows.label, [place])) for place in range(kind.num_fields)]
        return np.asarray(np.stack(parts).all(axis=0))
    return _blank(rows.label)


def as_numbers(rows: Rows, width: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return (float64 [rows, outputs], which rows have none) of a column of numbers, lists or structs of numbers.

    Args:
        width: how many numbers a row must have; None takes that of the first row.

    Raises:
        UserError: something that is no finite number, or rows of another width, with the row.
    """
    column: Any = rows.label
    kind = column.type
    if pa.types.is_struct(kind):
        parts = [pc.struct_field(column, [place]) for place in range(kind.num_fields)]
        missing = np.asarray(np.stack([_blank(part) for part in parts]).all(axis=0))
        return np.stack([_numbers(rows, part, missing) for part in parts], axis=1), missing
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        missing = _blank(column)
        return _numbers(rows, column, missing)[:, None], missing
    values = column.to_pylist()
    missing = np.array([value is None for value in values], dtype=bool)
    width = width or next((len(value) for value in values if value is not None), 1)
    found = np.zeros((len(values), width))
    for row, value in enumerate(values):
        if value is None:
            continue
        if len(value) != width or not all(isinstance(v, int | float) and np.isfinite(v) for v in value):
            raise UserError(f"{rows.where(row)}: label {str(value)[:40]} is no list of {width} finite numbers")
        found[row] = value
    return found, missing


def as_lists(rows: Rows, column: Any) -> list[list[Any] | None]:
    """Return every row as a list: as it stands, or cut at blanks."""
    found = column.to_pylist()
    for row, value in enumerate(found):
        if value is not None and not isinstance(value, str | list):
            raise UserError(f"{rows.where(row)}: {str(value)[:40]} is neither a list nor a text with blanks")
    return [value.split() if isinstance(value, str) else value for value in found]


def _blank(column: Any) -> np.ndarray:
    """Return which values are null, not a number, or a text of nothing but white space."""
    kind = column.type
    empty = pc.is_null(column, nan_is_null=pa.types.is_floating(kind))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        empty = pc.or_(empty, pc.fill_null(pc.equal(pc.utf8_trim_whitespace(column), ""), True))
    return np.asarray(empty.to_numpy(zero_copy_only=False) if isinstance(empty, pa.Array) else empty.to_numpy())


def _numbers(rows: Rows, column: Any, missing: np.ndarray) -> np.ndarray:
    """Return a column as float64; 0 where nothing is known."""
    found = np.zeros(len(column))
    for row, value in enumerate(column.to_pylist()):
        if missing[row]:
            continue
        try:
            found[row] = float(value)
        except (TypeError, ValueError):
            found[row] = np.nan
        if not np.isfinite(found[row]):
            shown = "is missing in one of the columns" if value is None else f"{str(value)[:40]!r} is no finite number"
            raise UserError(f"{rows.where(row)}: label {shown} (task=text-classification takes labels as names)")
    return found
