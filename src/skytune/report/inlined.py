"""A matplotlib figure as an element of a page: SVG with the page's colours and letters."""

import io
import re
from collections.abc import Callable
from typing import Any

from markupsafe import Markup

SERIES = ("#2a78d6", "#d9541e", "#16805f", "#8a4fd0", "#a07800")
"""Drawn in these; the page's variables take their place."""

INK, MUTED, GRID, SURFACE = "#14140f", "#6f6e68", "#e6e5e0", "#fffffe"
VARIABLES = {**{color: f"var(--s{i})" for i, color in enumerate(SERIES, 1)}, INK: "var(--ink)", MUTED: "var(--muted)",
             GRID: "var(--grid)", SURFACE: "var(--surface)"}  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P")

WIDE, TALL, LINE = 6.4, 3.4, 0.23
"""Inches; 460 pixels across at 72 an inch: letters of 12 pixels are as large as the page's. Every line of the legend
makes a figure taller."""


def drawn(label: str, draw: Callable[[Any], None]) -> Markup:
    """Return a figure of one pair of axes, on which `draw` draws; its legend stands below."""
    import matplotlib
    from matplotlib.figure import Figure

    settings = {
        "svg.fonttype": "none", "svg.hashsalt": label, "font.size": 12, "font.family": "sans-serif",
        "axes.edgecolor": GRID, "axes.labelcolor": MUTED, "axes.grid": True, "grid.color": GRID, "text.color": INK,
        "xtick.color": MUTED, "ytick.color": MUTED, "axes.spines.top": False, "axes.spines.right": False,
        "legend.frameon": False, "legend.fontsize": 11, "axes.axisbelow": True,
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(WIDE, TALL), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        draw(axes)
        handles, labels = axes.get_legend_handles_labels()
        if 1 < len(labels) <= 8:
            columns = 1 if max(map(len, labels)) > 28 else 2 if max(map(len, labels)) > 14 else 3
            figure.set_size_inches(WIDE, TALL + LINE * -(-len(labels) // columns))
            figure.legend(handles, labels, loc="outside lower center", ncols=columns)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return _inlined(out.getvalue(), label)


def _inlined(svg: str, label: str) -> Markup:
    """Return matplotlib's file as an element of a page: no declarations, the page's colours and letters."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'<svg [^>]*?viewBox="([^"]+)"[^>]*>',
                 lambda m: f'<svg viewBox="{m[1]}" role="img" aria-label="{label}">', svg, count=1)  # fmt: skip
    for color, variable in VARIABLES.items():
        svg = svg.replace(color, variable)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    prefix = "f" + re.sub(r"\W", "", label.title())[:24]  # ids are the page's, too
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\1{prefix}-", svg)
    return Markup(re.sub(r"\n\s*", "\n", svg))
