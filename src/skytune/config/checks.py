"""Checks that many groups of the configuration have in common; a value that is not set (null) passes all of them."""

import math
from collections.abc import Callable
from typing import Any

from .errors import ConfigError


def at_least(config: Any, group: str, least: int, *names: str, more: str = "") -> None:
    """Refuse values of fields below `least`; `group` is the key of `config`, and `more` goes on with the message.

    Raises:
        ConfigError: with the key, as all of these.
    """
    must = f"must be at least {least}" if least else "must not be negative"
    _check(config, group, names, lambda value: least <= value < math.inf, must + more)


def above_zero(config: Any, group: str, *names: str, more: str = "") -> None:
    """Refuse values that are not above 0."""
    _check(config, group, names, lambda value: 0 < value < math.inf, f"must be above 0{more}")


def below_one(config: Any, group: str, *names: str) -> None:
    """Refuse values that are not at least 0 and below 1."""
    _check(config, group, names, lambda value: 0 <= value < 1, "must be at least 0 and below 1")


def is_seed(config: Any, group: str) -> None:
    """Refuse a `seed` that numpy does not take."""
    _check(config, group, ("seed",), lambda value: 0 <= value < 2**32, "must lie between 0 and 2**32 - 1")


def together(config: Any, group: str, name: str, other: str) -> None:
    """Refuse a field that is set without the one that makes it count."""
    if getattr(config, name) and not getattr(config, other):
        raise ConfigError(f"{group}.{name} has an effect only together with {group}.{other}")


def has_targets(group: str, specs: dict[str, Any], kind: str) -> None:
    """Refuse entries that do not say what they are."""
    for name, spec in specs.items():
        if not (isinstance(spec, dict) and isinstance(spec.get("_target_"), str)):
            shown = name if str(name).isprintable() else repr(name)
            raise ConfigError(f"{group}.{shown}: needs _target_: package.module.{kind}")


def _check(config: Any, group: str, names: tuple[str, ...], fine: Callable[[Any], bool], must: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not fine(value):
            raise ConfigError(f"{group + '.' if group else ''}{name}={value}: {must}")
