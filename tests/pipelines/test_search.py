"""`pipeline=search` as a person runs it: the plan, the trials, the page, the winner taken as a run; mistakes in one
line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

SPACE = "search.space={optimizer.lr: loguniform(1e-4,3e-2), batch.global_size: [8, 16]}"


@pytest.fixture(scope="module")
def searched(new_checkout: Callable[[], Any], small: list[str]) -> Any:
    """A search of three trials on the tiny model; its words are kept for further commands."""
    checkout = new_checkout(warm=True)
    own = ["epochs=1", "tracker=none", "launch.threads=1", "pipeline=search", SPACE, "search.trials=3"]
    checkout.words = [*small, *own, "search.halving=3", "search.confirm=2", "search.name=three"]
    checkout.dry = checkout.run(*checkout.words, "search.dry_run=true")
    assert not (checkout.home / "skytune" / "searches").exists(), "a dry run leaves nothing"
    checkout.done = checkout.run(*checkout.words)
    assert checkout.done.code == 0, checkout.done.err
    checkout.recorded = checkout.last_run()
    checkout.folder = checkout.home / "skytune" / "searches" / "three"
    return checkout


@pytest.mark.slow
def test_plan_table_page_and_last_line(searched: Any) -> None:
    assert "search three: 3 trials by tpe" in searched.dry.out and "1 trial to the end" in searched.dry.out
    table = pd.read_parquet(searched.folder / "results.parquet")
    assert table["trial"].dropna().tolist() == [0, 1, 2] and sorted(table["status"][:3]) == ["done", "paused", "paused"]
    page = (searched.folder / "report.html").read_text()
    assert all(f"<h3>{heading}" in page for heading in ("Rungs", "Trials", "Settings", "Is it better?"))
    steps = searched.recorded["steps"]
    assert searched.recorded["name"] == "search" and list(steps) == ["run_search", "draw_table"]
    assert set(steps["draw_table"]["outputs"]) == {"page"}
    assert searched.done.out.rstrip().splitlines()[-1].startswith("spent ")
    assert (searched.folder / "optuna.journal").stat().st_size > 0


@pytest.mark.slow
def test_the_winner_is_taken_and_nothing_is_trained(searched: Any) -> None:
    runs = {
        path.name: path.stat().st_mtime_ns for path in (searched.home / "skytune/runs").glob("*/outputs/result.json")
    }
    done = searched.run("pipeline=training", "search.take=three")
    assert done.code == 0, done.err
    assert "this very run is there already, trained to its end: its result is taken" in done.out + done.err
    after = {
        path.name: path.stat().st_mtime_ns for path in (searched.home / "skytune/runs").glob("*/outputs/result.json")
    }
    assert after == runs, "no run was trained, none was trained again"
    result = json.loads((searched.folder / "search.json").read_text())["result"]
    steps = searched.last_run()["steps"]
    assert list(steps) == ["load_data", "train_model", "evaluate_model"]
    assert Path(steps["train_model"]["outputs"]["model"]["uri"]).is_dir()
    assert result["winner"]["run_key"] in done.out + done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["search.space={optimizer.lrr: [1,2]}"], "unknown key 'optimizer.lrr': did you mean optimizer.lr?"),
        (["search.space={checkpoint.every_steps: [1,2]}"], "decides nothing of what is learned"),
        (["search.metric=acuracy"], "search.metric=acuracy: not among eval.metrics"),
        (["search.max_hours=0.001"], "error: search.max_hours=0.001: no trial can begin"),
        (["pipeline=training", "search.take=nowhere"], "search.take=nowhere: there is no search in"),
        (["pipeline=evaluate", "checkpoint=x", "search.take=three"], "search.take=three takes settings for a run"),
    ],
)
def test_a_mistake_is_one_line(searched: Any, words: list[str], told: str) -> None:
    found = searched.run(*searched.words, "search.name=other", *words)
    assert found.code == 1 and told in found.err and len(found.err.strip().splitlines()) == 1
    assert not (searched.home / "skytune" / "searches" / "other").exists()
