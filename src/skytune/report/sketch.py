"""What a figure is made of: points, lines, intervals, a legend, and notes that keep clear of each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from .placing import Box, Note, place

SERIES = ("#2a78d6", "#d9541e", "#16805f", "#8a4fd0", "#a07800")
"""Drawn in these; the page's variables take their place."""

INK, MUTED, GRID, SURFACE = "#14140f", "#6f6e68", "#e6e5e0", "#fffffe"
MARKERS = ("o", "s", "^", "D", "v", "P")
"""One more than there are colours, so that thirty series differ in one or the other."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Entry:
    """A mark and what it means."""

    label: str
    color: str = INK
    marker: str = ""
    """Of `MARKERS`; a line without."""

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
        if (point, what) not in [(other, said) for other, said, _ in self._notes]:
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
        """Write the notes, once it is known where everything lies. What finds no room is left out."""
        on_screen = self.axes.transData.transform
        self._notes.sort(key=lambda note: -note[0][1])  # from above, so that notes stand in the order of their points
        made = [
            self.axes.annotate(what, point, xytext=(0, 0), textcoords="offset points", fontsize=10, color=color)
            for point, what, color in self._notes
        ]
        notes = []
        for text, (point, _, _) in zip(made, self._notes, strict=True):
            extent = text.get_window_extent()
            notes.append(Note(tuple(on_screen(point)), extent.width, extent.height))
        area = Box(*self.axes.get_window_extent().extents)
        points = [tuple(on_screen(point)) for point in self._points]
        lines = [[tuple(on_screen(point)) for point in line] for line in self._lines]
        for text, note, corner in zip(made, notes, place(notes, area, points, lines), strict=True):
            text.set_in_layout(False)  # else the axes would move once more
            if corner is None:
                text.remove()
            else:
                text.set_position((corner[0] - note.point[0], corner[1] - note.point[1]))

    def _entry(self, entry: Entry) -> None:
        if entry.label and entry not in self.legend:
            self.legend.append(entry)


def style(index: int) -> tuple[str, str]:
    """Return colour and marker of a series."""
    return SERIES[index % len(SERIES)], MARKERS[index % len(MARKERS)]


def _columns(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
