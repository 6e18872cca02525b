"""Whole searches with real workers: what goes on, what is kept, what is taken."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from skytune import data
from skytune.config import ConfigError, RunConfig, UserError
from skytune.config.folders import home
from skytune.job import JobDir, read_json
from skytune.launch import LocalLauncher, train
from skytune.search import findings, results, run_search, summary, taken
from skytune.search.record import search_store

Design = Callable[..., RunConfig]
Warm = Callable[[], LocalLauncher]


def rows_of(name: str = "t") -> dict[str, dict[str, Any]]:
    return search_store(name).read()


def retrained(config: RunConfig, **more: Any) -> Any:
    """Return the ordinary run of a configuration."""
    found = data.prepare(config.data, config.model, config.seed, {})
    splits = {"validation": found.validation, "test": found.test}
    return train(config, found.train, splits, found.tokenizer, **more)


@pytest.mark.timeout(600)
def test_promoted_trials_go_on_and_no_row_is_trained_twice(
    design: Design, warm: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = design({"epochs": 3, "log": {"every_steps": 1}}, trials=27, halving=3)
    search = run_search(config, warm)
    assert [len(search.record.standing(rung)) for rung in range(4)] == [27, 9, 3, 1]
    stops, total = [1, 3, 9, 27], 0
    for trial in search.record.trials:
        (cell,) = trial.cells
        row, rung = search.record.row(cell), search.record.highest(trial)
        assert [passed["step"] for passed in row["scores"]] == stops[: rung + 1]
        assert [passed["resumed_from"] for passed in row["scores"]] == [None, *stops][: rung + 1], "none begins anew"
        steps = [record["step"] for record in JobDir(home() / row["job"]).read_history() if record["kind"] == "step"]
        assert steps == list(range(1, stops[rung] + 1))
        total += row["samples"]
    assert total == 8 * (18 * 1 + 6 * 3 + 2 * 9 + 1 * 27), "rows: what halving says, and not one more"

    winner = search.winner()
    assert winner is not None
    here = home() / search.record.row(winner.cells[0])["job"]
    by_score = sorted(search.record.trials, key=lambda trial: search.record.score(trial, 0))
    assert winner in by_score[:9], "it was among the best from the first rung on"
    monkeypatch.setenv("SKYTUNE_HOME", str(tmp_path / "elsewhere"))
    straight = retrained(winner.cells[0].config, launcher=warm())
    assert straight.job.root.name == here.name, "the very same run"
    ours, reference = (load_file(folder / "outputs/model/model.safetensors") for folder in (here, straight.job.root))
    assert all(np.array_equal(ours[name], reference[name]) for name in reference), "stopped three times, to the bit"


def test_a_finished_search_is_extended_and_another_space_keeps_what_lies_inside(
    design: Design, warm: Warm, caplog: Any
) -> None:
    run_search(design(trials=3), warm)
    before = rows_of()
    search = run_search(design(trials=5), warm)
    after = rows_of()
    assert len(before) == 3 and {name: after[name] for name in before} == before, "nothing ran again"
    assert [trial.number for trial in search.record.trials] == [0, 1, 2, 3, 4] and len(after) == 5
    rates = sorted(trial.setting["optimizer.lr"] for trial in search.record.trials)
    narrow = {"optimizer.lr": f"loguniform({rates[2]!r},3e-2)", "model.dropout": "uniform(0,0.3)"}
    with caplog.at_level(logging.INFO):
        search = run_search(design(trials=4, space=narrow), warm)
    assert "the space changed: 3 of 5 earlier trials lie inside and are kept" in caplog.text
    assert len(search.record.trials) == 4 and search.record.trials[-1].number == 5
    assert all(trial.setting["optimizer.lr"] >= rates[2] for trial in search.record.trials)
    with pytest.raises(UserError, match=r"search\.halving: .* was begun with no halving .*another search\.name"):
        run_search(design(trials=4, space=narrow, halving=2), warm)


def test_the_winner_is_an_ordinary_run_that_is_there(design: Design, warm: Warm, monkeypatch: Any) -> None:
    config = design({"seed": 3}, trials=3, confirm=2)
    table = results(config, warm)
    found = read_json(search_store("t").path / "search.json")["result"]
    best = min(found["trials"], key=lambda one: one["scores"][-1])
    assert found["winner"]["number"] == best["number"]
    assert list(table["trial"][:3]) == [0, 1, 2] and len(table) == 3 + 2 * 2
    assert found["confirmation"]["seeds"] == [4, 5] and len(found["confirmation"]["plain"]) == 2
    assert found["confirmation"]["verdict"] in ("better", "worse", "no better than seed noise")
    weights = list(home().glob("runs/*/outputs/model/*.safetensors"))
    assert [path.parents[2].name for path in weights] == [found["winner"]["run_key"]], "the best one's alone are kept"

    class Nobody:
        def run(self, *_: Any) -> None:
            raise AssertionError("trained again")

    chosen = RunConfig.parse(taken("t"))
    assert chosen.pipeline.value == "training" and chosen.optimizer.lr == best["setting"]["optimizer.lr"]
    outcome = retrained(chosen, launcher=Nobody(), take=True)
    assert outcome.result["run_key"] == found["winner"]["run_key"]
    with pytest.raises(UserError, match=r"search.take=u: there is no search in .* \(searches here: t\)"):
        taken("u")
    text, _, nothing = summary(config)
    assert not nothing and "the test split chose nothing" in text
    assert text.splitlines()[-1].endswith("no limit; nothing was left untried")
    results(config, Nobody)  # nothing is left to run


def test_seeds_and_folds_are_repetitions_with_intervals(design: Design, warm: Warm) -> None:
    config = design({"data": {"folds": 3}}, space={"optimizer.lr": [1e-4, 2e-2], "seed": [5, 6]}, metric="loss")
    search = run_search(config, warm)
    assert len(search.record.trials) == 2 and len(rows_of()) == 2 * 2 * 3
    parts = [data.prepare(cell.config.data, cell.config.model, 0, {}) for cell in search.record.trials[0].cells[:3]]

    sizes = [len(part.validation) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    found = findings(search)
    scores = [rows_of()[cell.name]["scores"][-1]["score"] for cell in search.record.trials[0].cells]
    assert found["trials"][0]["scores"][-1] == pytest.approx(np.mean(scores)) and found["trials"][0]["half_width"] > 0
    (paired,) = found["paired"]
    assert paired["difference"] > 0 and paired["difference_half_width"] > 0


def test_seeds_alone_are_a_search_of_one_setting(design: Design, warm: Warm) -> None:
    search = run_search(design(space={"seed": [0, 1, 2]}, confirm=2), warm)
    found = findings(search)
    assert len(found["trials"]) == 1 and found["trials"][0]["half_width"] > 0 and found["confirmation"] is None
    assert sorted(row["seed"] for row in rows_of().values()) == [0, 1, 2]


def test_a_trial_that_diverges_is_the_worst_and_the_search_goes_on(design: Design, warm: Warm) -> None:
    config = design({"epochs": 2}, space={"optimizer.weight_decay": [1e30, 0.01], "model.dropout": [0.0, 0.1]})
    found = findings(run_search(config, warm))
    assert [one["status"] for one in found["trials"]] == ["failed", "failed", "done", "done"]
    assert found["winner"]["number"] in (2, 3) and "the loss is" in found["trials"][0]["reason"]
    attempts = {path.name: path.read_bytes() for path in search_store("t").path.glob("attempts/*.json")}
    run_search(config, warm)
    assert attempts == {path.name: path.read_bytes() for path in search_store("t").path.glob("attempts/*.json")}


def test_a_budget_that_is_too_small_begins_nothing(design: Design, warm: Warm) -> None:
    config = design({"compute": {"usd_per_hour": 60.0}}, trials=3, max_usd=0.5)
    with pytest.raises(
        ConfigError, match=r"^search\.max_usd=0\.5: no trial can begin: .*1 min 00 s \(\$1\.00\).*more$"
    ):
        run_search(config, warm)
    assert not list(search_store("t").path.glob("attempts/*")) and not (home() / "runs").exists()


def test_a_budget_stops_the_search_and_a_larger_one_goes_on(design: Design, warm: Warm, monkeypatch: Any) -> None:
    from skytune.study import cell_runner

    looks = iter([1e9, 1e9, 1e9, 0.0])  # what is left before the third trial, as the clock would have it
    real = cell_runner.Watch.refuses

    def refuses(watch: Any, planned: Any) -> str:
        watch.deadline = cell_runner.time.monotonic() + next(looks, 0.0)
        return real(watch, planned)

    with monkeypatch.context() as patch:
        patch.setattr(cell_runner.Watch, "refuses", refuses)
        search = run_search(design(trials=5, max_hours=2.0), warm)
    found = findings(search)
    assert found["untried"] == 2 and "are left of search.max_hours=2" in found["stopped"]
    search.record.save(result=found)
    last = summary(search.config)[0].splitlines()[-1]
    assert "left; not tried: 2 trials (budget: " in last
    search = run_search(design(trials=5, max_hours=2.0), warm)
    assert findings(search)["untried"] == 0 and len(rows_of()) == 5


@pytest.mark.slow
def test_two_processes_and_two_trials_at_once_have_one_setting_each(design: Design) -> None:
    config = design({"launch": {"num_processes": 2, "threads": 1}}, trials=2, parallel=2)
    search = run_search(config)
    jobs = sorted(home().glob("runs/*/job.json"))
    assert len(jobs) == 2, "one folder a trial: its processes read one job"
    settings = [(job["config"]["optimizer"]["lr"], job["config"]["model"]["dropout"]) for job in map(read_json, jobs)]
    assert sorted(settings) == sorted(
        (trial.setting["optimizer.lr"], trial.setting["model.dropout"]) for trial in search.record.trials
    )
    for job in jobs:
        assert json.loads((job.parent / "outputs/result.json").read_text())["world_size"] == 2


def test_trials_at_once_are_the_same_every_time(design: Design, warm: Warm, tmp_path: Path, monkeypatch: Any) -> None:
    found = []
    for place in ("a", "b"):
        monkeypatch.setenv("SKYTUNE_HOME", str(tmp_path / place))
        search = run_search(design(trials=4, halving=2, parallel=2), warm)
        found.append(
            [(trial.setting, [search.record.score(trial, rung) for rung in range(3)]) for trial in search.record.trials]
        )
    assert found[0] == found[1]


def test_without_waiting_every_rung_is_reached(design: Design, warm: Warm) -> None:
    search = run_search(design({"epochs": 2}, trials=4, halving=2, asynchronous=True, parallel=2), warm)
    assert len(search.record.standing(0)) == 4 and search.winner() is not None
