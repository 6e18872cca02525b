"""Figures of an experiment, drawn with matplotlib and inlined as SVG whose colours are those of the page's style sheet,
so that dark mode works; letters stay letters. A figure for which the table has nothing is None."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from . import text
from .findings import DEVICES, Group, pareto, said, scalings
from .fit import Fit
from .inlined import MARKERS, MUTED, SERIES, SURFACE, drawn


def time_against_cost(found: Sequence[Group]) -> Markup | None:
    """Return seconds against dollars: a series for the same work, with the front of what none other beats in both."""
    known = [group for group in found if group.mean("usd_total") and group.mean("total_s")]
    if len(known) < 2:
        return None

    def draw(axes: Any) -> None:
        for index, (label, members) in enumerate(_series(known, DEVICES).items()):
            points = [(group.mean("total_s") or 0.0, group.mean("usd_total") or 0.0) for group in members]
            _points(axes, points, index, label)
            _front(axes, points, index)
            if len(known) <= 12:
                for point, group in zip(points, members, strict=True):
                    where = said({k: v for k, v in group.levels.items() if k in DEVICES})
                    _note(axes, point, where)
        axes.set_xlabel("paid time in seconds")
        axes.set_ylabel("cost in USD")
        _log(axes, "x", [group.mean("total_s") for group in known])
        _log(axes, "y", [group.mean("usd_total") for group in known])

    return drawn("Time against cost; the lines join what nothing beats in both", draw)


def quality_against(found: Sequence[Group], column: str) -> Markup | None:
    """Return accuracy against `usd_total` or `total_s`, with the front of what none other beats in both."""
    known = [group for group in found if group.mean(column) and group.mean("accuracy") is not None]
    if len(known) < 2:
        return None

    def draw(axes: Any) -> None:
        points = [(group.mean(column) or 0.0, group.mean("accuracy") or 0.0) for group in known]
        for (x, y), group in zip(points, known, strict=True):
            _bars(axes, [x], [y], [group.half_width("accuracy")], 0)
        _points(axes, points, 0, "cells")
        front = pareto([(x, -y) for x, y in points])
        axes.plot(
            [points[i][0] for i in front], [points[i][1] for i in front], color=SERIES[1], linewidth=1.6, zorder=2,
            label="Pareto front", drawstyle="steps-post",
        )  # fmt: skip
        for place, i in enumerate(front):
            if place in (0, len(front) // 2, len(front) - 1):
                right = points[i][0] > sorted(x for x, _ in points)[len(points) // 2]
                _note(axes, points[i], known[i].label, SERIES[1], -14 if place % 2 else 5, right)
        axes.set_xlabel({"usd_total": "cost in USD", "total_s": "paid time in seconds"}[column])
        axes.set_ylabel("accuracy (validation)")
        axes.margins(x=0.18)
        _log(axes, "x", [x for x, _ in points])

    return drawn("Accuracy against cost", draw)


def speedup(found: Sequence[Group]) -> Markup | None:
    """Return speed-up over the number of devices, against the ideal line, with the share of it at each point."""
    series = scalings(found)
    if not series:
        return None

    def draw(axes: Any) -> None:
        most = max(line.devices[-1] / line.devices[0] for line in series)
        axes.plot([1, most], [1, most], color=MUTED, linestyle="--", linewidth=1, label="ideal")
        for index, line in enumerate(series):
            ratios = [count / line.devices[0] for count in line.devices]
            axes.plot(ratios, line.speedup, color=SERIES[index % len(SERIES)], marker=MARKERS[index % len(MARKERS)],
                      markersize=6, label=line.label or "cells")  # fmt: skip
            if index == 0 or len(series) <= 2:
                for x, y, share in zip(ratios[1:], line.speedup[1:], line.efficiency[1:], strict=True):
                    _note(axes, (x, y), text.percent(share, 0), SERIES[index % len(SERIES)])
        axes.set_xlabel(f"devices, times {series[0].devices[0]}" if series[0].devices[0] > 1 else "devices")
        axes.set_ylabel("speed-up in samples/s")
        ticks = sorted({count / line.devices[0] for line in series for count in line.devices})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_ylim(bottom=0)

    return drawn("Speed-up over devices, against the ideal line", draw)


def quality_over(found: Sequence[Group], factor: str, label: str, logarithmic: bool = True) -> Markup | None:
    """Return accuracy over the numbers of a factor or column, with 95 % confidence intervals over the seeds."""
    known = [group for group in found if text.is_number(_value(group, factor)) and group.mean("accuracy") is not None]
    if len({_value(group, factor) for group in known}) < 2:
        return None

    def draw(axes: Any) -> None:
        names = ("batch", *DEVICES) if factor == "global_batch" else (factor,)
        lines = [(name, _one_each(members, factor)) for name, members in _series(known, names).items()]
        lines = sorted(lines, key=lambda line: -len(line[1]))[: len(SERIES)]
        for index, (name, members) in enumerate(lines):
            shift = 1.025 ** (index - (len(lines) - 1) / 2)  # side by side, so that the intervals can be told apart
            xs = [_value(group, factor) * (shift if logarithmic else 1) for group in members]
            ys = [group.mean("accuracy") or 0.0 for group in members]
            _bars(axes, xs, ys, [group.half_width("accuracy") for group in members], index)
            axes.plot(xs, ys, color=SERIES[index], marker=MARKERS[index % len(MARKERS)], markersize=6, label=name)
        levels = sorted({_value(group, factor) for group in known})
        if logarithmic:
            axes.set_xscale("log")
        axes.set_xticks(levels, [f"{level:,g}" for level in levels])
        axes.minorticks_off()
        axes.set_xlabel(label)
        axes.set_ylabel("accuracy (validation)")

    return drawn(f"Accuracy over {label}", draw)


def predicted(found: Sequence[Fit], measured: Sequence[Sequence[float]]) -> Markup | None:
    """Return predicted against measured seconds, each cell predicted by the others.

    Args:
        measured: seconds by fit, in the order of its `left_out`.
    """
    if not found:
        return None

    def draw(axes: Any) -> None:
        everything = [value for values in measured for value in values]
        for index, (fit, values) in enumerate(zip(found, measured, strict=True)):
            guesses = [value * ratio for value, ratio in zip(values, fit.left_out, strict=True)]
            everything += guesses
            _points(axes, list(zip(values, guesses, strict=True)), index, ", ".join(fit.group[:1]))
        low, high = min(everything), max(everything)
        axes.plot([low, high], [low, high], color=MUTED, linestyle="--", linewidth=1, label="right")
        axes.set_xlabel("measured seconds")
        axes.set_ylabel("predicted by the other cells")
        _log(axes, "x", everything)
        _log(axes, "y", everything)

    return drawn("Predicted against measured time", draw)


def _value(group: Group, factor: str) -> Any:
    return group.levels[factor] if factor in group.levels else group.row.get(factor)


def _one_each(found: Sequence[Group], factor: str) -> list[Group]:
    """Return one group a level, in order: of several (on other numbers of devices) the one with the most seeds."""
    best: dict[Any, Group] = {}
    for group in found:
        level = _value(group, factor)
        if level not in best or len(group.values["accuracy"]) > len(best[level].values["accuracy"]):
            best[level] = group
    return [best[level] for level in sorted(best)]


def _series(found: Sequence[Group], without: Sequence[str]) -> dict[str, list[Group]]:
    series: dict[str, list[Group]] = {}
    for group in found:
        series.setdefault(said(group.levels, without) or "cells", []).append(group)
    return series


def _points(axes: Any, points: Sequence[tuple[float, float]], index: int, label: str) -> None:
    axes.scatter([x for x, _ in points], [y for _, y in points], s=42, color=SERIES[index % len(SERIES)], label=label,
                 marker=MARKERS[index % len(MARKERS)], zorder=3, edgecolors=SURFACE, linewidths=0.8)  # fmt: skip


def _front(axes: Any, points: Sequence[tuple[float, float]], index: int) -> None:
    front = [points[i] for i in pareto(points)]
    if len(front) > 1:
        axes.plot([x for x, _ in front], [y for _, y in front], color=SERIES[index % len(SERIES)], linewidth=1.2,
                  zorder=2)  # fmt: skip


def _bars(axes: Any, xs: Sequence[float], ys: Sequence[float], widths: Sequence[float | None], index: int) -> None:
    """Draw intervals of shares, which end at 0 and 1: of two seeds that differ, Student's t makes one of many units."""
    for x, y, width in zip(xs, ys, widths, strict=True):
        if width is not None:
            ends = [[min(width, y)], [min(width, 1 - y)]]
            axes.errorbar([x], [y], yerr=ends, color=SERIES[index % len(SERIES)], capsize=3, linewidth=1.2)


def _note(
    axes: Any, point: tuple[float, float], what: str, color: str = MUTED, up: float = 5, left: bool = False
) -> None:
    axes.annotate(
        what,
        point,
        xytext=(-6 if left else 6, up),
        ha="right" if left else "left",
        textcoords="offset points",
        fontsize=10,
        color=color,
    )


def _log(axes: Any, which: str, values: Sequence[float | None]) -> None:
    """Scale an axis by factors where its values span more than one of three; label it with plain numbers."""
    known = [value for value in values if value]
    if not known or max(known) / min(known) < 3:
        return
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    wide = max(known) / min(known) > 100
    axis.set_major_locator(LogLocator(base=10, subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
