"""Factors and levels as a design writes them: which keys each sets, and what no design may say."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..config import BenchmarkConfig, ConfigError
from ..config.docs import field_type

KEYS = {
    "rows": "data.max_rows",
    "processes": "launch.num_processes",
    "model": "model.name",
    "strategy": "strategy.name",
    "precision": "precision",
    "batch": "batch.global_size",
    "lr": "optimizer.lr",
    "scale_lr": "schedule.scale_lr",
    "fast": "compute.fast",
}
"""The key that a factor sets; other factors are keys themselves."""

COMPUTE = "compute"

Level = tuple[Any, dict[str, Any]]
"""Label, and the keys that it sets."""


def levels_of(design: BenchmarkConfig) -> list[list[Level]]:
    """Return the levels of every factor, in the order of the design.

    Raises:
        ConfigError: a factor that there is not, or that another one overrules; a level that is there twice; an
            exclusion of what there is not.
    """
    factors = [[_level(name, level) for level in levels] for name, levels in design.factors.items()]
    for name, levels in zip(design.factors, factors, strict=True):
        labels = [label for label, _ in levels]
        twice = next((label for label in labels if labels.count(label) > 1), None)
        if twice is not None:
            raise ConfigError(f"benchmark.factors.{name}: the level {twice} is there twice")
    _check_keys(design, factors)
    _check_exclude(design, factors)
    return factors


def excluded(design: BenchmarkConfig, levels: Mapping[str, Any]) -> bool:
    """Return whether the design leaves a combination of levels (label by factor, and `seed`) out."""

    def fits(level: Any, wanted: Any) -> bool:
        return any(_is(level, one) for one in (wanted if isinstance(wanted, list) else [wanted]))

    return any(all(fits(levels[name], wanted) for name, wanted in entry.items()) for entry in design.exclude)


def _check_keys(design: BenchmarkConfig, factors: Sequence[Sequence[Level]]) -> None:
    """Refuse keys that something else sets, too: one of the two would be ignored without a word."""
    owner: dict[str, str] = {}
    for name, levels in zip(design.factors, factors, strict=True):
        for key in {key for _, keys in levels for key in keys}:
            if key == "seed":
                raise ConfigError(f"benchmark.factors.{name}: benchmark.seeds lists the seeds of every cell")
            if owner.setdefault(key, name) != name:
                raise ConfigError(f"benchmark.factors: '{owner[key]}' and '{name}' both set {key}; keep one of them")


def _check_exclude(design: BenchmarkConfig, factors: Sequence[Sequence[Level]]) -> None:
    """Refuse to exclude what there is not: a slip of the pen would leave the combination in, and pay for it."""
    there = {name: [label for label, _ in levels] for name, levels in zip(design.factors, factors, strict=True)}
    there["seed"] = list(design.seeds)
    for entry in design.exclude:
        for name, wanted in entry.items():
            for one in wanted if isinstance(wanted, list) else [wanted]:
                if not any(_is(label, one) for label in there[name]):
                    levels = ", ".join(str(label) for label in there[name])
                    raise ConfigError(f"benchmark.exclude: {name} has no level {one} ({levels})")


def _is(label: Any, wanted: Any) -> bool:
    wanted = "all" if wanted is None else wanted
    return label == _number(wanted) or str(label) == str(wanted)


def _level(factor: str, level: Any) -> tuple[Any, dict[str, Any]]:
    """Return a level's label, and the keys that it sets."""
    if isinstance(level, dict):
        values = {str(key): value for key, value in level.items() if key != "label"}
        label = level.get("label") or ", ".join(f"{key}={value}" for key, value in values.items())
        return label, {KEYS.get(key, key): _number(value) for key, value in values.items()}
    if factor == COMPUTE:
        return str(level), {COMPUTE: level}
    if isinstance(level, list):
        raise ConfigError(f"benchmark.factors.{factor}: a level is a value or a group of keys, not a list: {level}")
    if factor in KEYS:
        _known(f"benchmark.factors.{factor}", KEYS[factor])
    else:
        _known(f"benchmark.factors.{factor}", factor)
    number = _number(level)
    return ("all" if level is None else number), {KEYS.get(factor, factor): number}


def _known(said: str, key: str) -> None:
    try:
        field_type(key)
    except ConfigError as error:
        allowed = ", ".join([COMPUTE, *KEYS])
        raise ConfigError(f"{said}: no such factor: {error}; factors are {allowed}, or keys") from error


def _number(level: Any) -> Any:
    """Return `10k` as 10000 and `1M` as 1000000; anything else as it is."""
    short = re.fullmatch(r"(\d+(?:\.\d+)?)([kM])", level) if isinstance(level, str) else None
    return round(float(short[1]) * {"k": 1e3, "M": 1e6}[short[2]]) if short else level
