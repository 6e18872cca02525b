"""Files without labels, read in shards: texts to predict on, and all columns as they stand there, in bounded memory.

csv, tsv, JSON lines and Parquet are read as they come; Excel, Arrow, zip and a single JSON array have to be read whole.
"""

import bz2
import gzip
import io
import itertools
import lzma
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from ..common.json import load_json
from ..common.text import first_line
from ..config import BadRows, DataConfig, UserError
from .columns import Columns, column_of, flat_names, wanted_columns
from .files import find_files, kind_of, unpack
from .formats import (
    HEAD,
    MARKS,
    Malformed,
    cell,
    csv_options,
    decode,
    encoding_hint,
    find_dialect,
    inside,
    malformed_row,
    names_of,
    read_sheet,
    rows_of_table,
    rows_of_values,
)
from .images import IMAGE, image_rows, is_image, root_of
from .lines import line_of_row
from .rows import Rows

KEY = "predict.input"

MOST_BYTES = 64 * 2**20
"""Letters of one shard: long texts make shards of fewer rows."""

BLOCK = 16 * 2**20
"""Bytes of a csv file that are parsed at once: no single row may be longer."""

LINES = 1000
"""Lines of JSON that are read at once."""

STREAMS: dict[bytes, Any] = {b"\x1f\x8b": gzip.GzipFile, b"BZh": bz2.BZ2File, b"\xfd7zXZ\0": lzma.LZMAFile}
"""Compressed files that can be read as they come, by how they begin."""

Values = Any
"""Rows: a `pa.Table`, or of JSON a list of objects."""


@dataclass
class Shard:
    """Rows of one file that follow each other."""

    number: int
    """From 0, over all files."""

    rows: Rows
    """Their texts, which know where they stand."""

    header: list[str]
    """Columns of the first shard."""

    values: Values
    """All that stands there: of csv, tsv and Excel as text."""

    left_out: int = 0
    """Malformed rows of its file that were left out, where it is the last one of a file."""

    def __len__(self) -> int:
        return len(self.values)


def read_shards(spec: str, config: DataConfig, columns: Columns, rows: int) -> Iterator[Shard]:
    """Yield the rows of files, cut where `rows` are together, their texts are `MOST_BYTES`, or a file ends.

    Args:
        spec: path, glob or URL.
        config: how files are written, and what happens to malformed rows.
        columns: what the task reads; without labels.
        rows: most rows of a shard.

    Raises:
        UserError: a file that cannot be read, is empty, or lacks columns.
    """
    header: list[str] = []
    numbers, first = itertools.count(), ""
    files = find_files(spec, KEY)
    if is_image(files[0][1]):
        yield from _images([path for _, path in files if is_image(path)], spec, columns, rows)
        return
    for system, path in files:
        start, shard, bad, lines = 0, None, list[Malformed](), dict[str, Callable[[int], int]]()
        for values in _regrouped(_blocks(system, path, config, columns, bad, lines), rows):
            if shard is not None:
                yield shard
            present = values.column_names if isinstance(values, pa.Table) else _keys(values)
            if not header:
                header, first = present, path
            elif isinstance(values, pa.Table) and present != header:
                here, there = ", ".join(present), ", ".join(header)
                raise UserError(f"{path}: its columns ({here}) are not those of {first} ({there}): predict it apart")
            found = _texts(path, values, columns)
            found.parts, found.number = [(path, start + len(values))], np.arange(start, start + len(values))
            found.lines = lines
            shard = Shard(next(numbers), found, header, values)
            start += len(values)
        if shard is None:
            raise UserError(f"{path}: the file has no rows")
        shard.left_out = len(bad)
        yield shard


def _images(files: list[str], spec: str, columns: Columns, rows: int) -> Iterator[Shard]:
    """Yield image files as the rows of a table with their paths."""
    whole = image_rows(files, spec, KEY, columns)
    name, root = next(column.name for column in columns if column.role == IMAGE), root_of(spec)
    for number, start in enumerate(range(0, len(files), rows)):
        some = whole.take(np.arange(start, min(start + rows, len(files))))
        paths = [os.path.relpath(file, root) for file in files[start : start + rows]]
        yield Shard(number, some, [name], pa.table({name: pa.array(paths, pa.large_string())}))


def _keys(records: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for record in records for name in record))


def _texts(path: str, values: Values, columns: Columns) -> Rows:
    """Return the texts of some rows."""
    if isinstance(values, pa.Table):
        present = flat_names(values.schema)
        found = pa.table({name: column_of(values, name) for name in wanted_columns(present, path, columns)})
        return rows_of_table(path, found, columns, present)
    present = list(dict.fromkeys(name for record in values for name in names_of(record)))
    wanted = wanted_columns(present, path, columns)
    return rows_of_values(path, {n: [inside(r, n) for r in values] for n in wanted}, columns, present)


def _regrouped(blocks: Iterator[Values], rows: int) -> Iterator[Values]:
    """Cut blocks anew, by the rows alone: wherever the reader's blocks end, shards are the same."""
    held: Any = None
    for block in blocks:
        if held is not None:
            block = pa.concat_tables([held, block]) if isinstance(block, pa.Table) else held + block
        held = block
        while (cut := _cut(held, rows)) < len(held):
            yield held[:cut]
            held = held[cut:]
    if held is not None and len(held):
        yield held


def _cut(values: Values, rows: int) -> int:
    """Return how many of these rows are a shard, where more follow."""
    head = values[:rows]
    if isinstance(head, list):
        sizes = np.array([sum(len(text) for text in row.values() if isinstance(text, str)) for row in head], np.float64)
    else:
        texts = [c for c in head.columns if pa.types.is_string(c.type) or pa.types.is_large_string(c.type)]
        sizes = sum((pc.fill_null(pc.binary_length(c), 0).to_numpy() for c in texts), np.zeros(len(head)))
    return max(1, int(np.searchsorted(np.cumsum(sizes), MOST_BYTES, side="right"))) if len(head) else 0


def _blocks(
    system: Any,
    path: str,
    config: DataConfig,
    columns: Columns,
    bad: list[Malformed],
    lines: dict[str, Callable[[int], int]],
) -> Iterator[Values]:
    """Yield the rows of one file in blocks as they come; `bad` takes what is left out, `lines` as `Rows.lines`."""

    def line_of(style: tuple[str | None, bool], left_out: Iterable[int], row: int) -> int:
        with _opened(system, path) as (file, _):
            text = io.TextIOWrapper(file, encoding=_encoding(head, path, config), newline="")
            return line_of_row(text, *style, row, left_out)

    try:
        with _opened(system, path) as (file, name):
            head = file.read(HEAD)
        kind = config.format.value if config.format else kind_of(head, name, KEY)
        with _opened(system, path) as (file, _):
            if kind == "parquet":
                for batch in pa.parquet.ParquetFile(file).iter_batches():
                    yield pa.table(batch)
            elif kind == "arrow":
                opened = pa.ipc.open_file if head.startswith(b"ARROW1") else pa.ipc.open_stream
                yield opened(pa.BufferReader(file.read())).read_all()
            elif kind == "xlsx":
                header, sheet = read_sheet(file.read(), path, config, columns)
                cells = [[cell(v, False) for v in line] + [None] * (len(header) - len(line)) for line in sheet]
                found = zip(*cells, strict=False) if cells else [()] * len(header)
                yield pa.table([pa.array(column, pa.large_string()) for column in found], names=header)
            elif kind in ("csv", "tsv"):
                yield from _csv(file, head, kind, path, config, columns, bad, lines, line_of)
            elif not (kind == "json" and _is_array(head, path, config)):
                lines[path] = partial(line_of, (None, False), ())
                yield from _json(file, path, _encoding(head, path, config))
            else:
                records = _parsed(decode(file.read(), path, config.encoding), path, list)
                if not all(isinstance(record, dict) for record in records):
                    raise UserError(f"{path}: holds something else than objects with the columns as keys")
                yield records
    except UserError:
        raise
    except (pa.ArrowException, OSError, EOFError, lzma.LZMAError, UnicodeError) as error:
        hint = f"; {encoding_hint(head)}" if "UTF8" in str(error) and not config.encoding else ""
        raise UserError(f"{KEY}: cannot read {path}: {first_line(error)}{hint}") from error


@contextmanager
def _opened(system: Any, path: str) -> Iterator[tuple[Any, str]]:
    """Open a file, what it holds where it is compressed; with the name that tells its kind."""
    with system.open(path, "rb") as raw:
        start = raw.read(6)
        raw.seek(0)
        stream = next((made for begins, made in STREAMS.items() if start.startswith(begins)), None)
        if stream is not None:
            with stream(filename=None, fileobj=raw) if stream is gzip.GzipFile else stream(raw) as file:
                yield file, path
        elif start.startswith((b"PK\x03\x04", b"\x28\xb5\x2f\xfd")):
            data, name = unpack(raw.read(), path, lambda: f"{KEY}=zip://%s::{system.unstrip_protocol(path)}")
            yield io.BytesIO(data), name
        else:
            yield raw, path


def _encoding(head: bytes, path: str, config: DataConfig) -> str:
    mark = next((name for start, name in MARKS.items() if head.startswith(start)), None)
    if not mark and not config.encoding:
        decode(head[: head.rfind(b"\n") + 1] or head, path, None)  # says what is wrong with the beginning
    return config.encoding or mark or "utf-8"


def _csv(
    file: Any,
    head: bytes,
    kind: str,
    path: str,
    config: DataConfig,
    columns: Columns,
    bad: list[Malformed],
    lines: dict[str, Callable[[int], int]],
    line_of: Callable[[tuple[str | None, bool], Iterable[int], int], int],
) -> Iterator[pa.Table]:
    encoding = _encoding(head, path, config)
    dialect = find_dialect(head.decode(encoding, errors="ignore").removeprefix("\ufeff"), kind, config, columns)
    style, above = (dialect.delimiter, dialect.quoted), dialect.above
    lines[path] = lambda row: line_of(style, [number - 1 for number, _, _ in bad], row + above + dialect.named)
    options = csv_options(dialect, config, dialect.header, bad, block_size=BLOCK, skip_rows=above, encoding=encoding)
    for batch in pa.csv.open_csv(file, **options):
        if bad and config.bad_rows is BadRows.error:
            raise malformed_row(path, line_of(style, [], bad[0][0] - 1), bad[0], dialect)
        yield pa.table(batch)


def _is_array(head: bytes, path: str, config: DataConfig) -> bool:
    return head.decode(_encoding(head, path, config), errors="ignore").lstrip("\ufeff \r\n\t").startswith("[")


def _json(file: Any, path: str, encoding: str) -> Iterator[list[dict[str, Any]]]:
    lines = enumerate(io.TextIOWrapper(file, encoding=encoding, newline="\n"), 1)
    while some := list(itertools.islice(lines, LINES)):
        yield [_parsed(line, f"{path}, line {number}", dict) for number, line in some if line.strip()]


def _parsed(text: str, where: str, kind: type) -> Any:
    try:
        return load_json(text.removeprefix("\ufeff"), kind, largest=max(len(text), 1))
    except ValueError as error:
        raise UserError(f"{where}: is not valid JSON: {error}") from error
