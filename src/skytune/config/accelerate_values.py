"""Values of an `accelerate config` file, read strictly: one of another type is refused by the name of its option."""

import math
from collections.abc import Mapping
from typing import Any

from .errors import ConfigError

KEY = "launch.accelerate_config"

MEANINGLESS: tuple[Any, ...] = (None, "", False, "false", "False", "no", "NO", [], [""], {}, "none", "null")
"""Values by which a file says that an option is not used."""

SWITCH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class Refused(ConfigError):
    """An option that cannot be honoured."""

    def __init__(self, option: str, value: Any, why: str) -> None:
        super().__init__(f"{KEY}: {option}={' '.join(str(value).split())}: {why}")


def integer(option: str, value: Any, least: int | None = None) -> int:
    """Return a whole number; a text of digits is one, 2.0 is, 2.5 and true are not.

    Raises:
        Refused: it is none, or less than `least`.
    """
    try:
        whole = int(value) if isinstance(value, str) else value
    except ValueError:
        whole = None
    if isinstance(whole, float) and whole.is_integer():
        whole = int(whole)
    if not isinstance(whole, int) or isinstance(whole, bool):
        raise Refused(option, value, "must be a whole number")
    if least is not None and whole < least:
        raise Refused(option, value, f"must be at least {least}")
    return whole


def number(option: str, value: Any) -> float:
    """Return a number; a text that spells one is one.

    Raises:
        Refused: it is none, or not finite.
    """
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise Refused(option, value, "must be a number")
    return found


def switch(option: str, value: Any) -> bool:
    """Return whether a value switches an option on; none at all does not.

    Raises:
        Refused: it says neither yes nor no.
    """
    word = str(value).strip().lower()
    if value is None or word == "":
        return False
    if word not in SWITCH:
        raise Refused(option, value, "must be true or false")
    return SWITCH[word]


def mapping(option: str, value: Any) -> dict[str, Any]:
    """Return a copy of a group of options; none at all is an empty one.

    Raises:
        Refused: it is no group, or a name in it is no text.
    """
    if value is None or value == "":
        return {}
    if not isinstance(value, Mapping):
        raise Refused(option, value, "must be a group of options")
    for name, inner in value.items():
        if not isinstance(name, str):
            raise Refused(f"{option}.{name}", inner, "is not known to this version (the name of an option is a text)")
    return dict(value)
