"""Bytes of one file to rows: csv, tsv, JSON, Parquet, Arrow, Excel. Whatever is wrong is named with its row or line."""

import csv
import dataclasses
import io
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from ..common.json import load_json
from ..common.text import first_line
from ..config import BadRows, DataConfig, UserError
from .columns import (
    Columns,
    column_of,
    fields,
    flat_names,
    has_columns,
    is_template,
    rows_of,
    text_columns,
    wanted_columns,
)
from .lines import all_record_lines
from .rows import Rows, named_labels

BLOCK = 64 * 1024 * 1024
"""Bytes that the csv reader parses at once: no single row may be longer."""

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""What is looked for between columns, where nothing is said."""

HEAD = 1_000_000
"""Letters of a file in which its header is looked for."""

TITLE = 20
"""Rows of a sheet in which its header is looked for."""

SAMPLE = 100
"""Rows whose texts are looked at for quotes around them."""

MARKS = {
    b"\xff\xfe\0\0": "utf-32",
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
    b"\xef\xbb\xbf": "utf-8-sig",
}
"""Byte order marks, the longer one first."""

log = logging.getLogger(__name__)


def parse(data: bytes, kind: str, path: str, config: DataConfig, columns: Columns | None = None) -> tuple[Rows, int]:
    """Return the rows of one file, and how many malformed ones were left out (`data.bad_rows=drop`).

    Args:
        data: the file's content, not compressed.
        kind: `csv` (quoted), `tsv` (as in GLUE: a quotation mark is an ordinary character), `jsonl`, `json` (an array
            of objects, or lines), `parquet`, `arrow` (a stream, or Feather), `xlsx` (its first sheet with the columns).
        path: what messages call it.
        config: how text files are written.
        columns: what is read; texts and a label if not given.

    Raises:
        UserError: a file that is broken or lacks the columns.
    """
    columns = columns or text_columns(config)
    if kind in ("parquet", "arrow"):
        return _arrow(data, kind, path, columns), 0
    if kind == "xlsx":
        return _xlsx(data, path, config, columns), 0
    text = decode(data, path, config.encoding)
    if kind in ("json", "jsonl"):
        return _json(text, path, columns, array=kind == "json"), 0
    return _csv(text, kind, path, config, columns)


def decode(data: bytes, path: str, encoding: str | None) -> str:
    """Return the text of a file, written in `encoding`, or as its byte order mark says, or in UTF-8.

    Raises:
        UserError: it is not; the message says where, and the way out.
    """
    mark = next((name for start, name in MARKS.items() if data.startswith(start)), None)
    if mark and mark != "utf-8-sig" and not encoding:
        log.info("data: %s is %s, as its byte order mark says", path, mark.upper())
    name = encoding or mark or "utf-8"
    try:
        text = data.decode(name)
    except UnicodeDecodeError as error:
        # The start that the error names does not count a byte order mark.
        skipped = 3 if mark == "utf-8-sig" and not encoding else 0
        line = data.count(b"\n", 0, error.start + skipped) + 1
        byte = f"(byte {error.object[error.start]:#04x})"
        if encoding:
            raise UserError(
                f"{path}, line {line}: is not {encoding} {byte}; data.encoding says how it is written"
            ) from error
        raise UserError(f"{path}, line {line}: broken UTF-8 {byte}; {encoding_hint(data)}") from error
    if not encoding and not mark and (wide := _without_mark(data)):
        raise UserError(f"{path}: is {wide.upper()} without a byte order mark; data.encoding={wide} reads it")
    return text.removeprefix("\ufeff")


def _without_mark(data: bytes) -> str | None:
    """Return how a file is written of which every second byte is 0."""
    head = data[:1000]
    odd, even = head[1::2].count(0), head[::2].count(0)
    return None if max(odd, even) <= len(head) // 4 else "utf-16-le" if odd > even else "utf-16-be"


def encoding_hint(data: bytes) -> str:
    """Return the way out for a file that is no UTF-8."""
    name = "cp1252"
    try:
        data.decode(name)
    except UnicodeDecodeError:
        name = "latin-1"  # which reads anything
    name = _without_mark(data) or name
    return f"save the file as UTF-8, or say how it is written, as in data.encoding={name}"


@dataclass(frozen=True)
class Dialect:
    """How a csv or tsv file is written."""

    delimiter: str
    quoted: bool
    """Whether a quotation mark stands around a text, or is a letter like any other."""

    header: list[str]
    """Names of its columns."""

    above: int = 0
    """Lines above it: `sep=;`, Excel's own way to say it."""

    named: bool = True
    """Whether the header stands in the file."""


def find_dialect(head: str, kind: str, config: DataConfig, columns: Columns | None = None) -> Dialect:
    """Return how a file is written that begins so: what the configuration says, else that in which its columns are.

    Args:
        head: its first lines.
        kind: `csv` or `tsv`.
        config: `delimiter` and `columns`.
        columns: those that are looked for; texts if not given.
    """
    own, found = "\t" if kind == "tsv" else ",", []
    mark = re.match(r'"?sep=(.)"?\r?\n', head)
    head, told = head[mark.end() :] if mark else head, config.delimiter or (mark[1] if mark else None)
    for delimiter in [told] if told else dict.fromkeys([own, *DELIMITERS]):
        quoted = kind == "csv" or delimiter != "\t"
        style: Any = {"quoting": csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE}
        lines = csv.reader(io.StringIO(head, newline=""), delimiter=delimiter, **style)
        try:
            first = next((row for row in lines if row), [])
        except csv.Error:  # a quotation mark that is never closed
            first = []
        dialect = Dialect(delimiter, quoted, config.columns or first, int(mark is not None), not config.columns)
        if len(first) == len(config.columns) if config.columns else has_columns(first, columns or text_columns(config)):
            return dialect
        found.append((len(first), dialect))
    return max(found, key=lambda entry: entry[0])[1]


def _csv(text: str, kind: str, path: str, config: DataConfig, columns: Columns) -> tuple[Rows, int]:
    dialect = find_dialect(text[:HEAD], kind, config, columns)
    header, quoted = dialect.header, dialect.quoted
    text = text.partition("\n")[2] if dialect.above else text
    if not config.delimiter and not dialect.above and dialect.delimiter != ("\t" if kind == "tsv" else ","):
        log.info("data: %s has %s between its columns", path, DELIMITERS[dialect.delimiter])
    if not quoted and header and all(_in_quotes(name) for name in header):
        raise UserError(f"{path}: its cells stand in quotes; data.format=csv data.delimiter=tab reads them without")
    wanted = wanted_columns(header, path, columns)
    bad: list[Malformed] = []
    try:
        table = pa.csv.read_csv(pa.BufferReader(text.encode()), **csv_options(dialect, config, wanted, bad))
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise UserError(f"{path}: {first_line(error)}") from error
    left_out = [number - 1 for number, _, _ in bad]
    records = table.num_rows + len(bad) + dialect.named
    every = all_record_lines(text, dialect.delimiter, quoted, records, path, dialect.above)
    if bad and config.bad_rows is BadRows.error:
        raise malformed_row(path, int(every[left_out[0]]), bad[0], dialect)
    lines = np.delete(every, left_out)[dialect.named :]
    if not quoted and all(map(_in_quotes, table[wanted[0]][:SAMPLE].to_pylist())) and table.num_rows:
        log.warning(
            "data: the texts of %s stand in quotes, which are taken for a part of them; data.format=csv "
            "data.delimiter=tab reads them without",
            path,
        )
    rows = rows_of_table(path, table, columns, header)
    rows.lines = {path: lines.__getitem__} if len(lines) == len(rows) else {}
    return rows, len(bad)


Malformed = tuple[int, int, str]
"""Number of a record (from 1, with the header), how many columns it has, and its text."""


def csv_options(
    dialect: Dialect, config: DataConfig, wanted: list[str], bad: list[Malformed], block_size: int = BLOCK, **read: Any
) -> dict[str, Any]:
    """Return what the csv reader is told, to read these columns as text.

    Args:
        bad: takes rows with another number of columns, which are left out.
        read: further options of reading.
    """

    def malformed(row: Any) -> str:
        bad.append((row.number, row.actual_columns, row.text or ""))
        return "skip"

    quoted = dialect.quoted
    return {
        # One thread: only then does the reader know the number of a malformed row.
        "read_options": pa.csv.ReadOptions(
            use_threads=False, block_size=block_size, column_names=config.columns, **read
        ),
        "parse_options": pa.csv.ParseOptions(
            delimiter=dialect.delimiter,
            quote_char='"' if quoted else False,
            double_quote=quoted,
            newlines_in_values=quoted,
            invalid_row_handler=malformed,
        ),
        "convert_options": pa.csv.ConvertOptions(
            column_types={name: pa.large_string() for name in wanted}, include_columns=wanted
        ),
    }


def malformed_row(path: str, line: int, bad: Malformed, dialect: Dialect) -> UserError:
    """Return the error of a row, at a line, that has another number of columns than the header."""
    _, columns, text = bad
    has = f"has {columns} columns, the header {len(dialect.header)}"
    return UserError(f"{path}, line {line}: {has}{_why(text, dialect)}; data.bad_rows=drop leaves such rows out")


def _in_quotes(text: str | None) -> bool:
    return text is not None and len(text) > 1 and text[0] == text[-1] == '"'


def _why(line: str, dialect: Dialect) -> str:
    """Return why a row has another number of columns than the header, where its line shows it."""
    if not dialect.quoted:
        return "; data.format=csv data.delimiter=tab reads cells in quotes" if '"' in line else ""
    if dialect.delimiter == "\t":
        return "; data.format=tsv takes quotation marks for letters" if '"' in line else ""
    name = {",": "comma", ";": "semicolon"}.get(dialect.delimiter, dialect.delimiter)
    return f" (a {name} or a quotation mark in a text needs quotes around the text)"


def _json(text: str, path: str, columns: Columns, array: bool) -> Rows:
    """Read JSON lines, or one JSON array of objects."""
    records: list[Any] = []
    lines: list[int] = []
    if array and (document := _document(text, path)) is not None:
        records = document
    else:
        for number, line in enumerate(text.split("\n"), 1):  # not splitlines: U+2028 may stand inside a text
            if line.strip():
                try:
                    records.append(load_json(line))
                    lines.append(number)
                except ValueError as error:
                    raise UserError(f"{path}, line {number}: is not valid JSON: {error}") from error
    for number, record in enumerate(records):
        if not isinstance(record, dict):
            where = f"line {lines[number]}" if lines else f"row {number + 1}"
            raise UserError(f"{path}, {where}: is no JSON object with the columns as keys")
    present = list(dict.fromkeys(name for record in records for name in names_of(record)))
    wanted = wanted_columns(present, path, columns)
    values = {name: [inside(record, name) for record in records] for name in wanted}
    return rows_of_values(path, values, columns, present, lines)


def _document(text: str, path: str) -> list[Any] | None:
    """Return the rows of a JSON document: an array, an object that holds one, or an object of columns, as pandas writes
    it; None of an object a line."""
    array = text.lstrip().startswith("[")
    try:
        found = load_json(text, largest=len(text))
    except ValueError as error:
        if array:
            raise UserError(f"{path}: is not valid JSON: {error}") from error
        return None
    if array or not isinstance(found, dict):
        return found if isinstance(found, list) else [found]
    rows = [key for key, value in found.items() if isinstance(value, list) and all(isinstance(v, dict) for v in value)]
    if len(rows) == 1 and found[rows[0]]:
        log.info("data: %s is an object; its rows are the list '%s'", path, rows[0])
        return list(found[rows[0]])
    columns = [
        list(value.values()) if isinstance(value, dict) and all(map(str.isdecimal, value)) else value
        for value in found.values()
    ]
    if len(columns) > 1 and all(isinstance(c, list) for c in columns) and len({len(c) for c in columns}) == 1:
        log.info("data: %s is an object of columns", path)
        return [dict(zip(found, row, strict=True)) for row in zip(*columns, strict=True)]
    return None


def names_of(record: dict[str, Any], prefix: str = "") -> list[str]:
    """Return the keys of a record, and of the objects in it as `outer.inner`."""
    found = []
    for key, value in record.items():
        found.append(f"{prefix}{key}")
        if isinstance(value, dict):
            found += names_of(value, f"{prefix}{key}.")
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


def rows_of_values(
    path: str, values: dict[str, list[Any]], columns: Columns, present: list[str], lines: Sequence[int] = ()
) -> Rows:
    """Return rows of columns whose values may be of any type; `lines`: where they begin, in a file that has lines."""
    odd: dict[int, str] = {}
    mixed = {name for c in columns if c.kind == "text" and is_template(c.name) for name in fields(c.name)}
    kinds = {column.name: column.kind for column in columns if column.kind != "text"}
    found = {
        name: _values(each, path, name, kinds[name], lines)
        if name in kinds
        else texts_of(each, name, odd, name in mixed)
        for name, each in values.items()
    }
    rows = rows_of_table(path, pa.table(found), columns, present)
    rows.odd, rows.lines = odd, {path: lines.__getitem__} if lines else {}
    return rows


def texts_of(values: list[Any], name: str, odd: dict[int, str], mixed: bool) -> pa.ChunkedArray:
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


def _values(values: list[Any], path: str, name: str, kind: str, lines: Sequence[int]) -> pa.ChunkedArray:
    for row, value in enumerate(values):
        if isinstance(value, (dict, list)) and kind == "label":
            where = f"line {lines[row]}" if lines else f"row {row + 1}"
            raise UserError(f"{path}, {where}: '{name}' is {json.dumps(value)[:40]}, not one class")
    types = {type(value) for value in values if value is not None}
    if len(types) > 1 and not types & {dict, list} and (kind == "label" or not types <= {int, float}):
        values = [None if value is None else str(value) for value in values]
    try:
        return pa.chunked_array([pa.array(values)])
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise UserError(f"{path}: values in '{name}' cannot be read: {first_line(error)}") from error


def _xlsx(data: bytes, path: str, config: DataConfig, columns: Columns) -> Rows:
    header, lines = read_sheet(data, path, config, columns)
    wanted = wanted_columns(header, path, columns)
    answers = {column.name for column in columns if column.kind != "text"}
    places = {name: header.index(name) for name in wanted}
    values = {
        name: [cell(line[place], name in answers) if place < len(line) else None for line in lines]
        for name, place in places.items()
    }
    return rows_of_values(path, values, columns, header)


def read_sheet(data: bytes, path: str, config: DataConfig, columns: Columns) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return header and rows of the first sheet of an Excel workbook that has the columns; rows without anything at its
    end do not count."""
    import openpyxl

    sheets: dict[str, tuple[list[str], list[tuple[Any, ...]]]] = {}
    try:
        book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
        for sheet in book.worksheets:
            lines = list(sheet.iter_rows(values_only=True))
            while lines and not any(cell is not None for cell in lines[-1]):
                lines.pop()
            rows = [["" if cell is None else str(cell) for cell in line] for line in lines[:TITLE]]
            above = next((n for n, row in enumerate(rows) if has_columns(row, columns)), 0)  # a title, empty lines
            if config.columns:
                sheets[sheet.title] = config.columns, lines
            elif rows:
                sheets[sheet.title] = rows[above], lines[above + 1 :]
                if has_columns(rows[above], columns):
                    break
    except Exception as error:  # the package lets through whatever zipfile and XML parsers raise
        raise UserError(f"{path}: is no readable Excel file: {first_line(error)}") from error
    if not sheets:
        raise UserError(f"{path}: the workbook has no sheet with cells")
    chosen = next((n for n, (header, _) in sheets.items() if has_columns(header, columns)), next(iter(sheets)))
    if len(book.sheetnames) > 1:
        log.info("data: of the sheets of %s (%s), '%s' is read", path, ", ".join(book.sheetnames), chosen)
    return sheets[chosen]


def cell(value: Any, label: bool) -> Any:
    """Return a cell as Excel shows it: people type texts that Excel takes for numbers and dates."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if value is None or (label and isinstance(value, (int, float))) else str(value)


def _arrow(data: bytes, kind: str, path: str, columns: Columns) -> Rows:
    try:
        if kind == "parquet":
            file = pa.parquet.ParquetFile(pa.BufferReader(data))
            schema = file.schema_arrow
        else:
            opened = pa.ipc.open_file if data.startswith(b"ARROW1") else pa.ipc.open_stream
            whole = opened(pa.BufferReader(data)).read_all()
            schema = whole.schema
        wanted = wanted_columns(flat_names(schema), path, columns)
        tops = [name for name in schema.names if any(w == name or w.startswith(f"{name}.") for w in wanted)]
        found = file.read(columns=wanted) if kind == "parquet" else whole.select(tops)
        found.validate(full=True)  # Parquet's writers may leave broken UTF-8
    except (pa.ArrowInvalid, OSError) as error:
        name = {"parquet": "Parquet", "arrow": "Arrow"}[kind]
        raise UserError(f"{path}: is no readable {name} file: {first_line(error)}") from error
    table = pa.table({name: column_of(found, name) for name in wanted})
    rows = rows_of_table(path, table, columns, flat_names(schema))
    label = next((column for column in columns if column.role == "label"), None)
    rows.names = _declared(schema, label.name) if label else None
    if rows.names and rows.label is not None and label and label.kind == "label":
        rows.label = named_labels(rows.label, rows.names)
    return rows


def _declared(schema: pa.Schema, label: str) -> list[str] | None:
    """Return the class names that Hugging Face's `datasets` wrote beside a file's schema; None where there are none."""
    try:
        feature = inside(load_json((schema.metadata or {})[b"huggingface"])["info"]["features"], label)
        names = feature["names"] if feature["_type"] == "ClassLabel" else None
    except (KeyError, TypeError, ValueError):
        return None
    return names if isinstance(names, list) and names and all(isinstance(name, str) for name in names) else None


def rows_of_table(path: str, table: pa.Table, columns: Columns, present: list[str]) -> Rows:
    """Return the rows of a table that has the columns of a task, and of its file all `present`."""
    rows = rows_of(table.column, columns, table.column_names, path)
    return dataclasses.replace(rows, parts=[(path, table.num_rows)], columns=present)
