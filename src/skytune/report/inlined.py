"""A matplotlib figure as an element of a page: SVG with the page's colours and letters, and its legend as text of the
page, which wraps where the page is narrow."""

import io
import re
from collections.abc import Callable, Sequence

from markupsafe import Markup, escape

from .sketch import GRID, INK, MUTED, SERIES, SURFACE, Entry, Sketch

VARIABLES = {
    **{color: f"var(--s{i})" for i, color in enumerate(SERIES, 1)},
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    SURFACE: "var(--surface)",
}

GLYPHS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "P": "✚"}
"""Markers as letters, for the legend."""

WIDE, TALL = 6.4, 3.4
"""Inches; 460 pixels across at 72 an inch: letters of 12 pixels are as large as the page's."""

MOST_ENTRIES = 16
"""Of a legend; the table of the page has the others."""


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
