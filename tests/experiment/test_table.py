"""The table: documented columns, units in the names, the same out of parquet and csv."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from skytune.config import RunConfig
from skytune.experiment.results import in_numbers, summary
from skytune.experiment.table import COLUMNS, CSV, PARQUET, README, frame, records, write_table

ROWS: list[dict[str, Any]] = [
    {
        "experiment": "e",
        "cell": "a",
        "status": "done",
        "seed": 1,
        "total_s": 2.5,
        "usd_total": None,
        "accuracy": 0.5,
        "factor_rows": 100,
        "factor_model": "m,1",
        "factor_on": True,
        "unknown": 5,
    },
    {
        "experiment": "e",
        "cell": "b",
        "status": "failed",
        "reason": 'said "no",\nand more',
        "seed": 2,
        "factor_rows": "all",
        "factor_model": "m2",
        "factor_on": False,
    },
]


def test_all_columns_are_there_and_missing_is_missing() -> None:
    table = frame(ROWS)
    assert list(table.columns) == [*COLUMNS, "factor_rows", "factor_model", "factor_on"]
    assert table["usd_total"].isna().all() and str(table["seed"].dtype) == "Int64"
    found = records(table)
    assert found[0]["total_s"] == 2.5 and found[0]["usd_total"] is None and found[0]["factor_on"] is True
    assert [row["factor_rows"] for row in found] == ["100", "all"], "mixed levels are text"


def test_parquet_and_csv_hold_the_same(tmp_path: Path) -> None:
    table = frame(ROWS)
    write_table(table, tmp_path)
    again = pd.read_parquet(tmp_path / PARQUET)
    pd.testing.assert_frame_equal(again, table)
    text = pd.read_csv(tmp_path / CSV)
    assert list(text.columns) == list(table.columns)
    assert text["reason"][1] == ROWS[1]["reason"] and text["accuracy"][0] == 0.5
    columns = (tmp_path / README).read_text()
    assert len(COLUMNS) > 40 and all(f"| `{name}` |" in columns for name in COLUMNS)
    assert columns.count("\n| `") == len(COLUMNS) + 1, "every line but that of the factors is a column"


def test_units_stand_in_the_names() -> None:
    for name, (kind, origin, meaning) in COLUMNS.items():
        assert kind in ("text", "int", "float") and origin in ("design", "measured", "computed") and len(meaning) > 8
        if "seconds" in meaning.split(";")[0].split(",")[0]:
            assert name.endswith("_s"), name
        if meaning.startswith(("price", "usd_total", "what all attempts")) and kind == "float":
            assert name.startswith("usd_"), name


def test_a_table_in_numbers_leaves_out_what_is_unknown() -> None:
    assert in_numbers(frame(ROWS)) == {"cells": 2, "done": 1, "failed": 1, "stopped": 0}
    paid = [{**ROWS[0], "usd_total": 0.25}, ROWS[1]]
    assert in_numbers(frame(paid)) == {"cells": 2, "done": 1, "failed": 1, "stopped": 0, "usd": 0.25}
    assert in_numbers(frame([])) == {"cells": 0, "done": 0, "failed": 0, "stopped": 0}


def test_a_summary_of_cells_that_cost_nobody_knows_what(design: Callable[..., RunConfig]) -> None:
    text = summary(design(factors={"rows": [1]}), frame(ROWS))
    assert "n/a (no price known)" in text and "benchmark.retry_failed=true" in text
    assert "rows 100, model m,1, on True, seed 1" in text
