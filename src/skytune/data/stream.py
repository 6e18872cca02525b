"""Files without labels, read in shards: texts to predict on, and all columns as they stand there, in bounded memory.

csv, tsv, JSON lines and Parquet are read as they come; Excel, Arrow, zip and a single JSON array have to be read whole.
"""

import io
import itertools
import lzma
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..common.text import first_line
from ..config import DataConfig, UserError
from .columns import Columns
from .files import UNPACKERS, find_files, kind_of, unpack
from .formats import HEAD, NAMES, TableFile, Values
from .images import IMAGE, image_rows, is_image, root_of
from .lines import encoding_hint
from .rows import Rows

KEY = "predict.input"

MOST_BYTES = 64 * 2**20
"""Letters of one shard: long texts make shards of fewer rows."""

BLOCK = 16 * 2**20
"""Bytes of a csv file that are parsed at once: no single row may be longer."""


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
        start, shard, opened = 0, None, list[TableFile]()
        for values in _regrouped(_blocks(system, path, config, columns, opened), rows):
            if shard is not None:
                yield shard
            present = values.column_names if isinstance(values, pa.Table) else _keys(values)
            if not header:
                header, first = present, path
            elif isinstance(values, pa.Table) and present != header:
                here, there = ", ".join(present), ", ".join(header)
                raise UserError(f"{path}: its columns ({here}) are not those of {first} ({there}): predict it apart")
            found = opened[0].rows(values)
            found.parts, found.number = [(path, start + len(values))], np.arange(start, start + len(values))
            found.lines = {path: opened[0].line_of} if opened[0].dialect else {}
            shard = Shard(next(numbers), found, header, values)
            start += len(values)
        if shard is None:
            raise UserError(f"{path}: the file has no rows")
        shard.left_out = len(opened[0].bad)
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


def _blocks(system: Any, path: str, config: DataConfig, columns: Columns, files: list[TableFile]) -> Iterator[Values]:
    """Yield the rows of one file in blocks as they come; `files` takes what it is."""
    head, kind = b"", ""
    try:
        with _opened(system, path) as (file, name):
            head = file.read(HEAD)
        kind = config.format.value if config.format else kind_of(head, name, KEY)
        files.append(TableFile(path, kind, config, columns, partial(_opened, system, path), head, True, BLOCK))
        yield from files[-1].blocks()
    except UserError:
        raise
    except (pa.ArrowException, OSError, EOFError, lzma.LZMAError, UnicodeError) as error:
        text = "UTF8" in str(error) and not config.encoding and kind not in NAMES
        hint = f"; {encoding_hint(head)}" if text else ""
        raise UserError(f"{KEY}: cannot read {path}: {first_line(error)}{hint}") from error


@contextmanager
def _opened(system: Any, path: str) -> Iterator[tuple[Any, str]]:
    """Open a file, what it holds where it is compressed; with the name that tells its kind."""
    with system.open(path, "rb") as raw:
        start = raw.read(6)
        raw.seek(0)
        kind, opener = next((made for begins, made in UNPACKERS.items() if start.startswith(begins)), ("", None))
        if opener is not None and kind != "zstd":
            with opener(raw) as file:
                yield file, path
        elif opener is not None or start.startswith(b"PK\x03\x04"):
            data, name = unpack(raw.read(), path, lambda: f"{KEY}=zip://%s::{system.unstrip_protocol(path)}")
            yield io.BytesIO(data), name
        else:
            yield raw, path
