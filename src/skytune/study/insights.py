"""What the table of an experiment says: the cells that ran, repetitions together (means over seeds with intervals); the
Pareto front, speed-up, and where more brings little. Pure functions on rows (plain dicts, columns as in the table)."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ..common import text
from ..pricing.cost import dollars

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


def half_width(values: Sequence[float], level: float = 0.95) -> float | None:
    """Return half the width of a mean's confidence interval (Student's t); None for fewer than two values."""
    from scipy.stats import t

    if len(values) < 2:
        return None
    return float(t.ppf(0.5 + level / 2, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))


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
        """Half the width of the mean's confidence interval; None for fewer than two seeds."""
        return half_width(self.values[column], level)

    @property
    def label(self) -> str:
        """The levels in a few words."""
        return describe(self.levels) or "the one cell"


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


def describe(levels: Mapping[str, Any], without: Iterable[str] = ()) -> str:
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


LITTLE = 0.5
"""Below this share of the ideal speed-up, further devices bring little."""


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of points of which none other is at least as small in both and smaller in one, by the first
    coordinate."""
    front = []
    best = math.inf
    for index in sorted(range(len(points)), key=lambda i: points[i]):
        if points[index][1] < best:
            front.append(index)
            best = points[index][1]
    return front


@dataclass(frozen=True)
class Scaling:
    """The same work on more and more devices."""

    label: str
    devices: list[int]
    speedup: list[float]
    """Samples a second in the steady state (where that is known), compared with the fewest devices."""

    groups: list[Group]

    @property
    def efficiency(self) -> list[float]:
        """Speed-up as a share of the ideal one."""
        return [gain / (count / self.devices[0]) for gain, count in zip(self.speedup, self.devices, strict=True)]


def scalings(found: Sequence[Group]) -> list[Scaling]:
    """Return a series for every combination of the other factors that ran on at least two numbers of devices of one
    kind."""
    series: dict[tuple[Any, ...], list[Group]] = {}
    kinds = {group.row.get("accelerator") for group in found}
    for group in found:
        if group.mean("samples_per_s") and group.row.get("devices"):
            others = tuple((name, level) for name, level in group.levels.items() if name not in DEVICES)
            series.setdefault((group.row.get("accelerator"), others), []).append(group)
    scaled = []
    for (accelerator, others), members in series.items():
        # The steady rate where every one has it: short cells on many devices record too few steps.
        steady = all(group.mean("steady_samples_per_s") for group in members)
        column = "steady_samples_per_s" if steady else "samples_per_s"
        rates: dict[int, float] = {}
        best: dict[int, Group] = {}
        for group in members:  # the faster of two machines with as many devices
            count, rate = int(group.row["devices"]), group.mean(column) or 0.0
            if rate > rates.get(count, 0.0):
                rates[count], best[count] = rate, group
        if len(best) < 2:
            continue
        counts = sorted(best)
        kind = str(accelerator or "") if len(kinds) > 1 else ""
        label = ", ".join(part for part in (kind, describe(dict(others))) if part)
        speedup = [rates[count] / rates[counts[0]] for count in counts]
        scaled.append(Scaling(label, counts, speedup, [best[count] for count in counts]))
    return scaled


def sentences(found: Sequence[Group]) -> list[str]:
    """Return what more of something brings, a sentence each: devices, rows, global batch."""
    found = varying(found)
    told = [_devices(series) for series in scalings(found)]
    for factor in ("rows", "batch"):
        for others, ordered in _along(found, factor):
            told += _steps(factor, others, ordered)
    return told + _scaling_rules(found)


def _devices(series: Scaling) -> str:
    last, count = series.speedup[-1], series.devices[-1]
    share = series.efficiency[-1]
    where = f"{series.label}: " if series.label else ""
    short = next((i for i, value in enumerate(series.efficiency) if value < LITTLE), None)
    text_ = (
        f"{where}{count} devices are {last:.2f} times as fast as {series.devices[0]} "
        f"({text.percent(share, 0)} of the ideal)"
    )
    first, most = series.groups[0].mean("usd_per_1000_samples"), series.groups[-1].mean("usd_per_1000_samples")
    if first and most:
        text_ += f"; 1,000 rows then cost {dollars(most)} instead of {dollars(first)}"
    if short is not None:
        enough = series.devices[max(0, short - 1)]
        text_ += f"; returns diminish beyond {enough}: {series.devices[short]} reach less than half of the ideal"
    return text_ + "."


def _along(found: Sequence[Group], factor: str) -> list[tuple[dict[str, Any], list[Group]]]:
    """Return the groups that differ in a factor's number alone, by that number; of several with the same one (all rows
    may be asked for in more than one way) the one with the most seeds."""
    series: dict[tuple[Any, ...], dict[float, Group]] = {}
    for group in found:
        level = number_in(group.levels.get(factor))
        if level is not None:
            others = tuple((name, value) for name, value in group.levels.items() if name != factor)
            known = series.setdefault(others, {})
            if level not in known or group.count > known[level].count:
                known[level] = group
    return [
        (dict(others), [known[level] for level in sorted(known)]) for others, known in series.items() if len(known) > 1
    ]


def _steps(factor: str, others: Mapping[str, Any], ordered: Sequence[Group]) -> list[str]:
    first, last = ordered[0], ordered[-1]
    before, after = first.mean("accuracy"), last.mean("accuracy")
    began, took = first.mean("total_s"), last.mean("total_s")
    if before is None or after is None or not began or not took:
        return []
    where = f" ({describe(others)})" if others else ""
    noun = {"rows": "rows", "batch": "as global batch"}[factor]
    change = 100 * (after - before)
    noise = _noise(first, last)
    fewer, more = (number_in(group.levels[factor]) for group in (first, last))
    verb = "gains" if change >= 0 else "loses"
    text_ = (
        f"{more:,} {noun} instead of {fewer:,}{where} {verb} {abs(change):.1f} "
        f"points of accuracy{noise} at {took / began:.2f} times the time"
    )
    if factor == "rows" and len(ordered) > 2:
        gains = [(b.mean("accuracy") or 0) - (a.mean("accuracy") or 0) for a, b in pairwise(ordered)]
        low = next((i for i in range(1, len(gains)) if gains[i] < LITTLE * gains[0]), None)
        if low is not None and gains[0] > 0:
            text_ += f"; returns diminish beyond {number_in(ordered[low].levels[factor]):,}"
    return [text_ + "."]


def _scaling_rules(found: Sequence[Group]) -> list[str]:
    """Return what `scale_lr` gives back at each batch."""
    told = []
    series: dict[tuple[Any, ...], dict[str, Group]] = {}
    for group in found:
        if "scale_lr" in group.levels:
            others = tuple((name, value) for name, value in group.levels.items() if name != "scale_lr")
            series.setdefault(others, {})[str(group.levels["scale_lr"])] = group
    for others, rules in series.items():
        plain = rules.get("none")
        if plain is None or plain.mean("accuracy") is None or plain.row["peak_lr"] is None:
            continue
        for name, group in rules.items():
            value = group.mean("accuracy")
            if name == "none" or value is None or group.row["peak_lr"] == plain.row["peak_lr"]:
                continue  # at the reference batch the rule changes nothing
            change = 100 * (value - (plain.mean("accuracy") or 0))
            told.append(
                f"{describe(dict(others))}: scale_lr={name} {'gives back' if change >= 0 else 'costs'} "
                f"{abs(change):.1f} points of accuracy{_noise(plain, group)}."
            )
    return told


def _noise(first: Group, last: Group) -> str:
    widths = [group.half_width("accuracy") for group in (first, last)]
    if None in widths:
        return " (one seed: noise unknown)"
    width = 100 * math.hypot(*(width for width in widths if width is not None))
    change = 100 * abs((last.mean("accuracy") or 0.0) - (first.mean("accuracy") or 0.0))
    return f" (± {width:.1f}, 95 %{'; within the noise' if change < width else ''})"
