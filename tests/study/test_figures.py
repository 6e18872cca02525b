"""What the figures of an experiment draw: the lines that they speak of, marks that differ, names as they are."""

from collections.abc import Callable
from typing import Any

import pytest

from skytune.study.insights import Group, groups

figures = pytest.importorskip("skytune.study.figures")

MACHINES = (
    ("g4dn.xlarge", "T4", 1, 190.0, 0.526),
    ("g5.xlarge", "A10G", 1, 450.0, 1.006),
    ("g5.12xlarge", "A10G", 4, 1500.0, 5.672),
    ("p4d.24xlarge", "A100", 8, 6000.0, 21.96),
    ("p4d.24xlarge x 2", "A100", 16, 9000.0, 43.92),
)


def cell(**known: Any) -> dict[str, Any]:
    return {
        "status": "done",
        "seed": 1,
        "devices": 1,
        "accelerator": "T4",
        "accuracy": 0.8,
        "total_s": 10.0,
        "usd_total": 1.0,
        "samples_per_s": 10.0,
        "global_batch": 32,
        **known,
    }


def instances() -> list[Group]:
    """Three sizes of data on machines with 1, 1 and 4, 8 and 16 devices."""
    rows = []
    for n in (10_000, 50_000, 67_000):
        for machine, kind, devices, rate, usd in MACHINES:
            seconds = 300 + 3 * n / rate
            rows.append(
                cell(
                    factor_rows=n,
                    factor_compute=machine,
                    accelerator=kind,
                    devices=devices,
                    total_s=seconds,
                    samples_per_s=rate,
                    usd_total=seconds / 3600 * usd,
                    accuracy=0.8 + n / 1e6,
                )
            )
    return groups(rows)


@pytest.fixture
def sketches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Figures are drawn as ever, and what lies on them is kept."""
    kept: list[Any] = []
    drawn = figures.drawn

    def keep(label: str, draw: Callable[[Any], None]) -> Any:
        def both(sketch: Any) -> None:
            draw(sketch)
            kept.append(sketch)

        return drawn(label, both)

    monkeypatch.setattr(figures, "drawn", keep)
    return kept


def lines(sketch: Any, style: str) -> list[list[tuple[float, float]]]:
    """Return the lines on the axes: `-`, `--` or `None` for points."""
    return [
        [(float(x), float(y)) for x, y in line.get_xydata()]
        for line in sketch.axes.lines
        if line.get_linestyle() == style
    ]


@pytest.mark.parametrize(("mean", "width"), [(0.65, 1.8), (0.05, 0.2), (0.98, 0.05), (0.5, 0.1)])
def test_the_interval_of_a_share_ends_at_0_and_1(mean: float, width: float) -> None:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    figures.Sketch(axes).bars([(1.0, mean), (2.0, 0.5)], [width, None], 0)
    (bar,) = [segment for line in axes.collections for segment in line.get_segments()]
    low, high = bar[:, 1]
    assert low == pytest.approx(max(0.0, mean - width)) and high == pytest.approx(min(1.0, mean + width))


def test_the_pareto_line_goes_through_what_nothing_beats_and_no_other(sketches: list[Any]) -> None:
    known = ((1.0, 0.5), (2.0, 0.4), (3.0, 0.7), (4.0, 0.6), (5.0, 0.9))
    found = groups([cell(factor_lr=i, usd_total=usd, accuracy=share) for i, (usd, share) in enumerate(known)])
    svg = figures.quality_against(found, "usd_total")
    (front,) = lines(sketches[0], "-")
    assert front == [(1, 0.5), (3, 0.5), (3, 0.7), (5, 0.7), (5, 0.9)], "each holds until the next"
    assert "stroke: var(--ink)" in svg and "Pareto front" in svg
    assert [entry.label for entry in sketches[0].legend if entry.number] == ["lr 0", "lr 2", "lr 4"]


def test_lines_of_the_same_work_join_what_nothing_beats_in_both(sketches: list[Any]) -> None:
    known = ((1.0, 40.0), (2.0, 30.0), (3.0, 35.0), (4.0, 10.0))
    found = groups([cell(factor_processes=i, total_s=s, usd_total=usd) for i, (s, usd) in enumerate(known)])
    assert figures.time_against_cost(found) is not None
    assert lines(sketches[0], "-") == [[(1, 40), (2, 30), (4, 10)]]


def test_speed_up_is_over_devices_with_an_ideal_from_each_lines_fewest(sketches: list[Any]) -> None:
    svg = figures.speedup(instances())
    assert sorted(lines(sketches[0], "--")) == [[(1, 1), (4, 4)], [(8, 1), (16, 2)]]
    assert {tuple(line) for line in lines(sketches[0], "-")} == {((1, 1), (4, 1500 / 450)), ((8, 1), (16, 1.5))}, (
        "absolute devices"
    )
    assert [text.get_text() for text in sketches[0].axes.get_xticklabels()] == ["1", "4", "8", "16"]
    assert "stroke-dasharray" in svg


def test_machines_are_told_apart_and_work_is_numbered(sketches: list[Any]) -> None:
    svg = figures.time_against_cost(instances())
    entries = sketches[0].legend
    marks = {entry.label: (entry.color, entry.marker) for entry in entries if entry.marker}
    assert list(marks) == [machine for machine, *_ in MACHINES] and len(set(marks.values())) == len(MACHINES)
    numbered = [(entry.number, entry.label) for entry in entries if entry.number]
    assert numbered == [(1, "rows 10,000"), (2, "rows 50,000"), (3, "rows 67,000")]
    assert all(f"<b>{number}</b> {label}" in svg for number, label in numbered)
    assert len(lines(sketches[0], "-")) == 3


def test_notes_never_overlap(sketches: list[Any]) -> None:
    known = [cell(factor_lr=i, usd_total=1 + i / 1000, accuracy=0.8 + i / 1e6) for i in range(9)] + [
        cell(factor_lr=9, usd_total=3, accuracy=0.9)
    ]
    assert figures.quality_against(groups(known), "usd_total") is not None
    boxes = [text.get_window_extent() for text in sketches[0].axes.texts]
    assert len(boxes) > 4 and not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


@pytest.mark.parametrize("name", ["$a_$", r"$\frac{1$", "_x", "<b>&\"'", "n" * 300])
def test_names_are_shown_as_they_are(name: str) -> None:
    from markupsafe import escape

    rows = [
        cell(
            factor_lr=level,
            factor_processes=p,
            total_s=20.0 + i,
            accuracy=0.8 + 0.01 * i,
            usd_total=1 + i * p,
            devices=p,
            samples_per_s=10.0 * p,
            global_batch=32 * p,
        )
        for i, level in enumerate((name, "b"))
        for p in (1, 2)
    ]
    found = groups(rows)
    for svg in (
        figures.time_against_cost(found),
        figures.quality_against(found, "usd_total"),
        figures.speedup(found),
        figures.quality_over(found, "global_batch", name),
    ):
        assert svg is not None and escape(name) in svg


def test_what_a_figure_has_no_room_for_is_counted() -> None:
    rows = [cell(factor_model=f"m{i}", factor_rows=n, accuracy=0.8 + n / 1e4) for i in range(11) for n in (100, 200)]
    svg = figures.quality_over(groups(rows), "rows", "rows")
    assert svg is not None and svg.count("<i ") == figures.MOST_LINES and "and 3 more, in the table" in svg


def test_many_lines_of_one_kind_leave_room_for_another(sketches: list[Any]) -> None:
    rows = [
        cell(factor_rows=n, factor_compute=f"{kind} x {d}", accelerator=kind, devices=d, samples_per_s=9.0 * d)
        for kind in ("A10G", "A100")
        for n in range(100, 120)
        for d in (1, 2)
    ]
    svg = figures.speedup(groups(rows))
    kinds = [entry.label.split(",")[0] for entry in sketches[0].legend if entry.marker]
    assert kinds == ["A10G", "A100"] * 4 and "and 32 more, in the table" in svg
