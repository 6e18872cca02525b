import math
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from skytune.report.plots import (
    HEIGHT,
    MOST_POINTS,
    WIDTH,
    Series,
    line_chart,
    moving_average,
    reliability_chart,
    ticks,
)

numbers = st.floats(-1e6, 1e6, allow_nan=False)


@settings(max_examples=200, deadline=None)
@given(numbers, numbers, st.booleans())
def test_ticks_enclose_and_are_few(a: float, b: float, whole: bool) -> None:
    low, high = min(a, b), max(a, b)
    found = ticks(low, high, 5, whole)
    room = 1e-6 * max(1.0, abs(low), abs(high))
    assert found == sorted(set(found)) and 1 <= len(found) <= 8
    assert found[0] <= low + room
    if whole:
        assert all(value == int(value) for value in found)
    elif high - low > 1e-6 * abs(high):
        assert found[-1] >= high - room


@settings(max_examples=80, deadline=None)
@given(st.lists(st.one_of(st.none(), st.just(math.nan), numbers), max_size=300), st.booleans(), st.booleans())
def test_lines_stay_inside_the_chart(values: list[float | None], zero: bool, smooth: bool) -> None:
    svg = str(line_chart([Series("loss", range(1, len(values) + 1), values, smooth=smooth)], "x", zero=zero, mark=3))
    assert svg.startswith("<svg") and svg.endswith("</svg>") and "nan" not in svg
    for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", svg):
        assert 0 <= float(x) <= WIDTH
        if not zero or all(v is None or not math.isfinite(v) or v >= 0 for v in values):
            assert -1 <= float(y) <= HEIGHT


def test_a_gap_breaks_the_line() -> None:
    svg = line_chart([Series("a", [1, 2, 3, 4], [1.0, 2.0, math.nan, 3.0])], "x")
    assert re.search(r'd="M[^"]*L[^"]*M[^"L]*"', svg)


def test_names_are_escaped() -> None:
    svg = line_chart([Series("<script>", [1], [1.0])], '"><script>')
    assert "<script" not in svg and "&lt;script&gt;" in svg


def test_long_runs_stay_small() -> None:
    count = 200_000
    svg = line_chart([Series("loss", range(count), [1 / (1 + i) for i in range(count)])], "x")
    assert len(re.findall("[ML]", svg)) <= MOST_POINTS + 2 and len(svg) < 120_000


def test_moving_average() -> None:
    assert moving_average([2.0] * 5) == [2.0] * 5 or all(abs(v - 2) < 1e-12 for v in moving_average([2.0] * 5) if v)
    assert moving_average([1.0, None, 3.0])[1] is None


def test_no_bin_has_rows() -> None:
    svg = reliability_chart([{"low": 0.0, "high": 1.0, "rows": 0, "accuracy": None, "confidence": None}])
    assert "bar" not in svg and svg.endswith("</svg>")
