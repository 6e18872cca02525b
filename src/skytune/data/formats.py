"""One file of a table, of any usual kind, as it is read: in blocks as they come, or all at once. Whatever is wrong is
named with its row or line."""

import dataclasses
import io
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from ..common.json import load_json
from ..common.text import first_line
from ..config import BadRows, DataConfig, UserError
from .columns import Columns, flat_names, has_columns, rows_of_records, rows_of_table, text_columns, wanted_columns
from .lines import (
    DELIMITER,
    DELIMITERS,
    Dialect,
    decode,
    encoding_of,
    find_dialect,
    in_quotes,
    record_lines,
    why_malformed,
)
from .rows import Rows

BLOCK = 64 * 1024 * 1024
"""Bytes of a csv file that are parsed at once: no single row may be longer."""

HEAD = 1_000_000
"""Bytes of a file in which its header is looked for."""

LINES = 1000
"""Lines of JSON that are read at once."""

TITLE = 20
"""Rows of a sheet in which its header is looked for."""

SAMPLE = 100
"""Rows whose texts are looked at for quotes around them."""

NAMES = {"parquet": "Parquet", "arrow": "Arrow", "xlsx": "Excel"}
"""Kinds of file that hold no text."""

Values = Any
"""Rows as they stand in a file: a `pa.Table`, or of JSON a list of objects."""

Malformed = tuple[int, int, str]
"""Number of a record (from 1, with what stands above it), how many columns it has, and its text."""

log = logging.getLogger(__name__)


def parse(data: bytes, kind: str, path: str, config: DataConfig, columns: Columns | None = None) -> tuple[Rows, int]:
    """Return the rows of one file, and how many malformed ones were left out (`data.bad_rows=drop`).

    Args:
        data: the file's content, not compressed.
        kind: see `TableFile`.
        path: what messages call it.
        config: how text files are written.
        columns: what is read; texts and a label if not given.

    Raises:
        UserError: a file that is broken or lacks the columns.
    """
    if kind not in NAMES:
        data, config = decode(data, path, config.encoding).encode(), dataclasses.replace(config, encoding="utf-8")
    columns = columns or text_columns(config)
    file = TableFile(path, kind, config, columns, lambda: nullcontext((io.BytesIO(data), path)), data[:HEAD])
    try:
        blocks = list(file.blocks())
    except (pa.ArrowInvalid, pa.ArrowKeyError, OSError) as error:
        what = f"is no readable {NAMES[kind]} file: " if kind in NAMES else ""
        raise UserError(f"{path}: {what}{first_line(error)}") from error
    is_table = bool(blocks) and isinstance(blocks[0], pa.Table)
    values = pa.concat_tables(blocks) if is_table else list(itertools.chain.from_iterable(blocks))
    lines: Any = ()
    if dialect := file.dialect:
        breaks = data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n") + (not data.endswith(b"\n"))
        if dialect.delimiter and breaks == len(values) + len(file.bad) + dialect.start:  # every record is one line
            every = np.arange(1, breaks + 1)
        else:
            every = np.fromiter(file.record_lines(dialect), np.int64)
        lines = np.delete(every, [number - 1 for number, _, _ in file.bad])[dialect.start :]
        cells = [] if dialect.quoted or not is_table else values[0][:SAMPLE].to_pylist()
        if cells and all(map(in_quotes, cells)):
            log.warning(
                "data: the texts of %s stand in quotes, which are taken for a part of them; data.format=csv "
                "data.delimiter=tab reads them without",
                path,
            )
    return file.rows(values, lines), len(file.bad)


@dataclass
class TableFile:
    """A file while it is read, and what that has told."""

    path: str
    """What messages call it."""

    kind: str
    """`csv` (quoted), `tsv` (as in GLUE: a quotation mark is an ordinary character), `jsonl`, `json` (an array of
    objects, or lines), `parquet`, `arrow` (a stream, or Feather), `xlsx` (its first sheet with the columns)."""

    config: DataConfig
    columns: Columns
    opened: Callable[[], AbstractContextManager[tuple[Any, str]]]
    """Opens its content, not compressed, from the beginning; with the name that tells its kind."""

    head: bytes
    """How it begins."""

    every: bool = False
    """Whether all its columns are read, as they stand there, and of a workbook as text; else those alone that `columns`
    names."""

    block_size: int = BLOCK
    present: list[str] = field(default_factory=list)
    """Names of all its columns; none of JSON, where every row has its own."""

    dialect: Dialect | None = None
    """Where its rows have lines."""

    bad: list[Malformed] = field(default_factory=list)
    """Rows of csv and tsv with another number of columns, which are left out."""

    def blocks(self) -> Iterator[Values]:
        """Yield the rows; of csv and tsv first a table without any.

        Raises:
            UserError: it is broken or lacks the columns.
            pyarrow.ArrowException, OSError, UnicodeError: it is broken.
        """
        with self.opened() as (file, _):
            if self.kind in DELIMITER:
                yield from self._csv(file)
            elif self.kind in ("json", "jsonl"):
                yield from self._json(file)
            elif self.kind == "xlsx":
                yield self._xlsx(file.read())
            else:
                yield from self._arrow(file)

    def rows(self, values: Values, lines: Sequence[int] = ()) -> Rows:
        """Return the columns that are read of some rows.

        Args:
            lines: at which line each begins, where that is known.
        """
        if isinstance(values, pa.Table):
            found = rows_of_table(self.path, values, self.columns, self.present)
        else:
            found = rows_of_records(self.path, values, self.columns, self.present, lines)
        found.lines = {self.path: lines.__getitem__} if len(lines) == len(found) else {}
        return found

    @cached_property
    def encoding(self) -> str:
        """How its text is written."""
        return encoding_of(self.head, self.path, self.config.encoding)

    def line_of(self, row: int) -> int:
        """Return the line at which a row, from 0, begins; the file is gone through for it."""
        assert self.dialect is not None, "its rows have no lines"
        record = row + self.dialect.start
        for number, _, _ in sorted(self.bad):
            record += number - 1 <= record
        return next(itertools.islice(self.record_lines(self.dialect), record, None))

    def record_lines(self, dialect: Dialect) -> Iterator[int]:
        """See `lines.record_lines`."""
        with self.opened() as (file, _):
            text = io.TextIOWrapper(file, encoding=self.encoding, newline=dialect.newline)
            yield from record_lines(text, dialect, self.path)

    def _wanted(self, present: list[str]) -> list[str]:
        """Take down the names of all columns, and return those to read."""
        self.present = present
        return present if self.every else wanted_columns(present, self.path, self.columns)

    def _csv(self, file: Any) -> Iterator[pa.Table]:
        head = self.head.decode(self.encoding, errors="ignore").removeprefix("\ufeff")
        dialect = self.dialect = find_dialect(head, self.kind, self.config, self.columns)
        if not dialect.quoted and dialect.header and all(map(in_quotes, dialect.header)):
            way = "data.format=csv data.delimiter=tab reads them without"
            raise UserError(f"{self.path}: its cells stand in quotes; {way}")
        if not (self.every or self.config.delimiter or dialect.above or dialect.delimiter == DELIMITER[self.kind]):
            log.info("data: %s has %s between its columns", self.path, DELIMITERS[dialect.delimiter])
        wanted = self._wanted(dialect.header)

        def malformed(row: Any) -> str:
            self.bad.append((row.number, row.actual_columns, row.text or ""))
            return "skip"

        reader = pa.csv.open_csv(
            file,
            # One thread: only then does the reader know the number of a malformed row.
            pa.csv.ReadOptions(
                use_threads=False,
                block_size=self.block_size,
                column_names=self.config.columns,
                skip_rows=dialect.above,
                encoding=self.encoding,
            ),
            pa.csv.ParseOptions(
                delimiter=dialect.delimiter,
                quote_char='"' if dialect.quoted else False,
                double_quote=dialect.quoted,
                newlines_in_values=dialect.quoted,
                invalid_row_handler=malformed,
            ),
            pa.csv.ConvertOptions(column_types={name: pa.large_string() for name in wanted}, include_columns=wanted),
        )
        last = reader.schema.empty_table()
        yield last
        for batch in reader:
            self._check_bad(dialect)
            last = pa.table(batch) if len(batch) else last
            yield pa.table(batch)
        self._check_bad(dialect)
        if self.every:  # who reads all at once goes through the lines anyway
            self._check_closed(dialect, last.columns[-1][-1:].to_pylist())

    def _check_bad(self, dialect: Dialect) -> None:
        if self.bad and self.config.bad_rows is BadRows.error:
            number, columns, text = self.bad[0]
            records = self.record_lines(dialect)
            line = next(itertools.islice(records, number - 1, None))
            if not self.every or "\n" in self.bad[-1][2]:
                deque(records, 0)  # an open quotation mark is the better reason
            has = f"has {columns} columns, the header {len(dialect.header)}{why_malformed(text, dialect)}"
            raise UserError(f"{self.path}, line {line}: {has}; data.bad_rows=drop leaves such rows out")

    def _check_closed(self, dialect: Dialect, cells: list[str | None]) -> None:
        """Look for an open quotation mark, where the last cell, or a malformed row, has several lines."""
        if any("\n" in text or "\r" in text for text in (*cells, *(text for _, _, text in self.bad[-1:])) if text):
            deque(self.record_lines(dialect), 0)

    def _json(self, file: Any) -> Iterator[list[dict[str, Any]]]:
        if self.kind == "json" and self._may_be_document():
            text = decode(file.read(), self.path, self.config.encoding)
            if (records := _document(text, self.path)) is not None:
                odd = next((n for n, record in enumerate(records, 1) if not isinstance(record, dict)), None)
                if odd is not None:
                    raise self._no_object(f"row {odd}")
                yield records
                return
            lines: TextIO = io.StringIO(text, newline="\n")
        else:
            lines = io.TextIOWrapper(file, encoding=self.encoding, newline="\n")
        self.dialect, numbered = Dialect(), enumerate(lines, 1)
        while some := list(itertools.islice(numbered, LINES)):
            yield [self._parsed(line, number) for number, line in some if line.strip()]

    def _may_be_document(self) -> bool:
        """Whether this is no file of an object a line: such a one need not be held as a whole."""
        head = self.head.decode(self.encoding, errors="ignore").lstrip("\ufeff \r\n\t")
        first, _, more = head.partition("\n")
        try:
            return not more.strip() or not isinstance(load_json(first), dict)
        except ValueError:
            return True

    def _parsed(self, line: str, number: int) -> Any:
        try:
            record = load_json(line.removeprefix("\ufeff").removesuffix("\n"), largest=len(line))
        except ValueError as error:
            raise UserError(f"{self.path}, line {number}: is not valid JSON: {error}") from error
        if not isinstance(record, dict):
            raise self._no_object(f"line {number}")
        return record

    def _no_object(self, where: str) -> UserError:
        return UserError(f"{self.path}, {where}: is no JSON object with the columns as keys")

    def _xlsx(self, data: bytes) -> Values:
        header, lines = _read_sheet(data, self.path, self.config, self.columns)
        self._wanted(header)
        answers = {column.name for column in self.columns if column.kind != "text" and not self.every}
        blank = [None] * len(header)
        cells = [
            [_cell(value, name in answers) for name, value in zip(header, (*line, *blank), strict=False)]
            for line in lines
        ]
        if not self.every:
            return [dict(zip(header, row, strict=True)) for row in cells]
        columns = zip(*cells, strict=True) if cells else [()] * len(header)
        return pa.table([pa.array(column, pa.large_string()) for column in columns], names=header)

    def _arrow(self, file: Any) -> Iterator[pa.Table]:
        if self.kind == "parquet":
            parquet = pa.parquet.ParquetFile(file)
            wanted = self._wanted(flat_names(parquet.schema_arrow))
            tables = map(pa.table, parquet.iter_batches()) if self.every else [parquet.read(columns=wanted)]
        else:
            opened = pa.ipc.open_file if self.head.startswith(b"ARROW1") else pa.ipc.open_stream
            table = opened(pa.BufferReader(file.read())).read_all()
            wanted = self._wanted(flat_names(table.schema))
            tables = [table.select([n for n in table.column_names if any(f"{w}.".startswith(f"{n}.") for w in wanted)])]
        for table in tables:
            table.validate(full=True)  # Parquet's writers may leave broken UTF-8
            yield table


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


def _read_sheet(
    data: bytes, path: str, config: DataConfig, columns: Columns
) -> tuple[list[str], list[tuple[Any, ...]]]:
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


def _cell(value: Any, label: bool) -> Any:
    """Return a cell as Excel shows it: people type texts that Excel takes for numbers and dates."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if value is None or (label and isinstance(value, (int, float))) else str(value)
