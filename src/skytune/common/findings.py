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
    """One line of the doctor's report: what was looked at in one or two words, what was found, and what to do about it
    (empty when all is well)."""

    level: Level
    name: str
    text: str
    way_out: str = ""
