"""Figures of an experiment, drawn with matplotlib and inlined as SVG whose colours are those of the page's style sheet,
so that dark mode works; letters stay letters. A figure for which the table has nothing is None.

Names of cells stand in the legend below a figure, never inside it: where several machines ran, colour and marker tell
them apart, and numbers name the lines.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from ..common import text
from ..report.charts import INK, MUTED, Sketch, drawn, style
from .insights import DEVICES, Group, Scaling, describe, number_in, pareto, scalings

MOST_NUMBERS = 9
"""Of notes with a number in a figure."""

MOST_LINES = 8
"""Of a figure."""

MOST_SHARES = 4
"""With more lines than these, shares of the ideal would stand on each other."""

AXES = {"usd_total": "cost in USD", "total_s": "paid time in seconds"}


def time_against_cost(found: Sequence[Group]) -> Markup | None:
    """Return seconds against dollars, with a line for the same work: the front of what none other beats in both."""
    known = [group for group in found if group.mean("usd_total") and group.mean("total_s")]
    if len(known) < 2:
        return None

    def draw(sketch: Sketch) -> None:
        works, places = _series(known, DEVICES), _places(known)
        _marked(sketch, places if len(places) > 1 else works, "total_s", "usd_total")
        for index, (work, members) in enumerate(works.items()):
            front = _front(members, "total_s", "usd_total")
            if len(front) > 1:
                sketch.line(front, MUTED if len(places) > 1 else style(index)[0])
            if len(places) > 1 and 1 < len(works) <= MOST_NUMBERS:
                sketch.number(front[-1], work)
        _axes(sketch, known, "total_s", "usd_total")

    return drawn("Time against cost; the lines join what nothing beats in both", draw)


def quality_against(found: Sequence[Group], column: str) -> Markup | None:
    """Return accuracy against `usd_total` or `total_s`, with the front of what none other beats in both."""
    known = [group for group in found if group.mean(column) and group.mean("accuracy") is not None]
    if len(known) < 2:
        return None

    def draw(sketch: Sketch) -> None:
        places = _places(known)
        for index, members in enumerate(places.values()):
            points = _points(members, column, "accuracy")
            sketch.bars(points, [group.half_width("accuracy") for group in members], index)
        _marked(sketch, places if len(places) > 1 else {"cells": known}, column, "accuracy")
        points = _points(known, column, "accuracy")
        front = pareto([(x, -y) for x, y in points])
        sketch.line([points[i] for i in front], INK, "Pareto front: nothing is better for less", steps=True)
        for i in _some(front, MOST_NUMBERS):
            sketch.number(points[i], known[i].label)
        _axes(sketch, known, column)
        sketch.axes.set_ylabel("accuracy (validation)")

    return drawn("Accuracy against cost", draw)


def speedup(found: Sequence[Group]) -> Markup | None:
    """Return speed-up over the number of devices; each line starts at its own fewest, and so does its ideal."""
    everything = scalings(found)
    series = _of_every_kind(everything)[:MOST_LINES]
    if not series:
        return None

    def draw(sketch: Sketch) -> None:
        longest: dict[int, int] = {}
        for line in series:
            longest[line.devices[0]] = max(line.devices[-1], longest.get(line.devices[0], 0))
        for fewest, most in longest.items():
            sketch.line([(fewest, 1), (most, most / fewest)], MUTED, "ideal, from a line's fewest devices", dashed=True)
        for index, line in enumerate(series):
            points = list(zip(map(float, line.devices), line.speedup, strict=True))
            sketch.line(points, style(index)[0])
            sketch.points(points, index, line.label or "cells")
            if len(series) <= MOST_SHARES:
                for point, share in list(zip(points, line.efficiency, strict=True))[1 if len(series) <= 2 else -1 :]:
                    sketch.note(point, text.percent(share, 0), style(index)[0])
        counts = sorted({count for line in series for count in line.devices})
        if counts[-1] > 16 * counts[0]:
            sketch.axes.set_xscale("log", base=2)
            sketch.axes.set_yscale("log", base=2)
            sketch.axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        else:
            sketch.axes.set_ylim(bottom=0)
        _ticks(sketch, counts)
        sketch.more = len(everything) - len(series)
        sketch.axes.margins(x=0.1)
        sketch.axes.set_xlabel("devices")
        sketch.axes.set_ylabel("speed-up in samples/s")

    return drawn("Speed-up over devices, against the ideal line", draw)


def quality_over(found: Sequence[Group], factor: str, label: str) -> Markup | None:
    """Return accuracy over the numbers of a factor or column, with 95 % confidence intervals over the seeds."""
    known = [group for group in found if _value(group, factor) is not None and group.mean("accuracy") is not None]
    levels = sorted({_value(group, factor) for group in known})
    if len(levels) < 2 or levels[0] <= 0:
        return None

    def draw(sketch: Sketch) -> None:
        names = ("batch", *DEVICES) if factor == "global_batch" else (factor,)
        everything = [(name, _one_each(members, factor)) for name, members in _series(known, names).items()]
        lines = sorted(everything, key=lambda line: -len(line[1]))[:MOST_LINES]
        sketch.more = len(everything) - len(lines)
        # Side by side, so that the intervals can be told apart, and nearer to their own level than to the next.
        apart = min(1.025, min(b / a for a, b in pairwise(levels)) ** (0.5 / len(lines)))
        for index, (name, members) in enumerate(lines):
            shift = apart ** (index - (len(lines) - 1) / 2)
            points = [(_value(group, factor) * shift, group.mean("accuracy") or 0.0) for group in members]
            sketch.bars(points, [group.half_width("accuracy") for group in members], index)
            sketch.line(points, style(index)[0])
            sketch.points(points, index, name)
        sketch.axes.set_xscale("log")
        _ticks(sketch, levels)
        sketch.axes.set_xlabel(label)
        sketch.axes.set_ylabel("accuracy (validation)")

    return drawn(f"Accuracy over {label}", draw)


def _value(group: Group, factor: str) -> Any:
    return number_in(group.levels[factor] if factor in group.levels else group.row.get(factor))


def _one_each(found: Sequence[Group], factor: str) -> list[Group]:
    """Return one group a level, in order: of several (on other numbers of devices) the one with the most seeds."""
    best: dict[Any, Group] = {}
    for group in found:
        level = _value(group, factor)
        if level not in best or len(group.values["accuracy"]) > len(best[level].values["accuracy"]):
            best[level] = group
    return [best[level] for level in sorted(best)]


def _of_every_kind(series: Sequence[Scaling]) -> list[Scaling]:
    """Return the first line of each kind of device, then the second of each, and so on."""
    kinds = [line.groups[0].row.get("accelerator") for line in series]
    return [series[i] for i in sorted(range(len(series)), key=lambda i: kinds[:i].count(kinds[i]))]


def _series(found: Sequence[Group], without: Sequence[str]) -> dict[str, list[Group]]:
    series: dict[str, list[Group]] = {}
    for group in found:
        series.setdefault(describe(group.levels, without) or "cells", []).append(group)
    return series


def _places(found: Sequence[Group]) -> dict[str, list[Group]]:
    """Return the groups by where they ran."""
    return _series(found, [name for group in found for name in group.levels if name not in DEVICES])


def _points(found: Sequence[Group], x: str, y: str) -> list[tuple[float, float]]:
    return [(group.mean(x) or 0.0, group.mean(y) or 0.0) for group in found]


def _marked(sketch: Sketch, series: dict[str, list[Group]], x: str, y: str) -> None:
    for index, (label, members) in enumerate(series.items()):
        sketch.points(_points(members, x, y), index, label)


def _front(found: Sequence[Group], x: str, y: str) -> list[tuple[float, float]]:
    points = _points(found, x, y)
    return [points[i] for i in pareto(points)]


def _some(values: Sequence[int], most: int) -> list[int]:
    """Return at most so many of them, evenly, the first and the last included."""
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def _axes(sketch: Sketch, found: Sequence[Group], x: str, y: str = "") -> None:
    for which, column in (("x", x), ("y", y)):
        if column:
            getattr(sketch.axes, f"set_{which}label")(AXES[column])
            sketch.scale(which, [group.mean(column) for group in found])


def _ticks(sketch: Sketch, levels: Sequence[float]) -> None:
    """Mark the levels, without words where they would run into those before."""
    axes = sketch.axes
    labels, free = [], -1.0
    for level in levels:
        across = axes.transAxes.inverted().transform(axes.transData.transform((level, 1.0)))[0]
        label = f"{level:,g}"
        labels.append(label if across >= free else "")
        free = across + 0.02 + 0.018 * len(label) if across >= free else free
    axes.set_xticks(levels, labels)
    axes.minorticks_off()
