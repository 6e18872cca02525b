"""What a table says: means with intervals, the Pareto front, speed-up, diminishing returns."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skytune.study.insights import groups, number_in, pareto, same_level, scalings, sentences, varying

POINTS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=30)


def made(**levels: Any) -> dict[str, Any]:
    known = {
        name: levels.pop(name)
        for name in list(levels)
        if name
        in ("accuracy", "seed", "devices", "samples_per_s", "usd_per_1000_samples", "total_s", "status", "peak_lr")
    }
    base = {
        "status": "done",
        "seed": 1,
        "devices": 1,
        "total_s": 10.0,
        "samples_per_s": 10.0,
        "accuracy": 0.8,
        "peak_lr": 1e-4,
        "accelerator": "T4",
        "usd_total": None,
        "usd_per_1000_samples": None,
    }
    return {**base, **known, **{f"factor_{name}": level for name, level in levels.items()}}


@given(POINTS)
def test_the_front_is_what_nothing_beats(points: list[tuple[int, int]]) -> None:
    front = pareto(points)
    for index, point in enumerate(points):
        beaten = any(other[0] <= point[0] and other[1] <= point[1] and other != point for other in points)
        if index in front:
            assert not beaten
        elif points.index(point) == index:  # of equal points one stands for all
            assert beaten
    assert sorted(points[i] for i in front) == [points[i] for i in front]


def test_seeds_are_one_group_with_an_interval() -> None:
    rows = [made(rows=100, seed=seed, accuracy=value) for seed, value in enumerate((0.80, 0.82, 0.84))]
    (group,) = groups([*rows, made(rows=100, seed=4, status="failed")])
    assert group.mean("accuracy") == pytest.approx(0.82)
    # Student's t for two degrees of freedom at 97.5 % is 4.303; the standard error is 0.02 / sqrt(3).
    assert group.half_width("accuracy") == pytest.approx(4.303 * 0.02 / math.sqrt(3), rel=1e-3)
    assert groups(rows[:1])[0].half_width("accuracy") is None
    assert group.mean("usd_total") is None


def test_speed_up_is_against_the_fewest_devices_of_the_same_work() -> None:
    rates = {1: 100.0, 2: 180.0, 4: 280.0, 8: 320.0}
    rows = [made(rows=n, processes=d, devices=d, samples_per_s=rates[d]) for n in (100, 200) for d in rates]
    found = scalings(groups(rows))
    assert [series.label for series in found] == ["rows 100", "rows 200"]
    assert found[0].devices == [1, 2, 4, 8] and found[0].speedup == pytest.approx([1, 1.8, 2.8, 3.2])
    assert found[0].efficiency == pytest.approx([1, 0.9, 0.7, 0.4])
    assert sentences(groups(rows))[0] == (
        "rows 100: 8 devices are 3.20 times as fast as 1 (40 % of the ideal); returns diminish beyond 4: 8 reach less "
        "than half of the ideal."
    )


def test_rows_and_batches_are_told_with_their_noise() -> None:
    values = {100: (0.60, 0.62, 0.64), 200: (0.70, 0.72, 0.74), 800: (0.71, 0.73, 0.75)}
    rows = [
        made(rows=n, seed=i, accuracy=a, total_s=n / 10) for n, found in values.items() for i, a in enumerate(found)
    ]
    assert sentences(groups(rows)) == [
        "800 rows instead of 100 gains 11.0 points of accuracy (± 7.0, 95 %) at 8.00 times the time; returns diminish "
        "beyond 200."
    ]
    rows = [made(batch=b, accuracy=a) for b, a in ((16, 0.8), (256, 0.7))]
    assert sentences(groups(rows)) == [
        "256 as global batch instead of 16 loses 10.0 points of accuracy (one seed: noise unknown) at 1.00 times the "
        "time."
    ]


def test_what_scaling_the_learning_rate_gives_back() -> None:
    rows = [
        made(batch=b, scale_lr=rule, seed=seed, accuracy=value + 0.001 * seed, peak_lr=rate)
        for b, rule, value, rate in ((16, "none", 0.80, 1.0), (256, "none", 0.70, 1.0), (256, "sqrt", 0.78, 4.0))
        for seed in (1, 2, 3)
    ]
    told = sentences(groups(rows))
    assert "batch 256: scale_lr=sqrt gives back 8.0 points of accuracy (± 0.4, 95 %)." in told


def test_factors_of_one_level_say_nothing() -> None:
    found = varying(groups([made(rows=1, batch=16), made(rows=2, batch=16)]))
    assert [group.label for group in found] == ["rows 1", "rows 2"]


def test_nothing_comes_of_nothing() -> None:
    assert groups([]) == [] and sentences([]) == [] and scalings([]) == [] and varying([]) == []
    assert sentences(groups([made(rows=1, accuracy=None), made(rows=2, accuracy=None)])) == []


def cell(rows: Any, trained: int | None = None, **more: Any) -> dict[str, Any]:
    size = trained or number_in(rows)
    return {
        "status": "done",
        "seed": 1,
        "factor_rows": rows,
        "train_rows": trained,
        "accuracy": 0.5 + size / 10_000,
        "total_s": 10.0 + size,
        "samples_per_s": 5.0,
        "devices": 1,
        **more,
    }


def test_rows_are_those_that_trained_not_those_that_were_asked_for() -> None:
    found = groups([cell(48, 48), cell(96, 96), cell(600, 480), cell(100_000, 480), cell(100_000, 480, seed=2)])
    assert [group.levels["rows"] for group in found] == [48, 96, 480, 480]
    assert [group.count for group in found] == [1, 1, 1, 2]
    (told,) = sentences(found)
    assert told.startswith("480 rows instead of 48 gains 4.3 points") and "100,000" not in told
    fewer = groups([cell(48, 48), cell(600, 480, accuracy=0.9), *[cell(9_000, 480, seed=seed) for seed in (1, 2)]])
    assert sentences(fewer)[0].startswith("480 rows instead of 48 gains 4.3 points"), "the one with the most seeds"


def test_a_level_that_is_text_among_numbers_is_ordered_with_them() -> None:
    (told,) = sentences(groups([cell("48", 48), cell("192", 192), cell("all", 480)]))
    assert told.startswith("480 rows instead of 48 gains 4.3 points")
    unknown = groups([cell("48"), cell("192"), cell("all", trained=480, status="failed")])
    assert [group.levels["rows"] for group in unknown] == [48, 192], "also where the column is empty"
    batches = [cell(48, 48, factor_batch=level, accuracy=accuracy) for level, accuracy in (("16", 0.8), ("256", 0.7))]
    assert sentences(groups(batches))[0].startswith("256 as global batch instead of 16 loses 10.0 points")


@pytest.mark.parametrize(
    ("level", "number"),
    [
        (48, 48),
        ("48", 48),
        ("1e-4", 1e-4),
        ("0.5", 0.5),
        ("all", None),
        (None, None),
        (True, None),
        ("true", None),
        ("NaN", None),
        ("[1]", None),
        ("g5.xlarge", None),
    ],
)
def test_the_number_in_a_level(level: Any, number: float | None) -> None:
    assert number_in(level) == number


def test_a_level_of_the_design_is_that_of_the_table() -> None:
    from skytune.study.table import frame, records

    for levels in ([48, 96, "all"], [1, 0.5], [1, 0.5, "x"], [True, False], ["a", "b"], [True, 1, "x"], [1e-4, 2e-4]):
        table = records(frame([{"factor_x": level} for level in levels]))
        assert [same_level(row["factor_x"]) for row in table] == [same_level(level) for level in levels], levels
        assert len({same_level(level) for level in levels}) == len(levels)
