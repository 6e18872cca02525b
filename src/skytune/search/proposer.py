"""Which settings are tried next. Optuna proposes (ask and tell alone); the table of results is the truth.

Nothing of Optuna's is kept: its own storages leave killed trials running for ever. Whoever starts a search asks for the
settings that are in the table once more, in the same order and with the same scores told in between, so that the
sampler stands where it stood, its random numbers included. Where it answers otherwise than the table (the space, the
number of trials at once or Optuna itself has changed), the table's settings are put in its place.
"""

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import ConfigError, Sampler, UserError
from ..config.schema.search import Dimension
from .space import Setting, Space

log = logging.getLogger(__name__)

REFUSED = 100
"""Proposals of settings that were tried already, one after the other, after which there is nothing new."""


@dataclass(frozen=True)
class TrialScore:
    """What the sampler may know of a trial."""

    setting: Setting
    score: float | None
    """On the first rung, where all trials stand equal; None for one that failed."""


class Proposer:
    """Proposes settings one after the other."""

    def __init__(self, space: Space, sampler: Sampler, trials: int, seed: int, *, maximize: bool) -> None:
        self.space, self.maximize = space, maximize
        self.grid = space.grid() if sampler is Sampler.grid else None
        self.study: Any = None
        self._asked: list[Any] = []
        self._told = 0
        if self.grid is None:
            self._distributions = {one.key: _distribution(one) for one in space.tuned}
            self.study = _optuna().create_study(
                direction="maximize" if maximize else "minimize", sampler=_sampler(sampler, seed, trials)
            )

    def propose(self, before: Sequence[Setting]) -> Setting | None:
        """Return a setting that is not among those before; None where there is none left.

        Args:
            before: all settings so far, in the order of their proposal.
        """
        if self.grid is not None:
            return next((setting for setting in self.grid if setting not in before), None)
        for _ in range(REFUSED):
            trial = self.study.ask(self._distributions)
            setting = self._setting(trial.params)
            if setting not in before:
                self._asked.append(trial)
                return setting
            self.study.tell(trial, state=_optuna().trial.TrialState.FAIL)
        return None

    def put(self, setting: Setting, *, instead: bool) -> None:
        """Take a setting as proposed, `instead` of the one that was."""
        if self.study is None:
            return
        if instead:
            self.study.tell(self._asked.pop(), state=_optuna().trial.TrialState.FAIL)
        self.study.enqueue_trial({one.key: _inside(one, setting[one.key]) for one in self.space.tuned})
        self._asked.append(self.study.ask(self._distributions))

    def tell(self, told: Sequence[TrialScore]) -> None:
        """Tell the scores of the first trials, those that were not told yet, in their order."""
        if self.study is None:
            return
        state = _optuna().trial.TrialState
        for trial, one in list(zip(self._asked, told, strict=False))[self._told :]:
            if one.score is None or not math.isfinite(one.score):
                self.study.tell(trial, state=state.FAIL)
            else:
                self.study.tell(trial, one.score)
            self._told += 1

    def _setting(self, parameters: dict[str, Any]) -> Setting:
        return {one.key: _outside(one, parameters[one.key]) for one in self.space.tuned}


def importances(space: Space, told: Sequence[TrialScore], *, maximize: bool) -> dict[str, float]:
    """Return the share of each key in the variance of the scores (fANOVA: Hutter, Hoos and Leyton-Brown 2014); empty
    where the scores say nothing of it."""
    known = [one for one in told if one.score is not None and math.isfinite(one.score)]
    if len(space.tuned) < 2 or len(known) < 4 or len({one.score for one in known}) < 2:
        return {}
    optuna = _optuna()
    study = optuna.create_study(direction="maximize" if maximize else "minimize")
    distributions = {one.key: _distribution(one) for one in space.tuned}
    for one in known:
        inside = {dim.key: _inside(dim, one.setting[dim.key]) for dim in space.tuned}
        study.add_trial(optuna.trial.create_trial(params=inside, distributions=distributions, value=one.score))
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {str(key): round(float(share), 6) for key, share in found.items()}


def write_journal(
    path: Path, space: Space, trials: Sequence[tuple[Setting, Sequence[float | None], str]], *, maximize: bool
) -> None:
    """Write a search as one of Optuna's own files, for `optuna-dashboard`; it is written anew each time.

    Args:
        trials: settings, scores by rung, and status of each.
    """
    try:
        optuna = _optuna()
    except UserError:  # a grid needs it not
        return
    from optuna.storages.journal import JournalFileBackend

    path.unlink(missing_ok=True)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    study = optuna.create_study(
        study_name=space.name, storage=storage, direction="maximize" if maximize else "minimize"
    )
    states, distributions = optuna.trial.TrialState, {one.key: _distribution(one) for one in space.tuned}
    for setting, scores, status in trials:
        known = {rung: score for rung, score in enumerate(scores) if score is not None}
        state = states.COMPLETE if status == "done" else states.PRUNED if known else states.FAIL
        study.add_trial(
            optuna.trial.create_trial(
                state=state,
                value=known[max(known)] if state != states.FAIL else None,
                params={one.key: _inside(one, setting[one.key]) for one in space.tuned},
                distributions=distributions,
                intermediate_values=known,
            )
        )


def check_sampler(space: Space, sampler: Sampler) -> None:
    """Refuse a sampler that cannot draw from the space.

    Raises:
        ConfigError: with what would go.
        UserError: Optuna is not installed.
    """
    if sampler is Sampler.grid and space.size == math.inf:
        one = next(one for one in space.tuned if one.choices is None)
        raise ConfigError(f"search.sampler=grid: search.space.{one.key}={one} is a range; a grid takes lists alone")
    if sampler is Sampler.cmaes:
        lists = [one.key for one in space.tuned if one.choices is not None]
        if lists or len(space.tuned) < 2:
            what = f"search.space.{lists[0]} is a list" if lists else "the space has one key"
            raise ConfigError(
                f"search.sampler=cmaes: {what}; it takes two or more ranges (search.sampler=tpe takes all)"
            )
    if sampler is not Sampler.grid:
        _optuna()


def _distribution(one: Dimension) -> Any:
    distributions = _optuna().distributions
    if one.choices is not None:
        return distributions.CategoricalDistribution([json.dumps(value) for value in one.choices])
    if one.whole:
        return distributions.IntDistribution(int(one.low), int(one.high), log=one.log, step=int(one.step or 1))
    return distributions.FloatDistribution(one.low, one.high, log=one.log, step=one.step)


def _inside(one: Dimension, value: Any) -> Any:
    """Return a value as Optuna has it."""
    return json.dumps(value) if one.choices is not None else value


def _outside(one: Dimension, value: Any) -> Any:
    """Return a value of Optuna's as the configuration has it."""
    if one.choices is not None:
        return json.loads(value)
    return int(value) if one.whole else float(value)


def _sampler(sampler: Sampler, seed: int, trials: int) -> Any:
    samplers = _optuna().samplers
    if sampler is Sampler.random:
        return samplers.RandomSampler(seed=seed)
    if sampler is Sampler.cmaes:
        return samplers.CmaEsSampler(seed=seed)
    # A third of a short search at random, ten trials (Optuna's own) of a long one; those that run count as bad, so that
    # trials at once are not drawn from one place.
    return samplers.TPESampler(seed=seed, n_startup_trials=min(10, max(3, trials // 3)), constant_liar=True)


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise UserError(
            "pipeline=search needs Optuna: `pip install -c constraints.txt '.[orchestrate]'` (or `make install`); "
            "search.sampler=grid needs it not"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
