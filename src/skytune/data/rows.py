"""Rows of one split as they were read: texts and raw labels in Arrow columns, and where every row came from."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..config import BadRows, UserError


@dataclass(kw_only=True)
class Rows:
    """One split before its texts are tokenized. All columns have the same length."""

    name: str
    """What messages call it: the split's name, or the file."""

    text: pa.ChunkedArray | None = None
    """Texts (large_string); None where the data set brings numbers."""

    pair: pa.ChunkedArray | None = None
    """Second texts (large_string)."""

    label: pa.ChunkedArray | None = None
    """Labels as they were read; None where there is no such column."""

    names: list[str] | None = None
    """Class names that the data set itself declares, also of classes without rows; `label` holds names then."""

    odd: dict[int, str] = field(default_factory=dict)
    """Rows (positions) that have no text, with what stands there instead."""

    parts: list[tuple[str, int]] = field(default_factory=list)
    """The files that the rows came from, and how many came from each, in order."""

    lines: dict[str, Callable[[int], int]] = field(default_factory=dict)
    """By file, what gives the line at which one of its rows (from 0) begins; of files that have lines."""

    more: dict[str, pa.ChunkedArray] = field(default_factory=dict)
    """Further columns that a task reads, by their role."""

    other: Any = None
    """`datasets.Dataset` of all columns but the label, where the data set brings numbers."""

    columns: list[str] = field(default_factory=list)
    """Names of all columns that stood there, for messages."""

    number: np.ndarray | None = None
    """Where each row stood when it was read, from 0; None while nothing was taken away."""

    def __len__(self) -> int:
        for column in (self.text, self.other, self.label, *self.more.values()):
            if column is not None:
                return len(column)
        return 0

    def where(self, position: int) -> str:
        """Return how a person finds a row: `train.tsv, line 6`, as an editor shows it; of files without lines
        `train.parquet, row 5`, from 1."""
        row = int(position if self.number is None else self.number[position])
        for name, count in self.parts:
            if row < count:
                return f"{name}, line {self.lines[name](row)}" if name in self.lines else f"{name}, row {row + 1}"
            row -= count
        return f"{self.name}, row {row + 1}"

    def take(self, positions: np.ndarray) -> "Rows":
        """Return the rows at these positions, in this order."""
        index = pa.array(positions, type=pa.int64())
        number = np.arange(len(self)) if self.number is None else self.number
        return dataclasses.replace(
            self,
            text=None if self.text is None else self.text.take(index),
            pair=None if self.pair is None else self.pair.take(index),
            label=None if self.label is None else self.label.take(index),
            more={role: column.take(index) for role, column in self.more.items()},
            other=None if self.other is None else self.other.select(positions),
            number=number[positions],
            odd={},
        )


def named_labels(column: pa.ChunkedArray, names: list[str]) -> pa.ChunkedArray:
    """Return numbers as the names that a data set declares for them; -1 as null, what is no class as it stands."""
    encoded = column.dictionary_encode().combine_chunks()
    encoded = encoded if isinstance(encoded, pa.DictionaryArray) else encoded.chunk(0)
    texts = [
        names[number] if isinstance(number, int) and 0 <= number < len(names) else None if number == -1 else str(number)
        for number in encoded.dictionary.to_pylist()
    ]
    return pa.chunked_array([pa.DictionaryArray.from_arrays(encoded.indices, pa.array(texts, pa.large_string()))])


def without_labels(rows: Rows, missing: list[str]) -> Rows:
    """Return the rows, those without a label that have one of these texts (in any case) in its place."""
    column: Any = rows.label
    if not missing or column is None:
        return rows
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    words = pa.array([word.strip().casefold() for word in missing], pa.large_string())
    texts = pc.utf8_lower(pc.utf8_trim_whitespace(column.cast(pa.large_string())))
    found = pc.fill_null(pc.is_in(texts, value_set=words), False)
    return dataclasses.replace(rows, label=pc.if_else(found, pa.scalar(None, column.type), column))


def concatenate(parts: list[Rows], name: str) -> Rows:
    """Return the rows of several files as one split."""
    if len(parts) == 1:
        return dataclasses.replace(parts[0], name=name)
    kinds = {part.label.type for part in parts if part.label is not None}
    declared = list(dict.fromkeys(text for part in parts for text in part.names or ()))
    entries = [entry for part in parts for entry in part.parts]
    whole = Rows(name=name, parts=entries, columns=parts[0].columns, names=declared or None)
    start = 0
    for part in parts:
        whole.lines |= part.lines
        whole.odd |= {start + row: value for row, value in part.odd.items()}
        start += len(part)
    for key in ("text", "pair", "label", *dict.fromkeys(role for part in parts for role in part.more)):
        own = key in ("text", "pair", "label")
        columns: list[Any] = [getattr(part, key) if own else part.more.get(key) for part in parts]
        if all(column is None for column in columns):
            continue
        if any(column is None for column in columns):  # some files have labels, some have none
            kind = pa.large_string() if own else next(column.type for column in columns if column is not None)
            columns = [
                pa.chunked_array([pa.nulls(len(p), kind)]) if c is None else c
                for p, c in zip(parts, columns, strict=True)
            ]
        if key == "label" and (len(kinds) > 1 or len({c.type for c in columns}) > 1):
            columns = [column.cast(pa.large_string()) for column in columns]
        joined = pa.chunked_array([chunk for column in columns for chunk in column.chunks], columns[0].type)
        if own:
            setattr(whole, key, joined)
        else:
            whole.more[key] = joined
    return whole


def drop_bad(rows: Rows, policy: BadRows) -> tuple[Rows, int]:
    """Return the rows that have a text, and how many had none.

    Raises:
        UserError: a row has none and the policy is `error`; the message names it and the way out.
    """
    bad = np.zeros(len(rows), dtype=bool)
    for column in (rows.text, rows.pair):
        if column is not None:
            empty = pc.equal(pc.utf8_trim_whitespace(column), "")
            bad |= pc.fill_null(empty, True).to_numpy()
    bad[list(rows.odd)] = True
    if not bad.any():
        return rows, 0
    if policy is BadRows.error:
        first = int(bad.argmax())
        what = rows.odd.get(first) or _what(rows, first)
        more = f" (and {int(bad.sum()) - 1} more)" if bad.sum() > 1 else ""
        raise UserError(f"{rows.where(first)}: {what}{more}; data.bad_rows=drop leaves such rows out")
    return rows.take(np.flatnonzero(~bad)), int(bad.sum())


def _what(rows: Rows, position: int) -> str:
    for column, name in ((rows.text, "text"), (rows.pair, "second text")):
        if column is not None:
            value = column[position].as_py()
            if value is None:
                return f"the {name} is missing"
            if not value.strip():
                return f"the {name} is empty" if value == "" else f"the {name} is only white space"
    return "there is no text"


def own_texts(rows: Rows) -> Any:
    """Return the texts of a split, as they stand in its files, as a `datasets.Dataset` of `text` and `where`."""
    import datasets

    assert rows.text is not None
    text = rows.text
    if rows.pair is not None:
        text = pc.binary_join_element_wise(text, rows.pair, pa.scalar(" ⏐ ", pa.large_string()))
    where = pa.array([rows.where(row).rpartition("/")[2] for row in range(len(rows))], pa.large_string())
    return datasets.Dataset(pa.table({"text": pa.chunked_array(text.chunks, pa.large_string()), "where": where}))
