"""The cells of an experiment that ran, repetitions together: means over seeds with intervals. Pure functions on rows
(plain dicts, columns as in the table)."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..common import text

Row = Mapping[str, Any]

FACTOR = "factor_"
DEVICES = ("compute", "processes")
"""Factors that change how many devices there are."""

NUMBERS = (
    "total_s",
    "train_s",
    "usd_total",
    "usd_per_1000_samples",
    "samples_per_s",
    "steady_samples_per_s",
    "accuracy",
    "f1",
    "mfu",
    "loss",
)


@dataclass(frozen=True)
class Group:
    """The repetitions of one combination of levels."""

    levels: Mapping[str, Any]
    """By factor; `rows` is the number of rows that trained, which may be fewer than the design asks for."""

    row: Row
    """The first of them, for what does not change with the seed."""

    values: Mapping[str, list[float]]
    """By column of `NUMBERS`, the known values."""

    count: int = 1
    """How many there are."""

    def mean(self, column: str) -> float | None:
        """Mean over the seeds, None where nothing is known."""
        found = self.values[column]
        return float(np.mean(found)) if found else None

    def half_width(self, column: str, level: float = 0.95) -> float | None:
        """Half the width of the mean's confidence interval (Student's t); None for fewer than two seeds."""
        found = self.values[column]
        if len(found) < 2:
            return None
        from scipy.stats import t

        return float(t.ppf(0.5 + level / 2, len(found) - 1) * np.std(found, ddof=1) / math.sqrt(len(found)))

    @property
    def label(self) -> str:
        """The levels in a few words."""
        return said(self.levels) or "the one cell"


def varying(found: Iterable[Group]) -> list[Group]:
    """Return the groups without the factors that have one level in all of them: they say nothing."""
    found = list(found)
    seen: dict[str, set[str]] = {}
    for group in found:
        for name, level in group.levels.items():
            seen.setdefault(name, set()).add(str(level))
    return [
        Group(
            {name: level for name, level in group.levels.items() if len(seen[name]) > 1},
            group.row,
            group.values,
            group.count,
        )
        for group in found
    ]


def said(levels: Mapping[str, Any], without: Iterable[str] = ()) -> str:
    """Return levels in a few words."""
    parts = []
    for name, level in levels.items():
        if name not in without:
            shown = f"{level:,}" if isinstance(level, int) and not isinstance(level, bool) else str(level)
            parts.append(shown if name == "compute" else f"{name} {shown}")
    return ", ".join(parts)


def groups(rows: Iterable[Row]) -> list[Group]:
    """Return the cells that ran, repetitions together, in the order of the table."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row.get("status") == "done":
            found.setdefault(tuple((k, row[k]) for k in row if k.startswith(FACTOR)), []).append(row)
    return [
        Group(
            _trained({key.removeprefix(FACTOR): value for key, value in key_values}, same[0]),
            same[0],
            {name: [float(row[name]) for row in same if text.is_number(row.get(name))] for name in NUMBERS},
            len(same),
        )
        for key_values, same in found.items()
    ]


def number_in(level: Any) -> Any:
    """Return the number that a level is, None for others. Where one level of a factor is text, the table holds them all
    as text."""
    if isinstance(level, str):
        try:
            level = json.loads(level)
        except ValueError:
            return None
    return level if text.is_number(level) else None


def same_level(level: Any) -> str:
    """Return what is equal for a level of the design and for the same one in the table."""
    number = number_in(level)
    if number is not None:
        return repr(float(number))
    return level if isinstance(level, str) else json.dumps(level)


def _trained(levels: dict[str, Any], row: Row) -> dict[str, Any]:
    if "rows" in levels:
        trained = number_in(row.get("train_rows"))
        known = trained if trained is not None else number_in(levels["rows"])
        return levels if known is None else {**levels, "rows": int(known)}
    return levels
