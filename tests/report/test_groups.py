"""Cells of a table by level: the rows that trained, and levels that the table holds as text."""

from typing import Any

import pytest

from skytune.report.findings import groups, number_in, same_level, sentences


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
    from skytune.experiment.table import frame, records

    for levels in ([48, 96, "all"], [1, 0.5], [1, 0.5, "x"], [True, False], ["a", "b"], [True, 1, "x"], [1e-4, 2e-4]):
        table = records(frame([{"factor_x": level} for level in levels]))
        assert [same_level(row["factor_x"]) for row in table] == [same_level(level) for level in levels], levels
        assert len({same_level(level) for level in levels}) == len(levels)
