"""Charts as inline SVG: no script, no font, no image; colours come from the page's style sheet, so dark mode works."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from .text import is_number, number, percent, tick

WIDTH, HEIGHT = 460, 250
LEFT, RIGHT, TOP, BOTTOM = 50, 14, 12, 36
SMOOTH_FROM = 60
MOST_POINTS = 400


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    name: str
    """Shown in the legend and in tooltips."""

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
    """Return a chart of lines over optimizer steps.

    Args:
        series: the lines; at least one value that is a number, or the chart says that there is none.
        label: what the chart shows, for screen readers.
        zero: start the axis at 0.
        mark: step that gets a dashed line (the selected weights).
    """
    points = [(x, y) for line in series for x, y in zip(line.x, line.y, strict=True) if is_number(y)]
    if not points:
        return _svg(
            label,
            [
                Markup('<text x="{}" y="{}" class="tick" text-anchor="middle">no values</text>').format(
                    WIDTH / 2, HEIGHT / 2
                )
            ],
        )
    xs, ys = [p[0] for p in points], [float(p[1]) for p in points if p[1] is not None]
    x_ticks, y_ticks = ticks(min(0.0, min(xs)), max(xs), 5, whole=True), ticks(0 if zero else min(ys), max(ys), 5)
    x_low, x_high = min(0.0, min(xs)), max(max(xs), 1)
    y_low, y_high = min(y_ticks[0], min(ys)), max(y_ticks[-1], max(ys))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / (x_high - x_low)
        up = (y - y_low) / (y_high - y_low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = _axes(place, x_ticks, y_ticks, x_low, "optimizer step")
    if mark is not None and x_low <= mark <= x_high:
        x, _ = place(mark, y_low)
        parts.append(
            Markup(
                '<line class="mark" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"><title>selected weights: '
                "step {3:.0f}</title></line>"
            ).format(x, TOP, HEIGHT - BOTTOM, mark)
        )
    for line in series:
        x_values, y_values = _thinned(line.x, line.y)
        if line.smooth and len(x_values) > SMOOTH_FROM:
            parts.append(_path(x_values, y_values, place, f"line s{line.color} faint"))
            parts.append(_path(x_values, moving_average(y_values), place, f"line s{line.color}"))
        else:
            parts.append(_path(x_values, y_values, place, f"line s{line.color}"))
        alone = sum(map(is_number, y_values)) == 1
        for x, y in zip(x_values, y_values, strict=True):
            if y is not None and is_number(y):
                across, up = place(x, y)
                seen = "dot" if line.dots or alone else "dot hidden"
                parts.append(
                    Markup(
                        '<circle class="{} s{}" cx="{:.1f}" cy="{:.1f}" r="4"><title>{} at step {:.0f}: {}'
                        "</title></circle>"
                    ).format(seen, line.color, across, up, line.name, x, number(y, 4))
                )
    return _svg(label, parts)


def reliability_chart(bins: Sequence[dict[str, Any]]) -> Markup:
    """Return the reliability diagram of `evaluation.calibration`: accuracy over confidence, and rows below."""
    floor, strip = 172, 34  # the diagram's lower edge, and the height of the strip with the rows of each bin

    def place(x: float, y: float) -> tuple[float, float]:
        return LEFT + x * (WIDTH - LEFT - RIGHT), floor - y * (floor - TOP)

    parts = []
    for value in (0, 0.25, 0.5, 0.75, 1):
        x, y = place(value, value)
        parts.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(LEFT, WIDTH - RIGHT, y, y)
        )
        parts.append(
            Markup('<text class="tick" text-anchor="end" x="{}" y="{:.1f}">{:g}</text>').format(LEFT - 6, y + 4, value)
        )
        parts.append(
            Markup('<text class="tick" text-anchor="middle" x="{:.1f}" y="{}">{:g}</text>').format(
                x, HEIGHT - 20, value
            )
        )
    most = max((found["rows"] for found in bins), default=0) or 1
    for found in bins:
        if not found["rows"]:
            continue
        left, _ = place(found["low"], 0)
        right, _ = place(found["high"], 0)
        _, top = place(0, found["accuracy"])
        _, sure = place(0, found["confidence"])
        tall = strip * found["rows"] / most
        note = (
            f"confidence {percent(found['low'], 0)} to {percent(found['high'], 0)}: {found['rows']:,} rows, mean "
            f"confidence {percent(found['confidence'])}, accuracy {percent(found['accuracy'])}"
        )
        box = '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>'
        parts.append(
            Markup("<g><title>{}</title>{}{}{}</g>").format(
                note,
                Markup(box).format("bar s1", left + 1, top, right - left - 2, max(0.0, floor - top)),
                Markup(box).format("bar rows", left + 1, floor + 4 + strip - tall, right - left - 2, tall),
                Markup('<line class="sure s2" x1="{0:.1f}" x2="{1:.1f}" y1="{2:.1f}" y2="{2:.1f}"/>').format(
                    left + 1, right - 1, sure
                ),
            )
        )
    start, end = place(0, 0), place(1, 1)
    parts.append(Markup('<line class="mark" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(*start, *end))
    parts.append(
        Markup('<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(LEFT, WIDTH - RIGHT, floor, floor)
    )
    parts.append(
        Markup('<text class="tick" text-anchor="end" x="{}" y="{}">rows</text>').format(LEFT - 6, floor + strip)
    )
    parts.append(_x_label("confidence (probability of the predicted class)"))
    return _svg("Reliability diagram: accuracy over confidence", parts)


def ticks(low: float, high: float, count: int, whole: bool = False) -> list[float]:
    """Return about `count` round numbers that enclose [low, high]; whole numbers alone if `whole`."""
    if not high > low:
        room = abs(low) * 0.1 or 1.0
        low, high = (low, low + 1) if whole else (low - room, low + room)
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    if whole:
        step = max(1.0, math.ceil(step))
    first = math.floor(low / step + 1e-9)
    last = math.floor(high / step + 1e-9) if whole else math.ceil(high / step - 1e-9)
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]


def moving_average(values: Sequence[float | None], keep: float = 0.9) -> list[float | None]:
    """Return the exponential moving average, corrected for its start (as Adam's moments are, Kingma and Ba 2015)."""
    smooth: list[float | None] = []
    total = weight = 0.0
    for value in values:
        if value is not None and is_number(value):
            total, weight = keep * total + (1 - keep) * value, keep * weight + (1 - keep)
            smooth.append(total / weight)
        else:
            smooth.append(None)
    return smooth


def _thinned(xs: Sequence[float], ys: Sequence[float | None]) -> tuple[list[float], list[float | None]]:
    """Return at most `MOST_POINTS` points: means of neighbours where there are more, so that the page stays small."""
    group = math.ceil(len(xs) / MOST_POINTS)
    if group <= 1:
        return list(xs), list(ys)
    thin_x: list[float] = []
    thin_y: list[float | None] = []
    for start in range(0, len(xs), group):
        values = [y for y in ys[start : start + group] if y is not None and is_number(y)]
        thin_x.append(sum(xs[start : start + group]) / len(xs[start : start + group]))
        thin_y.append(sum(values) / len(values) if values else None)
    return thin_x, thin_y


def _path(xs: Sequence[float], ys: Sequence[float | None], place: Any, kind: str) -> Markup:
    commands, pen_down = [], False
    for x, y in zip(xs, ys, strict=True):
        if not is_number(y):
            pen_down = False
            continue
        across, up = place(x, y)
        commands.append(f"{'L' if pen_down else 'M'}{across:.1f} {up:.1f}")
        pen_down = True
    return Markup('<path class="{}" d="{}"/>').format(kind, "".join(commands))


def _axes(place: Any, x_ticks: list[float], y_ticks: list[float], x_low: float, x_label: str) -> list[Markup]:
    parts = []
    y_step = y_ticks[1] - y_ticks[0] if len(y_ticks) > 1 else 1.0
    for value in y_ticks:
        _, y = place(x_low, value)
        kind = "axis" if value == y_ticks[0] else "grid"
        parts.append(
            Markup('<line class="{}" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(kind, LEFT, WIDTH - RIGHT, y, y)
        )
        parts.append(
            Markup('<text class="tick" text-anchor="end" x="{}" y="{:.1f}">{}</text>').format(
                LEFT - 6, y + 4, tick(value, y_step)
            )
        )
    for value in x_ticks:
        x, _ = place(value, y_ticks[0])
        parts.append(
            Markup('<text class="tick" text-anchor="middle" x="{:.1f}" y="{}">{}</text>').format(
                x, HEIGHT - BOTTOM + 16, tick(value, 1)
            )
        )
    parts.append(_x_label(x_label))
    return parts


def _x_label(text: str) -> Markup:
    return Markup('<text class="tick" text-anchor="middle" x="{}" y="{}">{}</text>').format(
        LEFT + (WIDTH - LEFT - RIGHT) / 2, HEIGHT - 4, text
    )


def _svg(label: str, parts: Sequence[Markup]) -> Markup:
    head = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, HEIGHT, label)
    return head + Markup("").join(escape(part) for part in parts) + Markup("</svg>")
