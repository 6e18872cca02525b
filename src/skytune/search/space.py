"""The space of a search: checked against the configuration, so that no trial is paid for that could not run or that
would change nothing; and the cells of a setting, one for every repetition."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..config import ConfigError, RunConfig, Sampler, SearchConfig, to_dict
from ..config.help import field_type
from ..config.schema.search import Dimension, dimension, shown
from ..launch.run_dir import identity_config
from ..study.cells import Cell, make_cell, put

SEED, FOLD = "seed", "data.fold"

REPETITIONS = (SEED, FOLD)
"""Keys whose values are repetitions of a setting, not settings."""

Setting = dict[str, Any]
"""Values by key."""

MOST = 1000
"""A grid with more settings than this is a mistake."""


@dataclass(frozen=True)
class Space:
    """What is searched."""

    base: RunConfig
    """The configuration around the settings, of an ordinary training run."""

    name: str
    tuned: tuple[Dimension, ...]
    repeated: tuple[Dimension, ...]

    @property
    def size(self) -> float:
        """How many settings there are; infinity where a range is among the values."""
        return math.prod(len(one.choices) if one.choices is not None else math.inf for one in self.tuned)

    @property
    def repetitions(self) -> list[Setting]:
        """Every combination of repetitions; one, with nothing in it, where nothing is repeated."""
        return _products(self.repeated)

    def grid(self) -> list[Setting]:
        """Return all settings of a space of lists, in the order in which they are written."""
        return _products(self.tuned)

    def holds(self, setting: Setting) -> bool:
        """Whether a setting lies inside."""
        return {one.key for one in self.tuned} == set(setting) and all(
            one.holds(setting[one.key]) for one in self.tuned
        )

    def cells(self, setting: Setting, repetitions: Sequence[Setting] | None = None) -> list[Cell]:
        """Return the cells of a setting, one for every repetition.

        Raises:
            ConfigError: no run could have this setting.
        """
        return [self._cell(setting, again) for again in (self.repetitions if repetitions is None else repetitions)]

    def _cell(self, setting: Setting, again: Setting) -> Cell:
        labels = {
            key: value if isinstance(value, (int, float, str)) else shown(value) for key, value in setting.items()
        }
        fold = {key: value for key, value in again.items() if key != SEED}
        return make_cell(
            self.base, {**labels, **fold}, [setting, fold], again.get(SEED, self.base.seed), "search, trial"
        )

    def as_text(self) -> dict[str, str]:
        """Return the values by key, as they are written."""
        return {one.key: str(one) for one in (*self.tuned, *self.repeated)}


def space_of(config: RunConfig) -> Space:
    """Return the space of `config.search`.

    Raises:
        ConfigError: a key that there is not, or that decides nothing; an empty range; a value that the key refuses.
    """
    design = config.search
    dimensions = [dimension(key, values) for key, values in design.space.items()]
    folds = config.data.folds or 0
    if folds and FOLD not in design.space:
        dimensions.append(Dimension(FOLD, tuple(range(folds))))
    if not dimensions:
        raise ConfigError(
            "pipeline=search needs search.space, as '{optimizer.lr: loguniform(1e-6,1e-3)}', or data.folds=5, or "
            "experiment=NAME"
        )
    for one in dimensions:
        _check_key(one)
    # The data are cut by the run's own seed for all trials, as the run that takes a trial's settings cuts them.
    data = replace(config.data, seed=config.seed if config.data.seed is None else config.data.seed)
    if folds:
        data = replace(data, fold=0)
    config = replace(config, checkpoint=replace(config.checkpoint, keep=1))  # a trial needs its last one alone
    base = replace(config, data=data, search=SearchConfig(), name=config.name or f"search-{search_name(config)}")
    tuned = tuple(one for one in dimensions if one.key not in REPETITIONS)
    repeated = tuple(one for one in dimensions if one.key in REPETITIONS)
    for one in repeated:
        if one.choices is None:
            raise ConfigError(f"search.space.{one.key}={one}: repetitions are a list, as [0,1,2]")
    space = Space(base, search_name(config), tuned, repeated)
    for one in dimensions:
        _check_values(space, one)
    return space


def trials_of(config: RunConfig, space: Space) -> int:
    """Return how many settings are tried.

    Raises:
        ConfigError: a space of ranges does not say how many.
    """
    wanted = config.search.trials
    if wanted is None:
        if space.size == float("inf"):
            raise ConfigError("search.trials: say how many settings are to be tried (a range has no end)")
        return int(space.size)
    return int(min(wanted, space.size))


def sampler_of(config: RunConfig, space: Space, trials: int) -> Sampler:
    """Return who proposes."""
    if config.search.sampler is not Sampler.auto:
        return config.search.sampler
    return Sampler.grid if space.size <= trials else Sampler.tpe


def search_name(config: RunConfig) -> str:
    """Return the name of the search: `search.name`, else the run's, else `search`."""
    return config.search.name or config.name or "search"


def _check_key(one: Dimension) -> None:
    try:
        field_type(one.key)
    except ConfigError as error:
        raise ConfigError(f"search.space: {error}") from error


def _check_values(space: Space, one: Dimension) -> None:
    """Refuse values that the key does not take, and keys that change nothing of what is learned.

    Raises:
        ConfigError: with the key.
    """
    where = f"search.space.{one.key}"
    learned = []
    for value in one.ends:
        values = to_dict(replace(space.base, name=""))
        try:
            put(values, one.key, value, "search.space")
            learned.append(_learned(RunConfig.parse(values)))
        except ConfigError as error:
            # Another key of the space may be what allows this value: then whole settings tell.
            if not _alone(space, one):
                continue
            raise ConfigError(f"{where}={one}: {error}") from error
    if len(one.ends) < 2 and one.key not in REPETITIONS:
        raise ConfigError(f"{where}={one}: one value changes nothing; write {one.key}={shown(one.ends[0])} beside it")
    if len(learned) > 1 and len(set(learned)) == 1:
        raise ConfigError(
            f"{where}: {one.key} decides nothing of what is learned (only where or how a run computes), so all trials "
            "would be the same; leave it out"
        )


def _alone(space: Space, one: Dimension) -> bool:
    """Whether no other key of the same group is in the space."""
    group = one.key.rpartition(".")[0]
    return not any(other.key != one.key and other.key.rpartition(".")[0] == group for other in space.tuned)


def _learned(config: RunConfig) -> str:
    """Return, as text, all that decides what a run learns."""
    return json.dumps([identity_config(config), to_dict(config.data), to_dict(config.model)], sort_keys=True)


def _products(dimensions: Sequence[Dimension]) -> list[Setting]:
    lists = [one.choices or () for one in dimensions]
    if math.prod(map(len, lists)) > MOST:
        raise ConfigError(f"search.space: more than {MOST} combinations of lists; take fewer values")
    return [dict(zip((one.key for one in dimensions), values, strict=True)) for values in itertools.product(*lists)]


def described(setting: Mapping[str, Any]) -> str:
    """Return a setting in a few words."""
    return ", ".join(f"{key} {shown(value)}" for key, value in setting.items()) or "the plain configuration"
