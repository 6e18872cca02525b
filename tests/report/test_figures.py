"""What the figures of an experiment draw."""

import pytest


@pytest.mark.parametrize(("mean", "width"), [(0.65, 1.8), (0.05, 0.2), (0.98, 0.05), (0.5, 0.1)])
def test_the_interval_of_a_share_ends_at_0_and_1(mean: float, width: float) -> None:
    figures = pytest.importorskip("skytune.report.figures")
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    figures._bars(axes, [1.0, 2.0], [mean, 0.5], [width, None], 0)
    (bar,) = [segment for line in axes.collections for segment in line.get_segments()]
    low, high = bar[:, 1]
    assert low == pytest.approx(max(0.0, mean - width)) and high == pytest.approx(min(1.0, mean + width))
