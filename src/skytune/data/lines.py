"""How a text file is written: its encoding, what stands between its columns, and at which line a row begins, as an
editor counts them: line breaks in quotes, empty lines and malformed rows come between."""

import csv
import io
import logging
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..config import DataConfig, UserError
from .columns import Columns, has_columns

MARKS = {
    b"\xff\xfe\0\0": "utf-32",
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
    b"\xef\xbb\xbf": "utf-8-sig",
}
"""Byte order marks, the longer one first."""

DELIMITER = {"csv": ",", "tsv": "\t"}
"""What stands between columns as a rule."""

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""What is looked for between columns, where nothing is said."""

log = logging.getLogger(__name__)


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


def encoding_of(head: bytes, path: str, encoding: str | None) -> str:
    """Return how a file is written that begins so.

    Raises:
        UserError: as `decode` says.
    """
    mark = next((name for start, name in MARKS.items() if head.startswith(start)), None)
    if not mark and not encoding:
        decode(head[: head.rfind(b"\n") + 1] or head, path, None)
    return encoding or mark or "utf-8"


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
    """How a file is written that has lines."""

    delimiter: str = ""
    """What stands between cells; nothing where a line is a row."""

    quoted: bool = False
    """Whether a quotation mark stands around a text, or is a letter like any other."""

    header: list[str] = field(default_factory=list)
    """Names of its columns."""

    above: int = 0
    """Lines above it: `sep=;`, Excel's own way to say it."""

    named: bool = False
    """Whether the header stands in the file."""

    def reader(self, lines: Iterable[str], strict: bool = False) -> Any:
        """Return what reads the cells of each record."""
        quoting: Any = csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE
        return csv.reader(lines, delimiter=self.delimiter, quoting=quoting, strict=strict)

    @property
    def newline(self) -> str:
        """What `open` is told: a line of JSON may hold line ends of another kind."""
        return "" if self.delimiter else "\n"

    @property
    def start(self) -> int:
        """Records above the rows."""
        return self.above + self.named


def find_dialect(head: str, kind: str, config: DataConfig, columns: Columns) -> Dialect:
    """Return how a file is written that begins so: what the configuration says, else that in which its columns are.

    Args:
        head: its first lines.
        kind: `csv` or `tsv`.
        config: `delimiter` and `columns`.
        columns: those that are looked for.
    """
    found: list[tuple[int, Dialect]] = []
    mark = re.match(r'"?sep=(.)"?\r?\n', head)
    head, told = head[mark.end() :] if mark else head, config.delimiter or (mark[1] if mark else None)
    for delimiter in [told] if told else dict.fromkeys([DELIMITER[kind], *DELIMITERS]):
        quoted = kind == "csv" or delimiter != "\t"
        first: list[str] = []
        try:
            first = next((row for row in Dialect(delimiter, quoted).reader(io.StringIO(head, newline="")) if row), [])
        except csv.Error:  # a quotation mark that is never closed
            pass
        dialect = Dialect(delimiter, quoted, config.columns or first, int(mark is not None), not config.columns)
        if len(first) == len(config.columns) if config.columns else has_columns(first, columns):
            return dialect
        found.append((len(first), dialect))
    return max(found, key=lambda entry: entry[0])[1]


def why_malformed(line: str, dialect: Dialect) -> str:
    """Return why a row has another number of columns than the header, where its line shows it."""
    if not dialect.quoted:
        return "; data.format=csv data.delimiter=tab reads cells in quotes" if '"' in line else ""
    if dialect.delimiter == "\t":
        return "; data.format=tsv takes quotation marks for letters" if '"' in line else ""
    name = {",": "comma", ";": "semicolon"}.get(dialect.delimiter, dialect.delimiter)
    return f" (a {name} or a quotation mark in a text needs quotes around the text)"


def in_quotes(text: str | None) -> bool:
    """Whether a quotation mark stands at both ends."""
    return text is not None and len(text) > 1 and text[0] == text[-1] == '"'


def record_lines(lines: Iterable[str], dialect: Dialect, path: str) -> Iterator[int]:
    """Yield the line, from 1, at which each record of a file begins: a header and malformed ones among them.

    Args:
        lines: of the file, with their ends as they are.
        path: what messages call it.

    Raises:
        UserError: at the end, where a quotation mark is never closed, so that all rows below are taken for one text.
    """
    if not dialect.delimiter:
        yield from (number for number, line in enumerate(lines, 1) if line.strip())
        return
    begins, start, last, coming = 1, 1, list[str](), list[str]()

    def noted() -> Iterator[str]:
        for line in lines:
            coming.append(line)
            yield line

    csv.field_size_limit(sys.maxsize)
    reader = dialect.reader(noted())
    for record in reader:
        if record:
            yield start
        begins, start, last = start, reader.line_num + 1, coming.copy()
        coming.clear()
    try:
        deque(dialect.reader(last, strict=True), 0)
    except csv.Error as error:
        if "end of data" in str(error) and len(last) > 1:
            letters = "; data.format=tsv takes quotation marks for letters" if dialect.delimiter == "\t" else ""
            raise UserError(
                f"{path}, line {begins}: a quotation mark is never closed, which makes one row of the "
                f"{len(last):,} lines from there on: close it (in a text in quotes a mark is written twice){letters}"
            ) from None
