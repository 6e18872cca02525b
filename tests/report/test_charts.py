"""Charts of a run: what they draw, and that a page can hold them."""

import math
import re
from typing import Any

import pytest

pytest.importorskip("matplotlib")
from skytune.report.charts import MOST_POINTS, Series, Sketch, line_chart, moving_average, reliability_chart


def vertices(svg: str, color: str) -> list[str]:
    """Return the commands of the lines in a colour."""
    return re.findall(rf'<path d="([^"]+)"[^>]*stroke: var\({color}\)', svg)


def test_a_gap_breaks_the_line() -> None:
    for gap in (None, math.nan):
        svg = str(line_chart([Series("a", [1, 2, 3, 4, 5], [1.0, 2.0, gap, 3.0, 2.0])], "x"))
        (line,) = vertices(svg, "--s1")
        assert line.count("M") == 2 and line.count("L") == 2 and "nan" not in svg


@pytest.mark.parametrize("values", [[], [None], [math.nan, None], [5.0], [3.0, 3.0], [-1e6, 1e6], [1e-9, 2e-9]])
def test_whatever_was_recorded_can_be_drawn(values: list[float | None]) -> None:
    for zero in (False, True):
        series = [Series("loss", range(1, len(values) + 1), values, smooth=True)]
        svg = line_chart(series, "x", zero=zero, mark=3)
        assert svg.startswith("<svg") and svg.strip().endswith("</svg>") and "nan" not in svg


def test_names_are_escaped_and_colours_are_the_pages() -> None:
    svg = line_chart([Series("a", [1, 2], [1.0, 2.0], 2, dots=True)], '"><script>')
    assert "<script" not in svg and "&lt;script&gt;" in svg
    assert "var(--s2)" in svg and "#d9541e" not in svg and "http://www.w3.org" not in svg.replace("xlink", "")


def test_long_runs_stay_small() -> None:
    count = 200_000
    svg = line_chart([Series("loss", range(count), [math.sin(i) for i in range(count)])], "x")
    assert sum(len(re.findall("[ML]", line)) for line in vertices(svg, "--s1")) <= MOST_POINTS + 2
    assert len(svg) < 60_000


def test_a_long_noisy_line_is_drawn_faintly_with_its_average_over_it() -> None:
    svg = line_chart([Series("loss", range(100), [float(i % 2) for i in range(100)], smooth=True)], "x")
    assert len(vertices(svg, "--s1")) == 2 and "opacity: 0.28" in svg
    assert moving_average([2.0] * 5) == pytest.approx([2.0] * 5)
    assert math.isnan(moving_average([1.0, math.nan, 3.0])[1])


def test_reliability() -> None:
    empty = {"low": 0.0, "high": 0.5, "rows": 0, "accuracy": None, "confidence": None}
    full = {"low": 0.5, "high": 1.0, "rows": 3, "accuracy": 0.9, "confidence": 0.7}
    one, none = (str(reliability_chart(bins)).count("var(--s1)") for bins in ([empty, full], [empty]))
    assert (one, none) == (1, 0)


def notes(sketch: Sketch) -> list[Any]:
    sketch.axes.figure.draw_without_rendering()
    sketch.place_notes()
    return [text.get_window_extent() for text in sketch.axes.texts]


@pytest.fixture
def sketch() -> Sketch:
    from matplotlib.figure import Figure

    axes = Figure(figsize=(6.4, 3.4), dpi=72).subplots()
    axes.set(xlim=(0, 100), ylim=(0, 100))
    return Sketch(axes)


def test_a_note_gets_out_of_the_way_of_points_and_lines(sketch: Sketch) -> None:
    sketch.points([(50, 50)], 0)
    sketch.note((50, 50), "note")
    sketch.line([(0, 55), (100, 55)], "#000000")
    x, y = sketch.axes.transData.transform((50, 50))
    _, line = sketch.axes.transData.transform((50, 55))
    (box,) = notes(sketch)
    assert not box.contains(x, y) and not box.y0 <= line <= box.y1


def test_a_note_that_finds_no_room_is_left_out(sketch: Sketch) -> None:
    for number in range(60):
        sketch.note((50, 50), f"note {number}")
    boxes = notes(sketch)
    assert 3 < len(boxes) < 60 and not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
