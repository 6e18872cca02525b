"""At which line of its file a row begins, as an editor counts them: line breaks in quotes, empty lines and malformed
rows come between. The file is gone through a second time only where it has such, or where a row is asked for."""

import csv
import io
import sys
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

from ..config import UserError


def record_lines(lines: Iterable[str], delimiter: str | None, quoted: bool) -> Iterator[int]:
    """Yield the line, from 1, at which each record of a file begins: a header and malformed ones among them.

    Args:
        lines: of the file, with their ends as they are.
        delimiter: between columns; None of a file with a record a line.
        quoted: whether quotation marks stand around texts.
    """
    if delimiter is None:
        yield from (number for number, line in enumerate(lines, 1) if line.strip())
        return
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE)
    start = 1
    for record in reader:
        if record:
            yield start
        start = reader.line_num + 1


def all_record_lines(text: str, delimiter: str, quoted: bool, records: int, path: str, above: int = 0) -> np.ndarray:
    """Return the line of each record of a csv or tsv file, int64.

    Args:
        records: how many there are, if every record is one line.
        path: what messages call it.
        above: lines that stand above the text.

    Raises:
        UserError: a quotation mark is never closed, so that all rows below are taken for one text.
    """
    breaks = text.count("\n") + text.count("\r") - text.count("\r\n")
    if breaks + (not text.endswith("\n")) == records:
        return np.arange(1, records + 1) + above
    every = np.fromiter(record_lines(io.StringIO(text, newline=""), delimiter, quoted), np.int64)
    last = list(islice(io.StringIO(text, newline=""), int(every[-1]) - 1, None))
    try:
        for _ in csv.reader(last if quoted else [], delimiter=delimiter, strict=True):
            pass
    except csv.Error as error:
        if "end of data" in str(error) and len(last) > 1:
            letters = "; data.format=tsv takes quotation marks for letters" if delimiter == "\t" else ""
            raise UserError(
                f"{path}, line {every[-1] + above}: a quotation mark is never closed, which makes one row of the "
                f"{len(last):,} lines from there on: close it (in a text in quotes a mark is written twice){letters}"
            ) from None
    return every + above


def line_of_row(lines: Iterable[str], delimiter: str | None, quoted: bool, row: int, left_out: Iterable[int]) -> int:
    """Return the line of the record that is number `row`, from 0, of those that are not left out."""
    for number in sorted(left_out):
        row += number <= row
    return next(islice(record_lines(lines, delimiter, quoted), row, None))
