"""One line of a report on readiness: what was looked at, how bad it is, and the way out."""

from dataclasses import dataclass
from enum import Enum


class Level(str, Enum):
    """How bad a finding is."""

    ok = "ok"
    warn = "warn"
    fail = "FAIL"


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report."""

    level: Level
    name: str
    """What was looked at, one or two words."""

    text: str
    """What was found."""

    way_out: str = ""
    """What to do about it; empty when all is well."""
