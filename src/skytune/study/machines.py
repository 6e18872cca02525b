"""Machines of a study by name."""

import difflib
import re
from dataclasses import dataclass
from typing import Any

from ..config import ConfigError
from ..pricing.instances import INSTANCES, bare

LOCAL = "local"

NAME = re.compile(r"^(?P<name>\S+?)(?:\s+x\s*(?P<nodes>\d+)(?:\s+nodes?)?)?(?P<spot>\s+spot)?$")


@dataclass(frozen=True)
class Machine:
    """Where a cell runs."""

    instance: str
    accelerator: str
    devices: int
    """Of one node; 0 where it is this machine, which runs as many processes as it is told to."""

    nodes: int = 1
    spot: bool = False

    @property
    def local(self) -> bool:
        """Whether it is this machine."""
        return self.instance == LOCAL

    @property
    def priced(self) -> str:
        """The name under which its price is given."""
        return f"{self.instance} spot" if self.spot else self.instance

    def __str__(self) -> str:
        nodes = f" x {self.nodes}" if self.nodes > 1 else ""
        return f"{self.instance}{nodes}{' spot' if self.spot else ''}"


def machine_of(level: Any, own: dict[str, Any]) -> Machine:
    """Return the machine that a level of `compute` names.

    Args:
        level: `local`, `g5.xlarge`, `p4d.24xlarge x 2` (two nodes), `g5.xlarge spot`, SageMaker's `ml.g5.xlarge`.
        own: instances beside those known here, as `study.machines` has them.

    Raises:
        ConfigError: there is no such instance, or it cannot be had in this way.
    """
    found = NAME.match(str(level).strip())
    name = found["name"] if found else str(level)
    if name == LOCAL:
        if found is not None and (found["nodes"] or found["spot"]):
            raise ConfigError(f"study.factors.compute={level}: local is this one machine, on no spot market")
        return Machine(LOCAL, "", 0)
    if name in own:
        entry = own[name]
        if not (isinstance(entry, dict) and isinstance(entry.get("devices"), int) and entry["devices"] > 0):
            raise ConfigError(f"study.machines.{name}={entry}: needs devices (a number) and accelerator (a name)")
        accelerator, devices = str(entry.get("accelerator", name)), entry["devices"]
    elif bare(name) in INSTANCES and found is not None:
        accelerator, devices = INSTANCES[bare(name)]
    else:
        close = difflib.get_close_matches(name, [*INSTANCES, *own, LOCAL], n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(
            f"study.factors.compute={level}: unknown instance '{name}': {hint}"
            f"'study.machines={{{name}: {{accelerator: NAME, devices: NUMBER}}}}' adds one"
        )
    nodes = int(found["nodes"] or 1) if found else 1
    if nodes < 1:
        raise ConfigError(f"study.factors.compute={level}: at least one node")
    return Machine(name, accelerator, devices, nodes, bool(found and found["spot"]))
