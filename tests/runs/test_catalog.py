"""Runs as they lie on the disk."""

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skytune.config import ConfigError, UserError
from skytune.runs.catalog import RunRecord, all_runs, disk_usage, find_run, ordered, selected
from skytune.runs.removal import old_runs
from skytune.runs.tables import listing, showing


def write(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))


@pytest.fixture
def lay(tmp_path: Path) -> Callable[..., Path]:
    """Return a writer of a run's files, each an hour younger than the one before."""
    made: list[Path] = []

    def make(key: str, status: str = "completed", accuracy: float | None = None, **config: Any) -> Path:
        folder = tmp_path / "skytune-home" / "runs" / key
        config = {"model": {"name": "models/tiny"}, "data": {"name": "reviews"}, "checkpoint": {}, **config}
        write(folder / "job.json", {"kind": "train", "config": config})
        if status:
            write(folder / "outputs" / "result.json", {"status": status})
        if accuracy is not None:
            write(folder / "outputs/model/test_results.json", {"metrics": {"accuracy": accuracy}, "n_rows": 100})
        os.utime(folder / "job.json", (1.7e9 + 3600 * len(made),) * 2)
        made.append(folder)
        return folder

    return make


def test_runs_are_listed_with_score_and_interval_oldest_first(lay: Callable[..., Path]) -> None:
    lay("tiny-reviews-bbb", accuracy=0.9)
    lay("tiny-reviews-aaa", accuracy=0.5)
    assert [run.key for run in all_runs()] == ["tiny-reviews-bbb", "tiny-reviews-aaa"]
    assert [run.key for run in ordered(all_runs(), "score")] == ["tiny-reviews-aaa", "tiny-reviews-bbb"]
    name, value, interval = all_runs()[0].score or ("", 0.0, None)
    assert (name, value) == ("accuracy", 0.9) and interval == pytest.approx((0.826, 0.945), abs=1e-3)  # Wilson
    lines = listing(all_runs()).splitlines()
    assert "accuracy 0.900 (0.826-0.945)" in lines[1] and "tiny" in lines[1] and "reviews" in lines[1]


def test_a_run_without_a_number_comes_last_whichever_way_it_is_sorted(lay: Callable[..., Path]) -> None:
    lay("x-none")
    lay("x-low", accuracy=0.1)
    lay("x-high", accuracy=0.8)
    assert [run.key for run in ordered(all_runs(), "score")] == ["x-low", "x-high", "x-none"]
    assert [run.key for run in ordered(all_runs(), "score", True)] == ["x-high", "x-low", "x-none"]


def test_status_says_what_became_of_it(lay: Callable[..., Path]) -> None:
    lay("done"), lay("preempted", "preempted"), lay("stopped", "")
    write(lay("failed", "") / "outputs/logs/rank-0.error.json", {"type": "E", "message": "no", "user": True})
    with (lay("held", "") / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = {run.key: run.status for run in all_runs()}
    assert found == {
        "done": "completed",
        "preempted": "preempted",
        "stopped": "stopped",
        "failed": "failed",
        "held": "running",
    }
    assert {run.key: run.status for run in all_runs()}["held"] == "stopped"


@pytest.mark.parametrize("job", ["", "[]", "{", '{"config": 3}', '{"kind": "train", "config": {"model": []}}'])
def test_a_run_that_cannot_be_read_is_listed_all_the_same(lay: Callable[..., Path], job: str) -> None:
    (lay("broken") / "job.json").write_text(job)
    (run,) = all_runs()
    assert "broken" in listing([run]) and "broken" in showing(run)


def test_runs_are_chosen_by_words_whatever_their_case(lay: Callable[..., Path]) -> None:
    lay("a-1", model={"name": "org/BERT-base"}), lay("b-2", "preempted", data={"name": "imdb"})
    assert [run.key for run in selected(all_runs(), model="bert")] == ["a-1"]
    assert [run.key for run in selected(all_runs(), data="IMDB")] == ["b-2"]
    assert [run.key for run in selected(all_runs(), status="completed")] == ["a-1"]
    with pytest.raises(ConfigError, match="--status done: allowed are completed"):
        selected(all_runs(), status="done")


def test_a_name_may_be_cut_short_but_must_mean_one_run(lay: Callable[..., Path]) -> None:
    folder = lay("tiny-reviews-aaa")
    lay("tiny-reviews-aab")
    assert find_run("aaa").key == "tiny-reviews-aaa"
    assert find_run(str(folder)).key == find_run(f"{folder}/outputs/model").key == "tiny-reviews-aaa"
    with pytest.raises(UserError, match="2 runs have this in their name"):
        find_run("aa")
    with pytest.raises(UserError, match="did you mean tiny-reviews-aaa"):
        find_run("tiny-review-aaa")


def test_a_file_with_a_name_elsewhere_frees_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"x" * 1000)
    (tmp_path / "a" / "own").write_bytes(b"x" * 10)
    os.link(tmp_path / "a" / "file", tmp_path / "b" / "file")
    assert disk_usage([tmp_path / "a"]) == (1010, 10)
    assert disk_usage([tmp_path / "a", tmp_path / "b"]) == (1010, 1010)


def test_prune_keeps_the_newest_of_every_name(lay: Callable[..., Path]) -> None:
    for key in ("a-1", "b-1", "a-2", "a-3"):
        lay(key)
    assert [run.key for run in old_runs(all_runs(), keep=1)] == ["a-1", "a-2"]
    assert [run.key for run in old_runs(all_runs(), unfinished=True)] == []
    with pytest.raises(ConfigError, match="--keep N"):
        old_runs(all_runs())


def test_the_model_of_another_run_is_called_after_that_run(lay: Callable[..., Path]) -> None:
    first = lay("tiny-reviews-aaa")
    lay("evaluate-model-ccc", checkpoint={"path": f"{first}/outputs/model"})
    assert RunRecord.read(first.parent / "evaluate-model-ccc").model == "tiny-reviews-aaa"
