"""Charts drawn by matplotlib, as elements of a page: SVG with the page's colours and letters, the legend as text of the
page, which wraps where the page is narrow."""

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from markupsafe import Markup, escape

from ..common.text import is_number, number

SERIES = ("#2a78d6", "#d9541e", "#16805f", "#8a4fd0", "#a07800")
"""Drawn in these; the page's variables take their place."""

INK, MUTED, GRID, AXIS, SURFACE = "#14140f", "#6f6e68", "#e6e5e0", "#bdbcb5", "#fffffe"

VARIABLES = {
    **{color: f"var(--s{i})" for i, color in enumerate(SERIES, 1)},
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    AXIS: "var(--axis)",
    SURFACE: "var(--surface)",
}

GLYPHS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "P": "✚"}
"""Markers, and the letters that stand for them in the legend: one more than there are colours, so that thirty series
differ in one or the other."""

WIDE, TALL = 6.4, 3.4
"""Inches; 460 pixels across at 72 an inch: letters of 12 pixels are as large as the page's."""

MOST_ENTRIES = 16
"""Of a legend; the table of the page has the others."""

SMOOTH_FROM, MOST_POINTS = 60, 400

AWAY = (5.0, 10.0, 16.0)
"""How far a note may be from its point, in pixels."""

AROUND = ((1, 1), (-1, 1), (1, -1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))
"""Where a note may stand, seen from its point, best first."""

DOT = 4.5
"""Half the width of a point."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """One line over the optimizer steps."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    """As long as `x`; None and NaN break the line."""

    color: int = 1
    """Number of the colour in the style sheet, from 1."""

    dots: bool = False
    """Mark every point: for few, separate measurements."""

    smooth: bool = False
    """Draw a long series faintly, with its moving average over it."""

    @property
    def last(self) -> str:
        """The last value that is a number, as text."""
        return next((number(value) for value in reversed(self.y) if is_number(value)), "n/a")


def line_chart(series: Sequence[Series], label: str, *, zero: bool = False, mark: float | None = None) -> Markup:
    """Return a chart of lines over optimizer steps; its legend, with the last values, is the page's affair.

    Args:
        series: the lines.
        label: what the chart shows, for screen readers.
        zero: start the axis at 0.
        mark: step that gets a dashed line (the selected weights).
    """

    def draw(sketch: Sketch) -> None:
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        axes = sketch.axes
        for line in series:
            x, y = _thinned(line.x, line.y)
            color, alone = SERIES[line.color - 1], sum(map(is_number, y)) == 1
            if line.smooth and len(x) > SMOOTH_FROM:
                axes.plot(x, y, color=color, alpha=0.28, linewidth=1)
                y = moving_average(y)
            axes.plot(x, y, color=color, linewidth=1.8, marker="o" if line.dots or alone else "", markersize=5)
        if mark is not None:
            axes.axvline(mark, color=MUTED, linestyle="--", linewidth=1)
        axes.set_xlim(left=0)
        if zero:
            axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}".replace("e-0", "e-")))
        axes.set_xlabel("optimizer step")

    return drawn(label, draw)


def reliability_chart(bins: Sequence[dict[str, Any]]) -> Markup:
    """Return the reliability diagram of `evaluation.calibration`: accuracy over confidence, and rows below."""

    def draw(sketch: Sketch) -> None:
        axes, known = sketch.axes, [found for found in bins if found["rows"]]
        most = max((found["rows"] for found in known), default=1)
        for found in known:
            left, width = found["low"] + 0.003, found["high"] - found["low"] - 0.006
            axes.bar(left, found["accuracy"], width, align="edge", color=SERIES[0], alpha=0.75)
            axes.hlines(found["confidence"], left, left + width, color=SERIES[1], linewidth=2.5)
            axes.bar(left, 0.22 * found["rows"] / most, width, -0.26, align="edge", color=AXIS)
        axes.plot([0, 1], [0, 1], color=MUTED, linestyle="--", linewidth=1)
        axes.set_xlim(0, 1)
        axes.set_ylim(-0.26, 1.02)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
        axes.set_yticks([-0.15, 0, 0.25, 0.5, 0.75, 1], ["rows", "0", "0.25", "0.5", "0.75", "1"])
        axes.set_xlabel("confidence (probability of the predicted class)")

    return drawn("Reliability diagram: accuracy over confidence", draw)


def scatter_chart(points: Sequence[Point], label: str) -> Markup:
    """Return what was predicted over what is true; on the dashed line they are equal."""

    def draw(sketch: Sketch) -> None:
        ends = [min(min(point) for point in points), max(max(point) for point in points)]
        sketch.line([(end, end) for end in ends], MUTED, dashed=True)
        x, y = _columns(points)
        sketch.axes.scatter(x, y, s=9, color=style(0)[0], alpha=0.45, linewidths=0)
        sketch.axes.set_xlabel("true")
        sketch.axes.set_ylabel("predicted")

    return drawn(label, draw)


def moving_average(values: Sequence[float], keep: float = 0.9) -> list[float]:
    """Return the exponential moving average, corrected for its start (as Adam's moments are, Kingma and Ba 2015)."""
    import pandas as pd

    known = pd.Series([value if is_number(value) else math.nan for value in values], dtype=float)
    return known.ewm(alpha=1 - keep, ignore_na=True).mean().where(known.notna()).tolist()


def _thinned(xs: Sequence[float], ys: Sequence[float | None]) -> tuple[list[float], list[float]]:
    """Return at most `MOST_POINTS` points: means of neighbours where there are more, so that the page stays small."""
    import pandas as pd

    points = pd.DataFrame({"x": xs, "y": [y if is_number(y) else math.nan for y in ys]}, dtype=float)
    thin = points.groupby(points.index // (math.ceil(len(xs) / MOST_POINTS) or 1)).mean()
    return thin["x"].tolist(), thin["y"].tolist()


@dataclass(frozen=True)
class Entry:
    """A mark and what it means."""

    label: str
    color: str = INK
    marker: str = ""
    """Of `GLYPHS`; a line without."""

    dashed: bool = False
    number: int = 0
    """A number that stands at the mark, in place of the mark itself."""


class Sketch:
    """Axes with a record of what lies on them.

    Args:
        axes: matplotlib's, empty.
    """

    def __init__(self, axes: Any) -> None:
        self.axes = axes
        self.legend: list[Entry] = []
        self.more = 0
        """Lines that were left out."""
        self._notes: list[tuple[Point, str, str]] = []
        self._points: list[Point] = []
        self._lines: list[list[Point]] = []

    def points(self, points: Sequence[Point], index: int, label: str = "") -> None:
        """Draw points in the colour and with the marker of a series; equal labels share an entry of the legend."""
        color, marker = style(index)
        self.axes.plot(
            *_columns(points),
            linestyle="none",
            marker=marker,
            markersize=7.5,
            color=color,
            zorder=3,
            markeredgecolor=SURFACE,
            markeredgewidth=0.8,
        )
        self._points += points
        self._entry(Entry(label, color, marker))

    def line(
        self, points: Sequence[Point], color: str, label: str = "", dashed: bool = False, steps: bool = False
    ) -> None:
        """Draw a line through points; `steps` keeps each one's height until the next."""
        points = list(points)
        if steps:
            corners = [(after[0], before[1]) for before, after in pairwise(points)]
            points = [point for pair in zip(points, corners, strict=False) for point in pair] + points[-1:]
        self.axes.plot(
            *_columns(points), color=color, linestyle="--" if dashed else "-", linewidth=1 if dashed else 1.4, zorder=2
        )
        self._lines.append(points)
        self._entry(Entry(label, color, dashed=dashed))

    def bars(self, points: Sequence[Point], widths: Sequence[float | None], index: int) -> None:
        """Draw intervals of shares, which end at 0 and 1: of two seeds that differ, Student's t makes one of many
        units."""
        for (x, y), width in zip(points, widths, strict=True):
            if width is not None:
                low, high = min(width, y), min(width, 1 - y)
                self.axes.errorbar([x], [y], yerr=[[low], [high]], color=style(index)[0], capsize=3, linewidth=1.2)
                self._lines.append([(x, y - low), (x, y + high)])

    def note(self, point: Point, what: str, color: str = MUTED) -> None:
        """Write something at a point, where there is room for it."""
        if (point, what) not in [(other, text) for other, text, _ in self._notes]:
            self._notes.append((point, what, color))

    def number(self, point: Point, label: str) -> None:
        """Write the next number at a point; the legend says what it stands for."""
        number = 1 + sum(entry.number > 0 for entry in self.legend)
        self.note(point, str(number), INK)
        self._entry(Entry(label, number=number))

    def scale(self, which: str, values: Sequence[float | None]) -> None:
        """Scale an axis by factors where its values span more than one of three; label it with plain numbers."""
        known = [value for value in values if value]
        if not known or max(known) / min(known) < 3:
            return
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        getattr(self.axes, f"set_{which}scale")("log")
        axis = getattr(self.axes, f"{which}axis")
        wide = max(known) / min(known) > 100
        axis.set_major_locator(LogLocator(base=10, subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())

    def place_notes(self) -> None:
        """Write the notes, once it is known where everything lies: one after the other, each where it is least in the
        way of points and lines. What would lie on another or outside the axes is left out."""
        import numpy as np
        from matplotlib.path import Path
        from matplotlib.transforms import Bbox

        on_screen, area = self.axes.transData.transform, self.axes.get_window_extent()
        points = on_screen(np.array(self._points).reshape(-1, 2))
        lines = [Path(on_screen(line)).interpolated(50).vertices for line in self._lines if len(line) > 1]
        spots = np.concatenate([*lines, np.empty((0, 2))])
        taken: list[Any] = []
        # From above, so that notes stand in the order of their points.
        for point, what, color in sorted(self._notes, key=lambda note: -note[0][1]):
            text = self.axes.annotate(
                what, point, xytext=(0, 0), textcoords="offset points", fontsize=10, color=color, in_layout=False
            )
            (x, y), extent = on_screen(point), text.get_window_extent()
            best: tuple[float, float, float, Any] | None = None
            for rank, (away, (right, up)) in enumerate((a, s) for a in AWAY for s in AROUND):
                dx = right * away + (right - 1) / 2 * extent.width
                dy = up * (away - 3 * abs(right)) + (up - 1) / 2 * extent.height
                box = Bbox.from_bounds(x + dx, y + dy, extent.width, extent.height)
                inside = area.x0 <= box.x0 and box.x1 <= area.x1 and area.y0 <= box.y0 <= area.y1
                if not inside or box.padded(1).count_overlaps(taken):  # a line of text above the axes is free
                    continue
                bad = 1000 * box.padded(DOT).count_contains(points) + 10 * box.count_contains(spots) + rank
                if best is None or bad < best[0]:
                    best = bad, dx, dy, box
            if best is None:
                text.remove()
            else:
                text.set_position(best[1:3])
                taken.append(best[3])

    def _entry(self, entry: Entry) -> None:
        if entry.label and entry not in self.legend:
            self.legend.append(entry)


def style(index: int) -> tuple[str, str]:
    """Return colour and marker of a series."""
    return SERIES[index % len(SERIES)], list(GLYPHS)[index % len(GLYPHS)]


def _columns(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def drawn(label: str, draw: Callable[[Sketch], None]) -> Markup:
    """Return a figure of one pair of axes, on which `draw` draws, with its legend below."""
    import matplotlib
    from matplotlib.figure import Figure

    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": label,
        "font.size": 12,
        "font.family": "sans-serif",
        "axes.edgecolor": GRID,
        "axes.labelcolor": MUTED,
        "axes.grid": True,
        "grid.color": GRID,
        "text.color": INK,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "text.parse_math": False,  # a name with dollars in it is no formula
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(WIDE, TALL), dpi=72, layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        sketch = Sketch(axes)
        draw(sketch)
        figure.draw_without_rendering()  # where things lie is known only then
        sketch.place_notes()
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return _inlined(out.getvalue(), label) + _legend(sketch.legend, sketch.more)


def _legend(entries: Sequence[Entry], more: int = 0) -> Markup:
    """Return what the marks mean; one mark alone needs no words."""
    if len(entries) < 2:
        return Markup("")
    parts = [Markup("<span>{} {}</span>").format(_key(entry), entry.label) for entry in entries[:MOST_ENTRIES]]
    more += max(0, len(entries) - MOST_ENTRIES)
    if more:
        parts.append(Markup("<span>and {} more, in the table</span>").format(more))
    return Markup('<p class="legend marks">') + Markup("\n").join(parts) + Markup("</p>")


def _key(entry: Entry) -> Markup:
    if entry.number:
        return Markup("<b>{}</b>").format(entry.number)
    color = VARIABLES[entry.color]
    if entry.marker:
        return Markup('<i style="color: {}">{}</i>').format(color, GLYPHS[entry.marker])
    return Markup('<i class="{}" style="--k: {}"></i>').format("dashes" if entry.dashed else "line", color)


def _inlined(svg: str, label: str) -> Markup:
    """Return matplotlib's file as an element of a page: no declarations, the page's colours and letters."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(
        r'<svg [^>]*?viewBox="([^"]+)"[^>]*>',
        lambda m: f'<svg viewBox="{m[1]}" role="img" aria-label="{escape(label)}">',
        svg,
        count=1,
    )
    for color, variable in VARIABLES.items():
        svg = svg.replace(color, variable)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    prefix = "f" + re.sub(r"\W", "", label.title())[:24]  # ids are the page's, too
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\1{prefix}-", svg)
    return Markup(re.sub(r"\n\s*", "\n", svg))
