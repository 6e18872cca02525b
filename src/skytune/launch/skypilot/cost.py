"""What a run on rented machines took: seconds by phase and dollars, those of lost attempts included."""

import time
from dataclasses import asdict, dataclass, field
from typing import Any

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

NO_MACHINE = "no machine"
"""How an attempt ended that got none: nothing was paid."""

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


@dataclass(kw_only=True)
class Attempt:
    """One time that machines were brought up for the run."""

    machine: str
    """For people."""

    nodes: int
    hourly_usd: float | None
    """Of all machines together; None where SkyPilot does not know the price."""

    instance_type: str = ""
    """The cloud's name of the machine."""

    ended: str = ""
    """How: done, preempted, lost, failed, stopped, no machine."""

    phases: dict[str, float] = field(default_factory=dict)
    """Seconds."""

    @property
    def usd(self) -> float | None:
        """Dollars from the first request to the last machine's end: a little more than the cloud will ask for, since
        machines begin to cost only when they run. None where the price is unknown."""
        if self.ended == NO_MACHINE:
            return 0.0
        return None if self.hourly_usd is None else sum(self.phases.values()) / 3600 * self.hourly_usd


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
        rate = 0.0 if attempts[-1].ended == NO_MACHINE else (attempts[-1].hourly_usd or 0.0) / 3600
        by_phase = {name: round(last.get(name, 0.0) * rate, 4) for name in PHASES}
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


def dollars(usd: float) -> str:
    """Return an amount with cents, or with two digits that say something where it is less than a cent."""
    return f"${usd:.2f}" if usd >= 0.1 or not usd else f"${usd:.2g}"


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
