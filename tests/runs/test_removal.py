"""What goes with a run, and what stays because another run needs it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skytune.config import UserError
from skytune.runs.catalog import all_runs, find_run
from skytune.runs.removal import GOING, plan_removal, remove, sweep


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "skytune-home" / "runs"


def lay(runs: Path, key: str, **config: Any) -> Path:
    (runs / key / "outputs" / "model").mkdir(parents=True)
    (runs / key / "outputs" / "model" / "model.safetensors").write_bytes(b"w" * 5000)
    (runs / key / "job.json").write_text(json.dumps({"kind": "train", "config": config}))
    return runs / key


def plan(*keys: str) -> dict[str, str]:
    found = plan_removal([find_run(key) for key in keys], all_runs(), lambda key: None)
    return {entry.run.key: entry.kept for entry in found}


def test_a_model_that_another_run_names_stays_until_that_run_goes_too(runs: Path) -> None:
    first = lay(runs, "first-a")
    lay(runs, "second-b", model={"name": f"{first}/outputs/model"})
    lay(runs, "third-c", checkpoint={"path": str(runs / "second-b" / "outputs" / "model")})
    assert plan("first-a") == {"first-a": "second-b refers to it"}
    assert plan("first-a", "second-b") == {"first-a": "second-b refers to it", "second-b": "third-c refers to it"}
    assert plan("first-a", "second-b", "third-c") == {"first-a": "", "second-b": "", "third-c": ""}


def test_a_model_that_holds_a_stage_stays_and_so_does_what_it_was_begun_from(runs: Path) -> None:
    first = lay(runs, "first-a")
    lay(runs, "second-b", model={"name": f"{first}/outputs/model"})
    held = {"first-a": [], "second-b": ["production of reviews"]}
    found = plan_removal(
        [find_run(key) for key in held],
        all_runs(),
        lambda key: SimpleNamespace(runs=[], artifacts=[], folders=[], stages=held[key]),  # type: ignore[return-value]
    )
    assert {entry.run.key: entry.kept for entry in found} == {
        "first-a": "second-b refers to it",
        "second-b": "it is production of reviews: promote another model first",
    }


def test_nothing_that_somebody_elses_folder_names_goes(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "mine" / "photos").mkdir(parents=True)
    given = lay(tmp_path / "downloads", "photos", checkpoint={"store": str(tmp_path / "mine")})
    (entry,) = plan_removal([find_run(str(given))], all_runs(), lambda key: None)
    assert entry.kept.startswith("it lies outside of ") and entry.checkpoints == ""


def test_a_model_that_another_run_links_to_stays(runs: Path) -> None:
    first = lay(runs, "first-a")
    weights = lay(runs, "second-b", model={"name": "../alias"}) / "inputs" / "weights"
    weights.mkdir(parents=True)
    (weights / "model.safetensors").symlink_to(first / "outputs" / "model" / "model.safetensors")
    assert plan("first-a") == {"first-a": "second-b refers to it"}
    assert plan("second-b") == {"second-b": ""}


def test_checkpoints_elsewhere_go_with_the_run_and_those_of_others_stay(runs: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    lay(runs, "first-a", checkpoint={"store": str(store)})
    for key in ("first-a", "other-b"):
        (store / key / "step-00000001").mkdir(parents=True)
        (store / key / "step-00000001" / "model.safetensors").write_bytes(b"c" * 700)
    (entry,) = plan_removal([find_run("first-a")], all_runs(), lambda key: None)
    assert entry.checkpoint_bytes == 700 and entry.bytes == 700 + 5000 + (runs / "first-a/job.json").stat().st_size
    remove(entry)
    assert not (runs / "first-a").exists() and [path.name for path in store.iterdir()] == ["other-b"]


def test_a_store_that_cannot_be_reached_is_told_before_anything_goes(runs: Path) -> None:
    folder = lay(runs, "first-a", checkpoint={"store": "nosuch://bucket"})
    with pytest.raises(UserError, match="first-a: its checkpoints at nosuch://bucket/first-a"):
        plan_removal([find_run("first-a")], all_runs(), lambda key: None)
    assert folder.is_dir()


def test_what_a_killed_removal_left_is_no_run_and_goes(runs: Path) -> None:
    lay(runs, "first-a").rename(runs / f"{GOING}first-a-123")
    assert all_runs() == []
    sweep()
    assert list(runs.iterdir()) == []
