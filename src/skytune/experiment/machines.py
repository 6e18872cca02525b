"""Machines by name: how many devices an EC2 instance has, and of which kind. Prices are not here: they change."""

import difflib
import re
from dataclasses import dataclass
from typing import Any

from ..config import ConfigError

LOCAL = "local"

INSTANCES: dict[str, tuple[str, int]] = {
    **dict.fromkeys(("g4dn.xlarge", "g4dn.2xlarge", "g4dn.4xlarge", "g4dn.8xlarge", "g4dn.16xlarge"), ("T4", 1)),
    "g4dn.12xlarge": ("T4", 4),
    "g4dn.metal": ("T4", 8),
    **dict.fromkeys(("g5.xlarge", "g5.2xlarge", "g5.4xlarge", "g5.8xlarge", "g5.16xlarge"), ("A10G", 1)),
    "g5.12xlarge": ("A10G", 4),
    "g5.24xlarge": ("A10G", 4),
    "g5.48xlarge": ("A10G", 8),
    **dict.fromkeys(("g6.xlarge", "g6.2xlarge", "g6.4xlarge", "g6.8xlarge", "g6.16xlarge"), ("L4", 1)),
    "g6.12xlarge": ("L4", 4),
    "g6.24xlarge": ("L4", 4),
    "g6.48xlarge": ("L4", 8),
    **dict.fromkeys(("g6e.xlarge", "g6e.2xlarge", "g6e.4xlarge", "g6e.8xlarge", "g6e.16xlarge"), ("L40S", 1)),
    "g6e.12xlarge": ("L40S", 4),
    "g6e.24xlarge": ("L40S", 4),
    "g6e.48xlarge": ("L40S", 8),
    "p3.2xlarge": ("V100", 1),
    "p3.8xlarge": ("V100", 4),
    "p3.16xlarge": ("V100", 8),
    "p3dn.24xlarge": ("V100", 8),
    "p4d.24xlarge": ("A100", 8),
    "p4de.24xlarge": ("A100-80GB", 8),
    "p5.4xlarge": ("H100", 1),
    "p5.48xlarge": ("H100", 8),
    "p5en.48xlarge": ("H200", 8),
}
"""Accelerator and how many of it, by EC2 instance type (AWS's instance pages; the names are SkyPilot's)."""

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
        level: `local`, `g5.xlarge`, `p4d.24xlarge x 2` (two nodes), `g5.xlarge spot`.
        own: instances beside those known here, as `benchmark.machines` has them.

    Raises:
        ConfigError: there is no such instance, or it cannot be had in this way.
    """
    found = NAME.match(str(level).strip())
    name = found["name"] if found else str(level)
    if name == LOCAL:
        if found is not None and (found["nodes"] or found["spot"]):
            raise ConfigError(f"benchmark.factors.compute={level}: local is this one machine, on no spot market")
        return Machine(LOCAL, "", 0)
    if name in own:
        entry = own[name]
        if not (isinstance(entry, dict) and isinstance(entry.get("devices"), int) and entry["devices"] > 0):
            raise ConfigError(f"benchmark.machines.{name}={entry}: needs devices (a number) and accelerator (a name)")
        accelerator, devices = str(entry.get("accelerator", name)), entry["devices"]
    elif name in INSTANCES and found is not None:
        accelerator, devices = INSTANCES[name]
    else:
        close = difflib.get_close_matches(name, [*INSTANCES, *own, LOCAL], n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(
            f"benchmark.factors.compute={level}: unknown instance '{name}': {hint}"
            f"'benchmark.machines={{{name}: {{accelerator: NAME, devices: NUMBER}}}}' adds one"
        )
    nodes = int(found["nodes"] or 1) if found else 1
    if nodes < 1:
        raise ConfigError(f"benchmark.factors.compute={level}: at least one node")
    return Machine(name, accelerator, devices, nodes, bool(found and found["spot"]))
