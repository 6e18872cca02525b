"""`pipeline=study` as a person runs it: the plan, the cells, the page, the artifacts; bad designs in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

DESIGN = "study.factors={rows: [48, 96], processes: [1]}"


@pytest.fixture(scope="module")
def bench(new_checkout: Callable[[], Any], small: list[str]) -> Any:
    """An experiment of two cells on the tiny model; its words are kept for further commands."""
    checkout = new_checkout(warm=True)
    checkout.words = [
        *small,
        "epochs=1",
        "tracker=none",
        "launch.threads=1",
        "pipeline=study",
        DESIGN,
        "study.name=two",
        "compute.usd_per_hour=3.6",
    ]
    checkout.dry = checkout.run(*checkout.words, "study.dry_run=true")
    assert not (checkout.home / "skytune" / "benchmarks").exists(), "a dry run leaves nothing"
    checkout.done = checkout.run(*checkout.words)
    assert checkout.done.code == 0, checkout.done.err
    checkout.recorded = checkout.last_run()
    checkout.folder = checkout.home / "skytune" / "benchmarks" / "two"
    return checkout


def test_the_plan_launches_nothing(bench: Any) -> None:
    assert bench.dry.code == 0, bench.dry.err
    assert "experiment two: 2 cells, 2 to run; constant: global_batch" in bench.dry.out
    assert "rows 48, processes 1, seed 1" in bench.dry.out and "worker" not in bench.dry.out


def test_table_page_and_artifacts(bench: Any) -> None:
    table = pd.read_parquet(bench.folder / "results.parquet")
    assert list(table["status"]) == ["done", "done"] and list(table["train_rows"]) == [48, 96]
    assert (table["usd_total"] * 1000 - table["total_s"]).abs().max() < 0.01  # 3.60 USD an hour
    assert "<h3>Accuracy over rows" in (bench.folder / "report.html").read_text()
    steps = bench.recorded["steps"]
    assert bench.recorded["name"] == "study" and list(steps) == ["run_experiment", "draw_table"]
    artifact = Path(steps["run_experiment"]["outputs"]["results"]["uri"])
    assert [path.suffix for path in artifact.iterdir() if path.name.startswith("df")] == [".gzip"]
    assert pd.read_parquet(next(artifact.glob("df*")))["cell"].tolist() == table["cell"].tolist()
    assert set(steps["draw_table"]["outputs"]) == {"page"}
    for word in ("cell 1 of 2 (rows 48", "cell 2 of 2 (rows 96", "report.html", "results.csv"):
        assert word in bench.done.out, word
    for job in table["job"]:
        result = json.loads((bench.home / "skytune" / job / "outputs" / "result.json").read_text())
        assert result["status"] == "completed"
        assert not list((bench.home / "skytune" / job / "outputs" / "model").glob("*.safetensors")), "not kept"


def test_the_same_command_runs_nothing_again_and_results_are_drawn_again(bench: Any) -> None:
    before = {path: path.stat().st_mtime_ns for path in (bench.folder / "cells").iterdir()}
    for _ in range(2):  # ZenML's cache must not take the second for the first
        (bench.folder / "report.html").unlink()
        done = bench.run(*bench.words, "study.report_only=true")
        assert done.code == 0, done.err
        assert (bench.folder / "report.html").is_file() and "training" not in done.out
    assert {path: path.stat().st_mtime_ns for path in (bench.folder / "cells").iterdir()} == before


BAD = {
    "unknown instance": (["study.factors={compute: [g9.xlarge]}"], "unknown instance 'g9.xlarge'"),
    "empty factor": (["study.factors={rows: []}"], "study.factors.rows: no level"),
    "zero budget": ([DESIGN, "study.max_usd=0"], "study.max_usd=0: nothing can run"),
    "price missing": ([DESIGN, "study.max_usd=1", "compute.usd_per_hour=null"], "no price is known for 'local'"),
    "no budget": (["study.factors={compute: [g5.xlarge]}"], "study.max_usd: g5.xlarge is paid for"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_designs_end_in_one_line_before_anything_runs(bench: Any, kind: str) -> None:
    words, message = BAD[kind]
    kept = [word for word in bench.words if not word.startswith("study.")]
    done = bench.run(*kept, "study.name=bad", *words)
    assert done.code == 1 and done.out == ""
    assert done.err.startswith("error: ") and message in done.err and len(done.err.strip().splitlines()) == 1
    assert not (bench.folder.parent / "bad").exists()


def test_where_no_cell_is_done_the_exit_code_says_so(bench: Any) -> None:
    words = [word for word in bench.words if not word.startswith(("study.factors", "study.name"))]
    done = bench.run(
        *words, "model.name=/nowhere", "study.factors={model: [/nowhere, /nowhere/else]}", "study.name=none"
    )
    assert done.code == 1 and " failed " in done.out, "the table is shown all the same"
    last = done.err.strip().splitlines()[-1]
    assert last.startswith("error: none of 2 cells is done; the first: ") and "/nowhere" in last
