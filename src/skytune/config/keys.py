"""What kind of key a dotted name of the configuration is: fixed, free, text, a group."""

import dataclasses
import typing
from typing import Any

from .docs import field_type
from .errors import ConfigError


def in_dict(key: str) -> bool:
    """Whether the key lies inside a group of free keys (`extra`, `callbacks`, `model.args`, ...)."""
    parts = key.split(".")
    for cut in range(1, len(parts)):
        hint = field_type(".".join(parts[:cut]))
        if typing.get_origin(hint) is dict or hint is Any:
            return True
    return False


def takes_group(hint: Any) -> bool:
    """Whether a value of this type may be a group of keys."""
    return hint is Any or dataclasses.is_dataclass(hint) or typing.get_origin(hint) is dict


def wants_text(key: str) -> bool:
    """Whether there is such a key and its value is text."""
    try:
        return field_type(key) in (str, str | None)
    except ConfigError:
        return False


def without_dots(key: str) -> str:
    """Return the key with dots inside a free name (`prices.g5.xlarge`) taken for a part of the name."""
    parts = key.split(".")
    for cut in range(1, len(parts) - 1):
        hint = field_type(".".join(parts[:cut]))
        if typing.get_origin(hint) is dict and not takes_group(typing.get_args(hint)[1]):
            return ".".join([*parts[:cut], "_".join(parts[cut:])])
    return key


def is_plain(value: Any) -> bool:
    """Whether YAML and JSON can hold the value."""
    if isinstance(value, (list, tuple)):
        return all(is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    return value is None or type(value) in (bool, int, float, str)
