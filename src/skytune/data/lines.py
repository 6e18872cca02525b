"""At which line of its file a row begins, as an editor counts them: line breaks in quotes, empty lines and malformed
rows come between. The file is gone through a second time only where it has such, or where a row is asked for."""

import csv
import io
import sys
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np


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


def lines_of_rows(text: str, delimiter: str, quoted: bool, records: int, left_out: Iterable[int]) -> np.ndarray:
    """Return the line of each record of a csv or tsv file but those left out (from 0), int64.

    Args:
        records: how many there are in all, header and those left out among them.
    """
    every = np.arange(1, records + 1)
    breaks = text.count("\n") + text.count("\r") - text.count("\r\n")
    if breaks + (not text.endswith("\n")) != records:
        every = np.fromiter(record_lines(io.StringIO(text, newline=""), delimiter, quoted), np.int64)
    return np.delete(every, list(left_out))


def line_of_row(lines: Iterable[str], delimiter: str | None, quoted: bool, row: int, left_out: Iterable[int]) -> int:
    """Return the line of the record that is number `row`, from 0, of those that are not left out."""
    for number in sorted(left_out):
        row += number <= row
    return next(islice(record_lines(lines, delimiter, quoted), row, None))
