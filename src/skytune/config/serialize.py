"""Configuration to plain values (for a job file) and back, strictly: an unknown key or a wrong type is an error."""

import dataclasses
import difflib
import sys
import types
import typing
from enum import Enum
from typing import Any, TypeVar

from .errors import ConfigError
from .renamed import KEYS

T = TypeVar("T")


def to_dict(config: Any) -> Any:
    """Return the configuration as dicts, lists and scalars that JSON can hold."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: to_dict(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, Enum):
        return config.value
    if isinstance(config, dict):
        return {key: to_dict(value) for key, value in config.items()}
    if isinstance(config, (list, tuple)):
        return [to_dict(value) for value in config]
    return config


def from_dict(cls: type[T], values: dict[str, Any], key: str = "") -> T:
    """Build the dataclass `cls` from plain values.

    Raises:
        ConfigError: a key that `cls` does not have, or a value of another type; the message starts with the key.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{key or 'config'}={values!r}: must be a group of keys")
    hints = typing.get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for name in values:
        if name not in names:
            raise ConfigError(unknown_key(f"{key}.{name}" if key else str(name), names))
    return cls(**{n: _convert(hints[n], v, f"{key}.{n}" if key else n) for n, v in values.items()})


def unknown_key(key: str, allowed: list[str]) -> str:
    """Return the message for a key that does not exist, with the nearest one that does."""
    group, _, name = key.rpartition(".")
    close = [KEYS[key].rpartition(".")[2]] if key in KEYS else difflib.get_close_matches(name, allowed, n=1)
    prefix = f"{group}." if group else ""
    hint = f"did you mean {prefix}{close[0]}?" if close else f"allowed: {', '.join(allowed)}"
    return f"unknown key '{key}': {hint} (a key of your own: +extra.{name}=...)"


def describe(hint: Any) -> str:
    """Return the name of a type as a person would say it."""
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "one of " + ", ".join(member.value for member in hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join("null" if arg is type(None) else describe(arg) for arg in typing.get_args(hint))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if typing.get_origin(hint) is list:
        return "a list"
    if typing.get_origin(hint) is dict:
        return "a group of keys"
    return names.get(hint, str(hint))


def _convert(hint: Any, value: Any, key: str) -> Any:
    """Return `value` as the type `hint`; numbers widen (1 is a float), nothing else changes its type."""
    origin = typing.get_origin(hint)
    if hint is Any:
        return to_dict(value)
    if origin in (typing.Union, types.UnionType):
        for arg in typing.get_args(hint):
            if arg is type(None):
                if value is None:
                    return None
                continue
            try:
                return _convert(arg, value, key)
            except ConfigError:
                continue
    elif dataclasses.is_dataclass(hint):
        return value if isinstance(value, typing.cast(type, hint)) else from_dict(typing.cast(type, hint), value, key)
    elif isinstance(hint, type) and issubclass(hint, Enum):
        if isinstance(value, hint):
            return value
        if value in [member.value for member in hint]:
            return hint(value)
    elif origin is list:
        if isinstance(value, (list, tuple)):
            (item,) = typing.get_args(hint)
            return [_convert(item, v, f"{key}[{i}]") for i, v in enumerate(value)]
    elif origin is dict:
        if isinstance(value, dict):
            _, item = typing.get_args(hint)
            return {str(k): _convert(item, v, f"{key}.{k}") for k, v in value.items()}
    elif hint is float:
        # Not a number and infinity pass comparisons that they should fail.
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
            return float(value)
    elif hint in (int, str, bool) and type(value) is hint:
        return value
    raise ConfigError(f"{key}={value!r}: must be {describe(hint)}")
