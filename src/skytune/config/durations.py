"""Spans of time as people write them: `30m`, `2h`, `90s`, or a plain number of minutes."""

import math
import re

from .errors import ConfigError

WRITTEN = re.compile(r"(\d+(?:\.\d+)?) ?([smh]?)", re.ASCII)
MINUTES = {"s": 1 / 60, "": 1.0, "m": 1.0, "h": 60.0}


def whole_minutes(key: str, value: int | float | str) -> int:
    """Return a span as minutes, rounded up: those who take it down count in whole ones.

    Raises:
        ConfigError: it is none, or not above 0.
    """
    found = WRITTEN.fullmatch(str(value).strip().lower())
    minutes = float(found[1]) * MINUTES[found[2]] if found else 0.0
    if not 0 < minutes < 1e6:
        raise ConfigError(f"{key}={value}: a time above 0, as 30m, 2h, 90s or a number of minutes")
    return math.ceil(round(minutes, 6))
