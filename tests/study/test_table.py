"""The table: documented columns, units in the names, the same out of parquet and csv."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from skytune.config import RunConfig
from skytune.config.folders import home
from skytune.study import run_experiment
from skytune.study.results import in_numbers, summary
from skytune.study.table import COLUMNS, CSV, PARQUET, README, frame, mfu_of, records, steady_rate, write_table

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
    assert "n/a (no price known)" in text and "study.retry_failed=true" in text
    assert "rows 100, model m,1, on True, seed 1" in text


Design = Callable[..., RunConfig]


def test_every_second_is_somewhere(design: Design, prices: Any, recorded: Any) -> None:
    """The recorded job: 5 s to start, 2 s to load, 0.32 s of training (32 rows at 100 a second), 1 s of validating, 1 s
    of predicting, 0.5 s of saving; the machine was paid for 60 s of provisioning, 100 s of setup, 30 s of the job."""
    phases = {"provision_s": 60.0, "setup_s": 100.0, "job_s": 30.0}
    attempts = [{"phases": phases, "hourly_usd": 3.6, "nodes": 1, "ended": "done"}]
    config = design(factors={"compute": ["g5.xlarge"], "rows": [32]}, max_usd=9.0)
    row = run_experiment(config, lambda machine: recorded(machine, attempts), prices)[0]
    assert row["total_s"] == 190.0 and row["usd_total"] == pytest.approx(0.19)
    spans = {name: row[name] for name in ("provision_s", "setup_s", "train_s", "evaluate_s", "save_s", "idle_s")}
    assert spans == {
        "provision_s": 60.0,
        "setup_s": 107.0,
        "train_s": 0.32,
        "evaluate_s": 2.0,
        "save_s": 0.5,
        "idle_s": 20.18,
    }
    assert sum(spans.values()) == pytest.approx(row["total_s"])
    assert row["usd_per_1000_samples"] == pytest.approx(0.19 / 32 * 1000)
    points = 100 * (row["accuracy"] - row["baseline_accuracy"])
    assert row["usd_per_accuracy_point"] == pytest.approx(0.19 / points, rel=1e-4)


def test_the_steady_rate_leaves_the_first_fifth_out() -> None:
    slow = [{"kind": "step", "step": n, "rows": 10 * n, "elapsed_s": 5.0 * n} for n in (1, 2)]
    fast = [{"kind": "step", "step": n, "rows": 10 * n, "elapsed_s": 10.0 + 0.1 * (n - 2)} for n in range(3, 11)]
    assert steady_rate([*slow, {"kind": "validation"}, *fast]) == pytest.approx(80 / 0.8)
    assert steady_rate(slow) is None


def test_utilization_is_of_all_devices() -> None:
    result = {"train_flops": 1000.0, "train_rows": 10, "peak_flops": 500.0, "mfu": 0.9}
    assert mfu_of({**result, "world_size": 1}, 4.0) == pytest.approx(0.8)
    assert mfu_of({**result, "world_size": 4}, 4.0) == pytest.approx(0.2)
    assert mfu_of({**result, "peak_flops": None}, 4.0) == 0.9, "as the job says where the peak is unknown"


@pytest.mark.parametrize("keep", [True, False])
def test_weights_are_kept_only_on_demand(design: Design, prices: Any, recorded: Any, keep: bool) -> None:
    class Leaves(recorded):  # type: ignore[misc]
        def _leave(self, job: Any) -> None:
            super()._leave(job)
            job.model.mkdir(parents=True)
            (job.model / "model.safetensors").write_bytes(b"weights")

    row = run_experiment(design(factors={"rows": [32]}, keep_models=keep), Leaves, prices)[0]
    assert (home() / row["job"] / "outputs" / "model" / "model.safetensors").is_file() is keep
