"""Numbers in a cluster's variables, checked: what makes no sense is refused by the variable's name."""

import re
from collections.abc import Mapping

from ..config import ConfigError

LAST_PORT = 65534
"""Node 0 waits on a port, torchrun on the one after it."""


def count(environ: Mapping[str, str], name: str) -> int:
    """Return how many a variable says that there are.

    Raises:
        ConfigError: it is not set, or is no whole number from 1.
    """
    found = _number(environ, name)
    if found < 1:
        raise ConfigError(f"{name}={found}: must be at least 1")
    return found


def rank(environ: Mapping[str, str], name: str, machines: int) -> int:
    """Return which of so many machines this is, from 0; where there is one, the variable may be missing.

    Raises:
        ConfigError: it is not set, is no whole number, or there are not so many machines.
    """
    if name not in environ and machines == 1:
        return 0
    found = _number(environ, name)
    if found >= machines:
        there = f"there are {machines} machines, the last is {machines - 1}" if machines > 1 else "there is one machine"
        raise ConfigError(f"{name}={found}: {there} (launch.nodes=1 trains on this one alone)")
    return found


def port(environ: Mapping[str, str], name: str) -> int:
    """Return a port.

    Raises:
        ConfigError: it is not set, is no whole number, or no port.
    """
    found = _number(environ, name)
    if not 0 < found <= LAST_PORT:
        raise ConfigError(f"{name}={found}: must lie between 1 and {LAST_PORT}")
    return found


def _number(environ: Mapping[str, str], name: str) -> int:
    if name not in environ:
        raise ConfigError(f"{name} is not set, other variables of several machines are (launch.nodes=1 ignores them)")
    said = environ[name].strip()
    if not re.fullmatch(r"[0-9]{1,9}", said):
        raise ConfigError(f"{name}={' '.join(said.split())[:40]}: must be a whole number")
    return int(said)
