"""What a run on rented machines took: seconds by phase and dollars, those of lost attempts included."""

import time
from dataclasses import asdict
from typing import Any

from ...pricing.cost import Attempt, dollars

PHASES = {
    "provision_s": "provisioning",
    "setup_s": "setup",
    "job_s": "training",
    "idle_s": "idle",
    "collect_s": "fetching results",
    "down_s": "taking down",
}
"""Bringing machines up and sending the files; installing; the job itself; the time after its end in which nobody came
for the results; fetching them; taking machines down. In the words that are said of them."""

LOST = "lost_s"
"""All attempts but the last one, which has what they did."""


class Clock:
    """Seconds by phase; one phase runs at a time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._phase, self._since = "", time.monotonic()

    def enter(self, phase: str) -> None:
        """End the phase that runs and begin another ("" for none)."""
        now = time.monotonic()
        if self._phase:
            self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = phase, now

    @property
    def phase(self) -> str:
        """The phase that runs."""
        return self._phase

    @property
    def total(self) -> float:
        """Seconds of all phases that have ended."""
        return sum(self.seconds.values())


def report(attempts: list[Attempt]) -> dict[str, Any]:
    """Return what goes into `result.json`: dollars, seconds by phase of the last attempt and of those that were lost.

    A price that is not known for every attempt makes the sum None, never too small a number.
    """
    known = [attempt.usd for attempt in attempts]
    usd = None if not attempts or None in known else round(sum(value for value in known if value is not None), 4)
    last = attempts[-1].phases if attempts else {}
    phases = {name: round(last.get(name, 0.0), 1) for name in PHASES}
    phases[LOST] = round(sum(sum(attempt.phases.values()) for attempt in attempts[:-1]), 1)
    by_phase = None
    if usd is not None:
        by_phase = {name: round(attempts[-1].usd_of(last.get(name, 0.0)) or 0.0, 4) for name in PHASES}
        by_phase[LOST] = round(sum(value for value in known[:-1] if value is not None), 4)
    listed = [
        {
            **asdict(attempt),
            "usd": None if attempt.usd is None else round(attempt.usd, 4),
            "phases": {name: round(value, 1) for name, value in attempt.phases.items()},
        }
        for attempt in attempts
    ]
    return {"usd": usd, "phases": phases, "usd_by_phase": by_phase, "attempts": listed}


def line(attempts: list[Attempt]) -> str:
    """Return the cost as one line for the terminal: `cost: about $0.31, 1 attempt: provisioning 62 s ($0.04), ...`."""
    found = report(attempts)
    names, paid = {**PHASES, LOST: "lost attempts"}, found["usd_by_phase"]
    parts = [
        f"{names[name]} {value:.0f} s" + ("" if paid is None else f" ({dollars(paid[name])})")
        for name, value in found["phases"].items()
        if value
    ]
    many = f"{len(attempts)} attempts" if len(attempts) != 1 else "1 attempt"
    money = "n/a (SkyPilot knows no price)" if found["usd"] is None else f"about {dollars(found['usd'])}"
    return f"cost: {money}, {many}: {', '.join(parts)}"
