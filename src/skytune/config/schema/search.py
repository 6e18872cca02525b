"""`search`: a hyperparameter search. Which keys are drawn from which values, how many trials, what they may cost."""

import math
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ...common.mappings import flatten
from ..checks import above_zero, at_least
from ..errors import ConfigError


class Sampler(str, Enum):
    """Who proposes the next trial."""

    auto = "auto"
    tpe = "tpe"
    random = "random"
    grid = "grid"
    cmaes = "cmaes"


@dataclass(kw_only=True)
class SearchConfig:
    """A search: trials drawn from a space, stopped at rungs, the best one confirmed (`pipeline=search`)."""

    name: str = ""
    """Folder of the results under SKYTUNE_HOME/searches; the same name goes on where an earlier start ended. Empty
    means the run's name, else `search`."""

    space: Any = None
    """Values by key: `{optimizer.lr: loguniform(1e-6,1e-3), batch.global_size: [16,32], model.dropout:
    uniform(0,0.3)}`. Forms: a list, `uniform(low,high)`, `loguniform(low,high)`, `int(low,high)`, `logint(low,high)`;
    a third number of `uniform` and `int` is the step. Lists under `seed` and `data.fold` are repetitions: every setting
    runs with each of them, and its score is their mean."""

    trials: int | None = None
    """How many settings are tried, earlier starts included: a larger number goes on. Empty means all of a space of
    lists, else it must be given."""

    sampler: Sampler = Sampler.auto
    """`tpe`, `random`, `grid` (a space of lists, in the order in which they are written), `cmaes` (numbers alone), or
    `auto`: `grid` where all settings of a space of lists are tried, else `tpe`. `seed` of the run decides what is
    drawn."""

    halving: int | None = None
    """Successive halving: one in so many trials goes on from each rung to the next, which trains so many times as long.
    Trials stop at a rung as if preempted, and go on from their own checkpoint. Empty trains all to the end."""

    rungs: int | None = None
    """How many rungs, the end included; empty means as many as the trials are enough for (27 by 3: 4 rungs, at 1/27,
    1/9, 1/3 and the whole of the steps). A search that is extended keeps the rungs that it began with."""

    asynchronous: bool = False
    """Let a trial go on as soon as it is among the best of those that stand at its rung, instead of waiting for all of
    them. No worker waits, but which trials go on depends on which was faster: not the same every time."""

    metric: str | None = None
    """The validation metric by which trials are compared; empty means `checkpoint.metric`."""

    mode: str = "auto"
    """`max`, `min`, or `auto` (as `checkpoint.mode` where the metric is that, else min for the loss, max otherwise)."""

    parallel: int = 1
    """How many trials run at once on this machine: GPUs, or the cores, are shared out among them. A trial is drawn from
    the scores of those that began so many before it, so that the trials are the same every time."""

    machines: int | None = None
    """Run trials on machines that SkyPilot brings, so many at once (`compute.instance_type`, `compute.use_spot` and the
    stack say which). Each takes trials until none is left; what is taken away goes on elsewhere from
    `checkpoint.store`. `search.max_usd` must say what all may cost. Empty runs trials on this machine."""

    max_usd: float | None = None
    """The whole search may cost so much, earlier starts and the confirmation included: it stops before it costs
    more."""

    max_hours: float | None = None
    """The whole search may take so many hours, earlier starts and the confirmation included."""

    confirm: int = 3
    """Train the best settings and those of the plain configuration with so many other seeds, and compare their test
    scores. 0 leaves that out; a space of nothing but repetitions needs none."""

    retries: int = 3
    """How often a trial whose workers were killed (by the kernel or by somebody) goes on from its checkpoint before it
    counts as failed."""

    warm: bool = True
    """Keep a process that has imported everything, from which the workers of the next trial are forked (trials of one
    process on this machine)."""

    keep_checkpoints: bool = True
    """Keep the last checkpoint of trials that were not promoted: where the search is extended, they may be. `false`
    deletes them when the search ends; a trial that is promoted after that begins anew."""

    keep_models: bool = False
    """Keep the weights of every trial that came to its end; else those of the best one."""

    retry_failed: bool = False
    """Run trials again that failed; else they count as the worst."""

    dry_run: bool = False
    """Only say which trials come first, how far they train, and what is left of the budget."""

    report_only: bool = False
    """Only draw the page again from the results that are there."""

    take: str | None = None
    """`pipeline=training search.take=NAME` is the run of a search's best settings: its whole configuration takes the
    place of the default one, and what is there already is not trained again. Keys beside it change it."""

    @property
    def at_once(self) -> int:
        """How many trials run at once."""
        return self.machines or self.parallel

    def __post_init__(self) -> None:
        self.sampler = Sampler(self.sampler)
        self.space = read_space(self.space)
        at_least(self, "search", 1, "trials", "rungs", "parallel", "machines")
        if self.machines and self.parallel > 1:
            raise ConfigError("search.machines and search.parallel exclude each other: trials run there, or here")
        at_least(self, "search", 2, "halving", more=", or null for no halving")
        at_least(self, "search", 0, "retries")
        above_zero(self, "search", "max_usd", "max_hours", more=", or null for no limit")
        if self.confirm < 0 or self.confirm == 1:
            raise ConfigError(f"search.confirm={self.confirm}: one seed has no interval; give 2 or more, or 0")
        if self.mode not in ("auto", "max", "min"):
            raise ConfigError(f"search.mode={self.mode}: allowed are auto, max, min")
        for key in ("rungs", "asynchronous"):
            if getattr(self, key) and not self.halving:
                raise ConfigError(f"search.{key} has an effect only together with search.halving")
        if self.dry_run and self.report_only:
            raise ConfigError("search.dry_run and search.report_only exclude each other")


@dataclass(frozen=True)
class Dimension:
    """The values that a key may take: a list, or a range."""

    key: str
    choices: tuple[Any, ...] | None = None
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    log: bool = False
    whole: bool = False
    """Whether the numbers of a range are whole ones."""

    @property
    def ends(self) -> tuple[Any, ...]:
        """All values of a list, the ends of a range."""
        if self.choices is not None:
            return self.choices
        return (int(self.low), int(self.high)) if self.whole else (self.low, self.high)

    def holds(self, value: Any) -> bool:
        """Whether a value lies inside."""
        if self.choices is not None:
            return any(type(value) is type(one) and value == one for one in self.choices)
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            return False
        return self.low <= value <= self.high and (self.step is None or _multiple(value - self.low, self.step))

    def __str__(self) -> str:
        if self.choices is not None:
            return "[" + ", ".join(map(shown, self.choices)) + "]"
        numbers = [*self.ends, *([] if self.step is None else [int(self.step) if self.whole else self.step])]
        return f"{'log' * self.log}{'int' if self.whole else 'uniform'}({', '.join(map(shown, numbers))})"


FORMS = {"uniform": (False, False), "loguniform": (True, False), "int": (False, True), "logint": (True, True)}
"""By the name of a range: whether it is drawn by its logarithm, and whether its numbers are whole."""

_RANGE = re.compile(r"([A-Za-z_]\w*)\s*\(([^()]*)\)")


def read_space(space: Any) -> dict[str, Any]:
    """Return a space as plain values by key: lists and the texts of ranges.

    Raises:
        ConfigError: it is no group of keys and values, with what is wrong.
    """
    if isinstance(space, str):
        import yaml

        try:
            space = yaml.safe_load(_RANGE.sub(lambda found: f'"{found[0]}"', space))
        except yaml.YAMLError as error:
            raise ConfigError(f"search.space={' '.join(space.split())}: {_EXAMPLE}") from error
    if space is None:
        return {}
    if not isinstance(space, dict):
        raise ConfigError(f"search.space={space}: {_EXAMPLE}")
    return flatten(space)


_EXAMPLE = "must be keys with lists or ranges, as {optimizer.lr: loguniform(1e-6,1e-3), batch.global_size: [16,32]}"


def dimension(key: str, values: Any) -> Dimension:
    """Return what a key of the space may be.

    Raises:
        ConfigError: no list and no range, or an empty one.
    """
    where = f"search.space.{key}"
    if isinstance(values, (list, tuple)):
        choices = tuple(_number(value) for value in values)
        if not choices:
            raise ConfigError(f"{where}: an empty list; give at least two values, or leave the key out")
        if any(choices.count(value) > 1 for value in choices):
            raise ConfigError(f"{where}: a value is there twice in {list(choices)}")
        return Dimension(key, choices)
    found = _RANGE.fullmatch(str(values).strip().strip("'\""))  # in quotes, as other programs want it
    if found is None or found[1] not in FORMS:
        raise ConfigError(
            f"{where}={values}: must be a list or a range: [1,2,3], uniform(low,high), loguniform(low,high), "
            "int(low,high) or logint(low,high)"
        )
    log, whole = FORMS[found[1]]
    try:
        numbers = [float(text) for text in found[2].split(",")]
    except ValueError:
        numbers = []
    if not all(map(math.isfinite, numbers)) or not 2 <= len(numbers) <= 2 + (not log):
        raise ConfigError(
            f"{where}={values}: {found[1]} takes {'two' if log else 'two or three'} numbers, low and high"
        )
    low, high, *rest = numbers
    if not low < high:
        raise ConfigError(f"{where}={values}: an empty range: {low:g} must be below {high:g}")
    if log and low <= 0:
        raise ConfigError(f"{where}={values}: a logarithmic range must begin above 0")
    if whole and not all(number.is_integer() for number in numbers):
        raise ConfigError(f"{where}={values}: {found[1]} takes whole numbers")
    if rest and not 0 < rest[0] <= high - low:
        raise ConfigError(f"{where}={values}: the step must be above 0 and at most {high - low:g}")
    return Dimension(key, None, low, high, rest[0] if rest else None, log, whole)


def shown(value: Any) -> str:
    """Return a value of a setting as it is written on the command line, numbers with four digits."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _number(value: Any) -> Any:
    """Return `1e-5` as a number: YAML reads it as text."""
    if isinstance(value, str) and re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)", value):
        return float(value)
    return value


def _multiple(distance: float, step: float) -> bool:
    return abs(distance / step - round(distance / step)) < 1e-9
