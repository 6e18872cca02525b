"""Cells run through a recorded launcher (it writes what a launcher that brings machines leaves): rows, costs, failures,
budgets, and going on."""

import json
import logging
import shutil
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from skytune.config import Preempted, RunConfig, UserError, WorkerError
from skytune.config.folders import home
from skytune.study import ResultsStore, run_experiment
from skytune.study.results import results

Design = Callable[..., RunConfig]

PREEMPTED = [
    {
        "phases": {"provision_s": 200.0, "job_s": 1600.0},
        "hourly_usd": 1.2,
        "nodes": 1,
        "machine": "g5.xlarge (spot)",
        "ended": "preempted",
        "usd": 0.6,
    },
    {
        "phases": {"provision_s": 100.0, "setup_s": 50.0, "job_s": 750.0},
        "hourly_usd": 1.2,
        "nodes": 1,
        "machine": "g5.xlarge (spot)",
        "ended": "done",
        "usd": 0.3,
    },
]
"""30 and 15 minutes at 1.20 USD an hour, as the launcher of spot machines records them."""


def test_an_aws_design_gives_its_rows_with_what_was_really_paid(design: Design, prices: Any, recorded: Any) -> None:
    made: dict[str, Any] = {}

    def launchers(machine: Any) -> Any:
        attempts = PREEMPTED if machine.spot else None
        return made.setdefault(str(machine), recorded(machine, attempts))

    compute = ["g5.xlarge spot", "g5.12xlarge", "p4d.24xlarge x 2"]
    config = design(factors={"compute": compute}, seeds=[1, 2], max_usd=100.0, held="per_device_batch")
    rows = run_experiment(config, launchers, prices)
    assert [(row["machine"], row["seed"], row["devices"], row["status"]) for row in rows] == [
        ("g5.xlarge spot", 1, 1, "done"),
        ("g5.xlarge spot", 2, 1, "done"),
        ("g5.12xlarge", 1, 4, "done"),
        ("g5.12xlarge", 2, 4, "done"),
        ("p4d.24xlarge x 2", 1, 16, "done"),
        ("p4d.24xlarge x 2", 2, 16, "done"),
    ]
    spot = rows[0]
    assert spot["usd_total"] == pytest.approx(0.9)
    assert (spot["attempts"], spot["total_s"], spot["provision_s"], spot["price_source"]) == (
        2,
        2700.0,
        300.0,
        "SkyPilot",
    )
    assert spot["setup_s"] == 50.0 + 5.0 + 2.0
    assert spot["usd_per_1000_samples"] == pytest.approx(0.9 / 64 * 1000)
    points = 100 * (spot["accuracy"] - spot["baseline_accuracy"])
    assert spot["accuracy"] == pytest.approx(0.75, abs=0.02)
    assert spot["usd_per_accuracy_point"] == pytest.approx(0.9 / points)
    four = rows[2]
    millisecond = 0.001 / 3600  # the table's seconds are rounded to it
    # The design's price, our own clock.
    assert four["usd_total"] == pytest.approx(four["total_s"] / 3600 * 6.0, rel=0.02, abs=6.0 * millisecond)
    two = rows[4]
    nodes = 2 * 20.0
    assert two["usd_total"] == pytest.approx(two["total_s"] / 3600 * nodes, rel=0.02, abs=nodes * millisecond)
    assert [row["global_batch"] for row in rows[::2]] == [16, 64, 256]
    assert [launcher.runs and len(launcher.runs) for launcher in made.values()] == [2, 2, 2]
    assert len({name for launcher in made.values() for name in launcher.runs}) == 6, (
        "each has a job directory of its own"
    )
    for row in rows:
        assert json.loads((home() / row["job"] / "outputs" / "result.json").read_text())["status"] == "completed"
        assert row["run_key"] and row["job"].endswith(row["run_key"])


def test_a_finished_cell_never_runs_again(design: Design, prices: Any, recorded: Any) -> None:
    launcher = recorded(type("M", (), {"devices": 0, "nodes": 1, "accelerator": ""})())
    few = design(factors={"rows": [32]})
    first = run_experiment(few, lambda _: launcher, prices)
    more = design(factors={"rows": [32, 64]})
    assert run_experiment(more, lambda _: launcher, prices)[0] == first[0]
    assert len(launcher.runs) == 2
    assert run_experiment(more, lambda _: launcher, prices)[0] == first[0]
    assert len(launcher.runs) == 2


def test_changed_data_are_another_question(
    design: Design, prices: Any, recorded: Any, sentences_file: Any, tmp_path: Any, caplog: Any
) -> None:
    copy = tmp_path / "rows.tsv"
    copy.write_text(sentences_file.read_text())
    launcher = recorded(type("M", (), {"devices": 0, "nodes": 1, "accelerator": ""})())
    config = design({"data": {"train": str(copy)}}, factors={"rows": [32]})
    run_experiment(config, lambda _: launcher, prices)
    copy.write_text(sentences_file.read_text() + "a dull film of all films\t0\n")
    with caplog.at_level(logging.WARNING):
        run_experiment(config, lambda _: launcher, prices)
    assert len(launcher.runs) == 2 and "changed since it ran" in caplog.text


def test_a_changed_model_folder_is_another_question(
    design: Design, prices: Any, recorded: Any, tiny_model: Any, tmp_path: Any, caplog: Any
) -> None:
    copy = tmp_path / "model"
    shutil.copytree(tiny_model, copy)
    launcher = recorded(type("M", (), {"devices": 0, "nodes": 1, "accelerator": ""})())
    config = design({"model": {"name": str(copy)}}, factors={"rows": [32]})
    run_experiment(config, lambda _: launcher, prices)
    settings = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**settings, "attention_probs_dropout_prob": 0.3}))
    with caplog.at_level(logging.WARNING):
        run_experiment(config, lambda _: launcher, prices)
    assert len(launcher.runs) == 2 and "the initial model of cell" in caplog.text


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_model_that_is_not_there_is_a_failed_cell(
    design: Design, prices: Any, recorded: Any, tiny_model: Any, parallel: int
) -> None:
    config = design(factors={"model": [str(tiny_model), "/nowhere/model"]}, parallel=parallel)
    rows = run_experiment(config, recorded, prices)
    assert [row["status"] for row in rows] == ["done", "failed"]
    assert "/nowhere/model" in rows[1]["reason"] and rows[1]["train_rows"] is None
    again = design(factors={"model": [str(tiny_model), "/nowhere/model"]}, parallel=parallel, retry_failed=True)
    assert [row["status"] for row in run_experiment(again, recorded, prices)] == ["done", "failed"], "left alone, too"


def test_a_level_with_more_rows_than_there_are_fails_and_trains_nothing(
    design: Design, prices: Any, recorded: Any
) -> None:
    launcher = recorded(type("M", (), {"devices": 0, "nodes": 1, "accelerator": ""})())
    rows = run_experiment(design(factors={"rows": [32, 100_000, None]}), lambda _: launcher, prices)
    assert [row["status"] for row in rows] == ["done", "failed", "done"] and len(launcher.runs) == 2
    there = rows[2]["train_rows"]
    assert rows[1]["reason"].startswith(f"rows 100000: the train split has only {there} ")
    assert rows[1]["reason"].endswith("the level null takes all of them")
    unvaried = design({"data": {"max_rows": 100_000}}, factors={"batch": [16]})
    assert run_experiment(unvaried, recorded, prices)[0]["status"] == "done", "no level says so: `at most`"


def test_a_failed_cell_is_a_row_that_says_why(design: Design, prices: Any, recorded: Any) -> None:
    def launchers(machine: Any) -> Any:
        fails = {
            "g5.12xlarge": UserError("no capacity for g5.12xlarge in us-east-1a, us-east-1b"),
            "p4d.24xlarge": WorkerError(
                "worker process 3 failed: it was ended by SIGKILL\nthe last lines of rank-3.log"
            ),
            "g5.xlarge": RuntimeError("nobody foresaw this"),
        }.get(machine.instance)
        return recorded(machine, fails=fails)

    compute = ["g5.12xlarge", "p4d.24xlarge", "g5.xlarge", "local"]
    config = design(factors={"compute": compute}, max_usd=100.0)
    rows = run_experiment(config, launchers, prices)
    assert [(row["status"], row.get("reason")) for row in rows] == [
        ("failed", "no capacity for g5.12xlarge in us-east-1a, us-east-1b"),
        ("failed", "worker process 3 failed: it was ended by SIGKILL"),
        ("failed", "RuntimeError: nobody foresaw this"),
        ("done", None),
    ]
    assert rows[0]["attempts"] == 1 and rows[0]["usd_total"] is not None, "what failed was paid for"
    seen: list[str] = []
    run_experiment(config, lambda machine: seen.append(str(machine)) or recorded(machine), prices)
    assert seen == [], "a failed cell stays"
    again = design(factors={"compute": compute}, max_usd=100.0, retry_failed=True)
    rows = run_experiment(again, recorded, prices)
    assert [(row["status"], row["attempts"]) for row in rows] == [("done", 2), ("done", 2), ("done", 2), ("done", 1)]


def test_data_that_cannot_be_read_end_the_experiment(design: Design, prices: Any, recorded: Any) -> None:
    config = design({"data": {"train": "/nowhere.tsv"}}, factors={"rows": [32, 64]})
    with pytest.raises(UserError, match=r"/nowhere\.tsv"):
        run_experiment(config, recorded, prices)
    assert ResultsStore("test").read() == {}


@pytest.mark.parametrize("parallel", [1, 3])
def test_at_most_so_many_at_once(design: Design, prices: Any, recorded: Any, parallel: int) -> None:
    launcher = recorded(type("M", (), {"devices": 0, "nodes": 1, "accelerator": ""})(), lasts=0.1, together=parallel)
    config = design(factors={"rows": [16, 24, 32, 40]}, parallel=parallel)
    rows = run_experiment(config, lambda _: launcher, prices)
    assert [row["status"] for row in rows] == ["done"] * 4
    assert [row["train_rows"] for row in rows] == [16, 24, 32, 40], "in the design's order, whoever ended first"
    assert launcher.most == parallel


def test_the_budget_stops_what_would_exceed_it(design: Design, recorded: Any) -> None:
    from skytune.pricing.prices import Price

    dear = lambda machine: Price(1.0, "a made list")  # noqa: E731
    attempts = [{"phases": {"job_s": 1200.0}, "hourly_usd": 1.0, "nodes": 1, "ended": "done"}]
    config = design(factors={"compute": ["g5.xlarge"], "rows": [16, 24, 32, 40]}, max_usd=0.8)
    rows = run_experiment(config, lambda machine: recorded(machine, attempts), dear)
    assert [row["status"] for row in rows] == ["done", "done", "stopped", "stopped"]
    assert sum(row["usd_total"] or 0 for row in rows) == pytest.approx(2 / 3)
    assert "budget: 0.6667 USD are used" in rows[2]["reason"]
    # With more money the same experiment goes on, and what was spent before counts.
    more = design(factors={"compute": ["g5.xlarge"], "rows": [16, 24, 32, 40]}, max_usd=1.1)
    rows = run_experiment(more, lambda machine: recorded(machine, attempts), dear)
    assert [row["status"] for row in rows] == ["done", "done", "done", "stopped"]


def test_a_running_cell_is_told_to_end_before_the_money_is_gone(design: Design) -> None:
    from skytune.distributed.preemption import FLAG_FILE
    from skytune.job import JobDir
    from skytune.pricing.prices import Price
    from skytune.study.plan import make_plan
    from skytune.study.runner import Watch

    config = design({"launch": {"timeouts": {"stop": 10.0}}}, factors={"rows": [16]}, max_usd=1.0)
    plan = make_plan(config, prices=lambda machine: Price(320.0, "a made list"))  # 10 + 1 s to end cost 0.98 USD
    store = ResultsStore("test")
    job = JobDir(store.path / "job")
    job.root.mkdir(parents=True)
    with Watch(store, 1.0, spent=0.0) as watch:
        running = watch.begin(plan.cells[0])
        running.job = job.root
        watch._end.wait(1.5)
        assert (job.root / FLAG_FILE).is_file(), "the workers are asked to save and end"
        assert running.stopped == "budget: 1 USD would be exceeded"
        assert watch.refuses(plan.cells[0]) == "budget: 1 USD would be exceeded"


def test_one_process_at_a_time(design: Design, prices: Any, recorded: Any) -> None:
    config = design(factors={"rows": [32]})
    with ResultsStore("test").claimed():
        with pytest.raises(UserError, match=r"another process runs the experiment in .*benchmarks/test"):
            run_experiment(config, recorded, prices)


def test_paid_machines_are_skypilots_or_sagemakers(monkeypatch: pytest.MonkeyPatch) -> None:
    from skytune.launch import LocalLauncher, SkyPilotLauncher
    from skytune.launch.sagemaker import SageMakerLauncher
    from skytune.study import runner as running
    from skytune.study.machines import machine_of

    monkeypatch.setattr(running, "require", lambda: None)  # importing SkyPilot takes seconds
    assert isinstance(running.launcher_of(machine_of("local", {})), LocalLauncher)
    assert isinstance(running.launcher_of(machine_of("g5.xlarge", {})), SkyPilotLauncher)
    found = running.launcher_of(machine_of("ml.p3.16xlarge x 2", {}), "s3://bucket/runs", "arn:role")
    assert isinstance(found, SageMakerLauncher) and (found.store, found.role) == ("s3://bucket/runs", "arn:role")


def test_cells_on_machines_keep_their_checkpoints_in_the_stacks_store(
    design: Design, prices: Any, recorded: Any
) -> None:
    from skytune.launch import SkyPilotLauncher
    from skytune.launch.remote.machine import STORE

    stores = []

    class Machines(SkyPilotLauncher):
        def run(self, job: Any, compute: Any) -> None:
            stores.append(job.job.config.checkpoint.store)
            recorded(None).run(job, compute)

    def brings(machine: Any) -> Any:
        return Machines({STORE: "memory://stack/runs"})

    run_experiment(design(factors={"rows": [32]}), brings, prices)
    run_experiment(design(factors={"rows": [48]}, run={"checkpoint": {"store": "memory://own"}}), brings, prices)
    assert stores == ["memory://stack/runs", "memory://own"]


def test_without_skypilot_paid_machines_are_refused_before_anything_runs(
    design: Design, prices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sky", None)
    config = design(factors={"compute": ["local", "g5.xlarge"]}, max_usd=5.0)
    with pytest.raises(UserError, match=r"^SkyPilot is not installed here"):
        run_experiment(config, None, prices)
    assert ResultsStore("test").read() == {}


def test_report_only_takes_what_is_there(design: Design, prices: Any, recorded: Any) -> None:
    only = design(factors={"rows": [32, 64]}, report_only=True)
    with pytest.raises(UserError, match=r"no cell of this design has a result"):
        results(only)
    run_experiment(design(factors={"rows": [32]}), recorded, prices)
    table = results(only, launchers=None)
    assert list(table["train_rows"]) == [32] and list(table["status"]) == ["done"]


def test_a_damaged_result_is_named(design: Design, prices: Any, recorded: Any) -> None:
    run_experiment(design(factors={"rows": [32]}), recorded, prices)
    (file,) = (ResultsStore("test").path / "cells").glob("*.json")
    file.write_text('{"schema": 99}')
    with pytest.raises(UserError, match=f"{file.name} is no result of this version"):
        run_experiment(design(factors={"rows": [32]}), recorded, prices)


def test_a_signal_at_the_very_end_of_a_cell_is_not_forgotten(design: Design, prices: Any, recorded: Any) -> None:
    """The workers have nothing left to stop for, and the cell is done; the next one must not begin."""
    from skytune.job import JobDir
    from skytune.launch.signals import Stopping

    class Late(recorded):  # type: ignore[misc]
        def run(self, job: JobDir, compute: Any) -> None:
            with Stopping(job.root / "flag", 5.0):
                signal.raise_signal(signal.SIGTERM)
                super().run(job, compute)

    config = design(factors={"rows": [32, 64]})
    with pytest.raises(Preempted, match="stopped between two cells"):
        run_experiment(config, Late, prices)
    assert [row["status"] for row in ResultsStore("test").read().values()] == ["done"]
    assert [row["status"] for row in run_experiment(config, recorded, prices)] == ["done", "done"]
