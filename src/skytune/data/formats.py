"""Bytes of one file to rows: csv and tsv, JSON, Parquet. Whatever is wrong is named with its row or line."""

import csv
import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from ..common.json import load_json
from ..config import BadRows, ConfigError, DataConfig, UserError
from ..models.source import first_line
from .rows import Rows, named_labels, text_column

BLOCK = 64 * 1024 * 1024
"""Bytes that the csv reader parses at once: no single row may be longer."""


def parse(data: bytes, kind: str, path: str, config: DataConfig) -> tuple[Rows, int]:
    """Return the rows of one file, and how many malformed ones were left out (`data.bad_rows=drop`).

    Args:
        data: the file's content, not compressed.
        kind: `csv` (quoted), `tsv` (as in GLUE: a quotation mark is an ordinary character), `jsonl`, `json` (an array
            of objects, or lines), `parquet`.
        path: what messages call it.
        config: which columns hold text and label.

    Raises:
        UserError: a file that is broken or lacks the columns.
    """
    if kind == "parquet":
        return _parquet(data, path, config), 0
    text = _decode(data, path)
    if kind in ("json", "jsonl"):
        return _json(text, path, config, array=kind == "json"), 0
    return _csv(data, text, path, config, tabs=kind == "tsv")


def _decode(data: bytes, path: str) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UserError(f"{path}: is UTF-16; save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The start that the error names does not count a byte order mark.
        skipped = 3 if data.startswith(b"\xef\xbb\xbf") else 0
        line = data.count(b"\n", 0, error.start + skipped) + 1
        byte = error.object[error.start]
        raise UserError(f"{path}, line {line}: broken UTF-8 (byte {byte:#04x}); save the file as UTF-8") from error


def _csv(data: bytes, text: str, path: str, config: DataConfig, tabs: bool) -> tuple[Rows, int]:
    delimiter = "\t" if tabs else ","
    head = io.StringIO(text[:1_000_000], newline="")
    rows = csv.reader(head, csv.excel_tab if tabs else csv.excel, quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL)
    header = next((row for row in rows if row), [])
    wanted = _columns(header, path, config)
    bad: list[tuple[int | None, int]] = []

    def malformed(row: Any) -> str:
        bad.append((row.number, row.actual_columns))
        return "skip"

    try:
        table = pa.csv.read_csv(
            pa.BufferReader(data),
            # One thread: only then does the reader know the number of a malformed row.
            read_options=pa.csv.ReadOptions(use_threads=False, block_size=BLOCK),
            parse_options=pa.csv.ParseOptions(
                delimiter=delimiter,
                quote_char=False if tabs else '"',
                double_quote=not tabs,
                newlines_in_values=not tabs,
                invalid_row_handler=malformed,
            ),
            convert_options=pa.csv.ConvertOptions(
                column_types={name: pa.large_string() for name in wanted}, include_columns=wanted
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise UserError(f"{path}: {first_line(error)}") from error
    if bad and config.bad_rows is BadRows.error:
        number, columns = bad[0]
        row = f", row {number - 1}" if number else ""
        hint = "" if tabs else " (a comma or a quotation mark in a text needs quotes around the text)"
        has = f"has {columns} columns, the header {len(header)}"
        raise UserError(f"{path}{row}: {has}{hint}; data.bad_rows=drop leaves such rows out")
    return _rows(path, table.num_rows, config, {name: table[name] for name in wanted}, header), len(bad)


def _json(text: str, path: str, config: DataConfig, array: bool) -> Rows:
    """Read JSON lines, or one JSON array of objects."""
    records: list[dict[str, Any]] = []
    if array and text.lstrip().startswith("["):
        try:
            records = load_json(text, largest=len(text))
        except ValueError as error:
            raise UserError(f"{path}: is not valid JSON: {error}") from error
    else:
        for number, line in enumerate(text.split("\n"), 1):  # not splitlines: U+2028 may stand inside a text
            if line.strip():
                try:
                    records.append(load_json(line))
                except ValueError as error:
                    raise UserError(f"{path}, line {number}: is not valid JSON: {error}") from error
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            raise UserError(f"{path}, row {number}: is no JSON object with the columns as keys")
    present = list(dict.fromkeys(name for record in records for name in record))
    wanted = _columns(present, path, config)
    odd: dict[int, str] = {}
    columns: dict[str, Any] = {}
    for name in wanted:
        values = [record.get(name) for record in records]
        columns[name] = _labels(values, path, name) if name == config.label else _texts(values, name, odd)
    rows = _rows(path, len(records), config, columns, present)
    rows.odd = odd
    return rows


def _texts(values: list[Any], name: str, odd: dict[int, str]) -> pa.ChunkedArray:
    for row, value in enumerate(values):
        if not isinstance(value, str):
            if value is not None:
                odd.setdefault(row, f"'{name}' is {json.dumps(value)[:40]}, not a text")
                values[row] = None
        elif not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            odd.setdefault(row, f"'{name}' holds broken Unicode (half of a surrogate pair)")
            values[row] = None
    return pa.chunked_array([pa.array(values, pa.large_string())])


def _labels(values: list[Any], path: str, name: str) -> pa.ChunkedArray:
    for row, value in enumerate(values):
        if isinstance(value, (dict, list)):
            raise UserError(f"{path}, row {row + 1}: '{name}' is {json.dumps(value)[:40]}, not one class")
    if len({type(value) for value in values if value is not None}) > 1:
        values = [None if value is None else str(value) for value in values]
    try:
        return pa.chunked_array([pa.array(values)])
    except (pa.ArrowInvalid, OverflowError) as error:
        raise UserError(f"{path}: labels in '{name}' cannot be read: {first_line(error)}") from error


def _parquet(data: bytes, path: str, config: DataConfig) -> Rows:
    try:
        file = pa.parquet.ParquetFile(pa.BufferReader(data))
        wanted = _columns(file.schema_arrow.names, path, config)
        table = file.read(columns=wanted)
        table.validate(full=True)  # Parquet's writers may leave broken UTF-8
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: is no readable Parquet file: {first_line(error)}") from error
    rows = _rows(path, table.num_rows, config, {name: table[name] for name in wanted}, file.schema_arrow.names)
    rows.names = _declared(file.schema_arrow, config.label)
    if rows.names and rows.label is not None:
        rows.label = named_labels(rows.label, rows.names)
    return rows


def _declared(schema: pa.Schema, label: str) -> list[str] | None:
    """Return the class names that Hugging Face's `datasets` wrote beside a file's schema; None where there are none."""
    try:
        feature = load_json((schema.metadata or {})[b"huggingface"])["info"]["features"][label]
        names = feature["names"] if feature["_type"] == "ClassLabel" else None
    except (KeyError, TypeError, ValueError):
        return None
    return names if isinstance(names, list) and names and all(isinstance(name, str) for name in names) else None


def _columns(present: list[str], path: str, config: DataConfig) -> list[str]:
    """Return the columns to read; the label may be absent (an unlabelled test split), texts may not."""
    wanted = [config.text] + ([config.text_pair] if config.text_pair else [])
    for key, name in zip(("text", "text_pair"), wanted, strict=False):
        if name not in present:
            raise ConfigError(f"data.{key}={name}: no such column in {path}; it has: {', '.join(map(repr, present))}")
    for name in (*wanted, config.label):
        if present.count(name) > 1:
            raise UserError(f"{path}: the column '{name}' stands there {present.count(name)} times")
    return wanted + ([config.label] if config.label in present else [])


def _rows(path: str, count: int, config: DataConfig, columns: dict[str, Any], present: list[str]) -> Rows:
    pair = columns.get(config.text_pair) if config.text_pair else None
    return Rows(
        name=path,
        text=text_column(columns[config.text], config.text, path),
        pair=None if pair is None else text_column(pair, str(config.text_pair), path),
        label=columns.get(config.label),
        parts=[(path, count)],
        columns=present,
    )
