"""Who begins again asks for the same settings: all that is told is in the table."""

import sys
from pathlib import Path
from typing import Any

import pytest

from skytune.config import Sampler, UserError
from skytune.search.proposer import Proposer, TrialScore, check_sampler, importances, write_journal
from skytune.search.space import Setting, Space, space_of


def score(setting: Setting) -> float:
    return abs(setting["optimizer.lr"] - 1e-3) + setting["model.dropout"]


def proposer(space: Space, sampler: Sampler) -> Proposer:
    return Proposer(space, sampler, trials=8, seed=7, maximize=False)


def drawn(
    space: Space, sampler: Sampler, count: int, lag: int = 1, known: list[Setting] | None = None
) -> list[Setting]:
    """Return settings as a search draws them; those that are known stand in the table already."""
    asking, found = proposer(space, sampler), []
    for index in range(count):
        asking.tell([TrialScore(setting, score(setting)) for setting in found[: max(0, index - lag + 1)]])
        setting = asking.propose(found)
        if known and index < len(known):
            if setting != known[index]:
                asking.put(known[index], instead=setting is not None)
            setting = known[index]
        assert setting is not None
        found.append(setting)
    return found


@pytest.mark.parametrize("sampler", [Sampler.tpe, Sampler.random, Sampler.cmaes])
@pytest.mark.parametrize("lag", [1, 3])
def test_a_search_that_begins_again_draws_what_it_would_have_drawn(design: Any, sampler: Sampler, lag: int) -> None:
    space = space_of(design(trials=14))
    straight = drawn(space, sampler, 14, lag)
    assert len({str(setting) for setting in straight}) == 14
    for cut in (1, 5, 13):
        assert drawn(space, sampler, 14, lag, known=straight[:cut]) == straight


def test_trials_of_another_space_are_taken_in_place_of_those_that_are_proposed(design: Any) -> None:
    space = space_of(design(trials=6))
    foreign = [{"optimizer.lr": 1e-3 * (i + 1), "model.dropout": 0.01 * i} for i in range(4)]
    found = drawn(space, Sampler.tpe, 6, known=foreign)
    assert found[:4] == foreign and found == drawn(space, Sampler.tpe, 6, known=foreign)
    assert all(space.holds(setting) for setting in found)


def test_a_space_of_few_settings_ends(design: Any) -> None:
    space = space_of(design(trials=9, space={"batch.global_size": [8, 16], "model.dropout": [0.0, 0.1]}))
    asking, found = proposer(space, Sampler.random), []
    while (setting := asking.propose(found)) is not None:
        found.append(setting)
    assert len(found) == 4 and all(setting in found for setting in space.grid())


def test_what_matters_is_told_apart(design: Any) -> None:
    space = space_of(design(trials=20))
    told = [TrialScore(setting, setting["model.dropout"]) for setting in drawn(space, Sampler.random, 20)]
    shares = importances(space, told, maximize=False)
    assert shares["model.dropout"] > 0.8 and sum(shares.values()) == pytest.approx(1.0, abs=1e-4)
    assert importances(space, told[:2], maximize=False) == {}


def test_without_optuna_one_line_says_how_to_get_it_and_a_grid_goes_on(design: Any, monkeypatch: Any) -> None:
    space = space_of(design(trials=3, space={"batch.global_size": [8, 16]}))
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"needs Optuna: `pip install .*orchestrate.*search\.sampler=grid") as told:
        check_sampler(space, Sampler.tpe)
    assert "\n" not in str(told.value)
    check_sampler(space, Sampler.grid)
    assert proposer(space, Sampler.grid).propose([]) == {"batch.global_size": 8}


def test_optunas_dashboard_reads_what_is_written(design: Any, tmp_path: Path) -> None:
    import optuna

    space = space_of(design(trials=3))
    settings = drawn(space, Sampler.random, 3)
    trials = list(zip(settings, ([0.5], [0.4, 0.3], []), ("paused", "done", "failed"), strict=True))
    for _ in range(2):  # anew each time
        write_journal(tmp_path / "optuna.journal", space, trials, maximize=False)
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(tmp_path / "optuna.journal"))
    )
    study = optuna.load_study(study_name="t", storage=storage)
    assert [trial.state.name for trial in study.trials] == ["PRUNED", "COMPLETE", "FAIL"]
    assert study.best_value == 0.3 and study.best_params["optimizer.lr"] == settings[1]["optimizer.lr"]
