"""Which columns a run reads: by name, inside another column (`doc.text`), several in one text (`{title}\\n{body}`)."""

import dataclasses
import difflib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..common.json import load_json
from ..common.text import first_line
from ..config import ConfigError, DataConfig, UserError
from ..config.cli_grammar import quoted
from .rows import Rows, named_labels


@dataclass(frozen=True)
class Column:
    """A column of the table that a task reads."""

    role: str
    """`text`, `pair`, `label` (fields of `Rows`), or a name of the task's own: a key of `Rows.more`."""

    name: str
    """Its name in the table; of a text also `outer.inner` or a template."""

    key: str
    """Configuration key that gives the name, for messages."""

    kind: str = "text"
    """`text`; `label` (one name or number); `values` (anything that Arrow holds, lists and structs too)."""

    needed: bool = True
    """Whether a table without it is refused. Without their label, splits are read, and found unlabelled."""


Columns = tuple[Column, ...]


def text_columns(config: DataConfig) -> Columns:
    """Return the columns of one text (or two) and one label."""
    pair = [Column("pair", config.text_pair, "data.text_pair")] if config.text_pair else []
    label = Column("label", config.label, "data.label", kind="label", needed=False)
    return (Column("text", config.text, "data.text"), *pair, label)


def names_of(column: Column) -> list[str]:
    """Return the columns of the table that one of a task's needs."""
    return fields(column.name) if column.kind == "text" else [column.name]


def needed_names(columns: Columns) -> list[str]:
    """Return the columns without which a table is refused."""
    return [name for column in columns if column.needed for name in names_of(column)]


def has_columns(header: Sequence[str], columns: Columns) -> bool:
    """Whether a header has the columns without which a table is refused; where that is none, one that is read."""
    names = needed_names(columns)
    if names:
        return set(names) <= set(header)
    return not {name for column in columns for name in names_of(column)}.isdisjoint(header)


USUAL = {
    "data.text": ("sentence", "review", "content", "body", "comment", "tweet", "message", "document", "question"),
    "data.label": ("labels", "class", "category", "sentiment", "target", "rating", "stars", "score", "tags", "y"),
}
"""Columns that are often called otherwise than here."""

ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}
SHOWN = 30
"""Columns that a message names."""


def is_template(spec: str) -> bool:
    """Return whether `data.text` is no column but a text with columns in it."""
    return "{" in spec


def parts_of(spec: str) -> list[tuple[str, str | None]]:
    """Return what a template consists of: (a text, the column that follows it or None)."""
    found = []
    for text, field, _, _ in Formatter().parse(spec):
        found.append((re.sub(r"\\([nt\\])", lambda mark: ESCAPES[mark[1]], text), field))
    return found


def fields(spec: str) -> list[str]:
    """Return the columns that `data.text` or `data.text_pair` needs."""
    return [field for _, field in parts_of(spec) if field is not None] if is_template(spec) else [spec]


def wanted_columns(present: Sequence[str], where: str, columns: Columns) -> list[str]:
    """Return the columns to read; the label may be absent (an unlabelled test split), texts may not.

    Args:
        present: names of all columns, those inside columns too (`flat_names`).
        where: the file or split, for messages.
        columns: what the task reads.

    Raises:
        ConfigError: a column is not there, or there several times.
    """
    wanted: list[str] = []
    others = [column.name for column in columns if not column.needed]
    for column in columns:
        for name in names_of(column) if column.needed else ():
            if name not in present:
                raise ConfigError(missing(column.key, column.name, name, present, where, [*others, *wanted]))
            wanted.append(name)
    for name in (*wanted, *others):
        if list(present).count(name) > 1:
            times = list(present).count(name)
            raise ConfigError(f"{where}: the column '{name}' stands there {times} times: give each a name of its own")
    return list(dict.fromkeys([*wanted, *(name for name in others if name in present)]))


def rows_of(column: Callable[[str], pa.ChunkedArray], columns: Columns, present: Sequence[str], where: str) -> Rows:
    """Return the rows of a table whose columns a function gives by name; see `Column.role`."""
    rows = Rows(name=where, columns=list(present))
    for wanted in columns:
        if wanted.kind == "text":
            values = text_of(wanted.name, column, where, wanted.key)
        elif wanted.name in present:
            values = column(wanted.name)
        else:
            continue
        if wanted.role in ("text", "pair", "label"):
            setattr(rows, wanted.role, values)
        else:
            rows.more[wanted.role] = values
    return rows


def missing(key: str, spec: str, name: str, present: Sequence[str], where: str, taken: Iterable[str] = ()) -> str:
    """Return the message for a column that is not there: what is, and what was probably meant.

    Args:
        key: configuration key that names it.
        spec: the key's value.
        name: the column: `spec`, or one of a template's.
        present: columns that are there.
        taken: those of them that are read for something else.
    """
    shown = ", ".join(map(repr, present[:SHOWN])) + (f" and {len(present) - SHOWN} more" if present[SHOWN:] else "")
    what = "" if name == spec else f" '{name}'"
    free = [column for column in present if column not in set(taken)]
    likely = _likely(name, free, USUAL.get(key, ()) if name == spec else ())
    hint = f"; {_word(key, spec.replace(name, likely))} may be meant" if likely else ""
    if len(present) == 1 and (between := re.search(rf"{re.escape(name)}(\W)\w|\w(\W){re.escape(name)}", present[0])):
        hint = f"; {shlex.quote(f'data.delimiter={quoted(between[1] or between[2])}')} cuts it into columns"
    elif (not likely or [likely] == present) and any(len(column.split()) > 3 for column in present):  # a row, no names
        names = [f"column{number}" for number in range(1, len(present) + 1)]
        if len(names) == 2:
            names = [next(iter(taken), "label")] * 2
        names[max(range(len(present)), key=lambda number: len(present[number]))] = name
        names = [each if re.fullmatch(r"\w+", each) else quoted(each) for each in names]
        hint = f"; {shlex.quote('data.columns=[' + ','.join(names) + ']')} names columns where no line does"
    return f"{key}={spec}: no such column{what} in {where}; it has: {shown}{hint}"


def _likely(name: str, present: list[str], usual: Sequence[str]) -> str | None:
    """Return the column that is meant: the same but for case and blanks, nearly the same, one inside another, what is
    usual, or the only one."""
    folded = {"".join(column.split()).casefold(): column for column in reversed(present)}
    close = difflib.get_close_matches("".join(name.split()).casefold(), folded, 1, 0.75)
    inner = [column for column in present if column.rpartition(".")[2] == name]
    known = [*(folded[each] for each in close), *inner, *(folded[each] for each in usual if each in folded)]
    return next(iter(known), present[0] if len(present) == 1 else None)


def _word(key: str, value: str) -> str:
    """Return a setting as it is typed in a shell."""
    if re.fullmatch(r"[\w.-]+", value):
        return f"{key}={value}"
    return shlex.quote(f"{key}={value if is_template(value) else quoted(value)}")


def flat_names(schema: pa.Schema) -> list[str]:
    """Return the names of all columns, and of those inside columns as `outer.inner`."""
    found: list[str] = []

    def walk(name: str, kind: pa.DataType) -> None:
        found.append(name)
        for field in kind if pa.types.is_struct(kind) else ():
            walk(f"{name}.{field.name}", field.type)

    for field in schema:
        walk(field.name, field.type)
    return found


def column_of(table: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a column of a table, or one inside a column (`doc.text`); `flat_names` has it."""
    if name in table.column_names:
        found = table.column(name)
        return found if isinstance(found, pa.ChunkedArray) else pa.chunked_array([found])
    outer = next(column for column in table.column_names if name.startswith(f"{column}."))
    column, rest = table.column(outer), name[len(outer) + 1 :]
    return column_of(pa.table({f.name: pc.struct_field(column, f.name) for f in column.type}), rest)


def text_of(spec: str, column: Callable[[str], pa.ChunkedArray], where: str, key: str = "data.text") -> pa.ChunkedArray:
    """Return the texts (large_string) that `data.text` means; null where there are none.

    In a template a value that is missing is an empty text, a number is written out, and a row in which all of its
    columns are empty has no text.

    Args:
        spec: a column, or a template.
        column: gives a column by its name.
        where: the file or split, for messages.
        key: the configuration key.

    Raises:
        ConfigError: a column holds something else than text.
    """
    if not is_template(spec):
        return text_column(column(spec), spec, where, key)
    pieces: list[pa.ChunkedArray | pa.Scalar] = []
    blank: pa.ChunkedArray | None = None
    for text, field in parts_of(spec):
        pieces.append(pa.scalar(text, pa.large_string()))
        if field is None:
            continue
        values = pc.fill_null(_written(column(field), field, where, key), "")
        empty = pc.equal(pc.utf8_trim_whitespace(values), "")
        blank = empty if blank is None else pc.and_(blank, empty)
        pieces.append(values)
    joined = pc.binary_join_element_wise(*pieces, pa.scalar("", pa.large_string()))
    return pa.chunked_array([pc.if_else(blank, None, joined).combine_chunks()]).cast(pa.large_string())


def text_column(column: pa.ChunkedArray, name: str, where: str, key: str = "data.text") -> pa.ChunkedArray:
    """Return an Arrow column as large_string (rows of any total size).

    Raises:
        ConfigError: the column holds something else than text.
    """
    column = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    types = pa.types
    if types.is_null(kind) or types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return column.cast(pa.large_string())
    way = f"; '{key}={{{name}}}' takes it as text" if _is_scalar(kind) else ""
    raise ConfigError(f"{where}: column '{name}' holds {kind}, not text; {key} names the column with the texts{way}")


def _written(column: pa.ChunkedArray, name: str, where: str, key: str) -> pa.ChunkedArray:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    return column.cast(pa.large_string()) if _is_scalar(kind) else text_column(column, name, where, key)


def _is_scalar(kind: pa.DataType) -> bool:
    return pa.types.is_primitive(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind)


def keys_of(record: dict[str, Any], prefix: str = "") -> list[str]:
    """Return the keys of a record, and of the objects in it as `outer.inner`."""
    found = []
    for key, value in record.items():
        found.append(f"{prefix}{key}")
        if isinstance(value, dict):
            found += keys_of(value, f"{prefix}{key}.")
    return found


def inside(record: Any, name: str) -> Any:
    """Return what stands at a key, or at `outer.inner`; None where there is no such thing."""
    if not isinstance(record, dict):
        return None
    if name in record:
        return record[name]
    parts = name.split(".")
    for cut in range(1, len(parts)):
        if (outer := ".".join(parts[:cut])) in record:
            return inside(record[outer], ".".join(parts[cut:]))
    return None


def rows_of_records(
    path: str, records: list[dict[str, Any]], columns: Columns, present: Sequence[str], lines: Sequence[int] = ()
) -> Rows:
    """Return the rows of a file that are read of objects, whose values may be of any type.

    Args:
        present: all columns of the file; empty for those of the objects.
        lines: where they begin, in a file that has lines.
    """
    present = present or list(dict.fromkeys(name for record in records for name in keys_of(record)))
    odd: dict[int, str] = {}
    mixed = {name for c in columns if c.kind == "text" and is_template(c.name) for name in fields(c.name)}
    kinds = {column.name: column.kind for column in columns if column.kind != "text"}
    found = {}
    for name in wanted_columns(present, path, columns):
        values = [inside(record, name) for record in records]
        typed = name in kinds
        found[name] = (
            _typed(values, path, name, kinds[name], lines) if typed else _texts(values, name, odd, name in mixed)
        )
    rows = rows_of_table(path, pa.table(found), columns, present)
    rows.odd = odd
    return rows


def _texts(values: list[Any], name: str, odd: dict[int, str], mixed: bool) -> pa.ChunkedArray:
    """Return texts; what is none goes into `odd`, but for numbers in a template (`mixed`)."""
    for row, value in enumerate(values):
        if not isinstance(value, str):
            if mixed and isinstance(value, (int, float)):
                values[row] = json.dumps(value)
            elif value is not None:
                odd.setdefault(row, f"'{name}' is {json.dumps(value)[:40]}, not a text")
                values[row] = None
        elif not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            odd.setdefault(row, f"'{name}' holds broken Unicode (half of a surrogate pair)")
            values[row] = None
    return pa.chunked_array([pa.array(values, pa.large_string())])


def _typed(values: list[Any], path: str, name: str, kind: str, lines: Sequence[int]) -> pa.ChunkedArray:
    for row, value in enumerate(values):
        if isinstance(value, (dict, list)) and kind == "label":
            where = f"line {lines[row]}" if len(lines) else f"row {row + 1}"
            raise UserError(f"{path}, {where}: '{name}' is {json.dumps(value)[:40]}, not one class")
    types = {type(value) for value in values if value is not None}
    if len(types) > 1 and not types & {dict, list} and (kind == "label" or not types <= {int, float}):
        values = [None if value is None else str(value) for value in values]
    try:
        return pa.chunked_array([pa.array(values)])
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise UserError(f"{path}: values in '{name}' cannot be read: {first_line(error)}") from error


def rows_of_table(path: str, table: pa.Table, columns: Columns, present: Sequence[str]) -> Rows:
    """Return the rows of a file of which a table has what is read; `present`: all columns of the file."""
    wanted = wanted_columns(present, path, columns)
    rows = rows_of(lambda name: column_of(table, name), columns, wanted, path)
    label = next((column for column in columns if column.role == "label"), None)
    names = _declared(table.schema, label.name) if label else None
    if names and rows.label is not None and label and label.kind == "label":
        rows.label = named_labels(rows.label, names)
    return dataclasses.replace(rows, parts=[(path, table.num_rows)], columns=list(present), names=names)


def _declared(schema: pa.Schema, label: str) -> list[str] | None:
    """Return the class names that Hugging Face's `datasets` wrote beside a file's schema; None where there are none."""
    try:
        feature = inside(load_json((schema.metadata or {})[b"huggingface"])["info"]["features"], label)
        names = feature["names"] if feature["_type"] == "ClassLabel" else None
    except (KeyError, TypeError, ValueError):
        return None
    return names if isinstance(names, list) and names and all(isinstance(name, str) for name in names) else None
