"""Numbers, errors and long texts as a person reads them."""

import math
from collections.abc import Sequence
from typing import Any

MISSING = "n/a"


def is_number(value: Any) -> bool:
    """Return whether `value` is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def number(value: Any, digits: int = 3) -> str:
    """Return a number with about `digits` significant digits; scores from 0 to 1 get as many decimals."""
    if value is None or isinstance(value, bool) or not isinstance(value, (int, float)):
        return MISSING if value is None else str(value)
    if not math.isfinite(value):
        return MISSING
    if isinstance(value, int) or (float(value).is_integer() and abs(value) >= 1000):
        return f"{int(value):,}"
    scale = abs(value)
    if scale == 0:
        return "0"
    if scale < 10**-digits:
        return _scientific(value, digits - 1)
    if scale < 10:
        return f"{value:.{digits}f}"
    return f"{value:,.{max(0, digits - 1 - int(math.log10(scale)))}f}"


def percent(value: float | None, digits: int = 1) -> str:
    """Return a share as a percentage."""
    return MISSING if value is None or not math.isfinite(value) else f"{100 * value:.{digits}f} %"


def duration(seconds: float | None) -> str:
    """Return seconds as 8.4 s, 2 min 05 s or 1 h 02 min."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds < 59.95:
        return f"{seconds:.1f} s" if seconds >= 0.1 or seconds == 0 else f"{1000 * seconds:.1f} ms"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def columns(rows: Sequence[Sequence[str]], align: str = "<") -> list[str]:
    """Return rows of cells as lines whose columns stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:{align}{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def counted(count: int, noun: str) -> str:
    """Return how many there are, in a word or two: `1 seed`, `3 seeds`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def size(count: float | None) -> str:
    """Return bytes as 91 MB (powers of 1000)."""
    if count is None:
        return MISSING
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{number(count / scale, 2 if count / scale < 10 else 3)} {unit}"
    return f"{count:.0f} B"


def words(key: str) -> str:
    """Return a key such as `n_dropped_leaks` as words."""
    return key.replace("_", " ").strip()


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, which may go on for a page; its class where it says nothing."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]


def shorten(text: str, most: int = 80) -> str:
    """Return a text, cut to so many characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _scientific(value: float, digits: int) -> str:
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(exponent)}"
