"""What a run costs: the seconds of every attempt times the price that was paid for them. An unknown price stays
unknown ("n/a"), it never becomes 0.

Attempts come from the launcher that brought the machines (`outputs/cost.json` in the job directory: under `attempts`
one object each with `machine`, `nodes`, `hourly_usd` of all of them together, `phases` in seconds, and how it `ended`);
on a machine that was there anyway from what the run itself wrote down (`spent` in `result.json`), at
`compute.usd_per_hour`.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..common import text
from ..job import read_json

RECORD = "cost.json"
"""In a job's outputs, written by a launcher that brings machines."""

RENTED = "SkyPilot"
"""Where the price of a machine comes from that was brought up for the run."""

NO_MACHINE = "no machine"
"""How an attempt ended that got none: nothing was paid."""


PHASES = ("provision_s", "setup_s", "job_s", "idle_s", "collect_s", "down_s")
"""Of an attempt on rented machines: bringing them up and sending the files; installing; the job itself; the time after
its end in which nobody came for the results; fetching them; taking machines down."""

LOST = "lost_s"
"""All attempts but the last one, which has what they did."""


@dataclass(kw_only=True)
class Attempt:
    """One start of a job on machines that are paid for."""

    machine: str = "this machine"
    """For people."""

    nodes: int = 1
    """How many there are."""

    hourly_usd: float | None = None
    """What an hour of all of them together costs; None where nobody knows."""

    instance_type: str = ""
    """The cloud's name of the machine."""

    ended: str = ""
    """`completed`, `preempted`, `failed`, ..."""

    phases: Mapping[str, float] = field(default_factory=dict)
    """Paid seconds by phase, `_s` at the end of the names as in `result.json`: `provision_s`, `setup_s`, ..."""

    source: str = ""
    """Where the price comes from."""

    @property
    def seconds(self) -> float:
        """Paid seconds."""
        return float(sum(self.phases.values()))

    @property
    def usd_per_hour(self) -> float | None:
        """What was paid for an hour of one machine."""
        if self.ended == NO_MACHINE:
            return 0.0
        return None if self.hourly_usd is None else self.hourly_usd / self.nodes

    @property
    def usd(self) -> float | None:
        """Dollars of all machines together, from the first request to the last machine's end: a little more than a
        cloud asks for, since machines begin to cost only when they run."""
        return self.usd_of(self.seconds)

    def usd_of(self, seconds: float) -> float | None:
        """Dollars of so many seconds."""
        if self.ended == NO_MACHINE:
            return 0.0
        return None if self.hourly_usd is None else seconds / 3600 * self.hourly_usd


@dataclass(frozen=True)
class Cost:
    """What all attempts together cost."""

    attempts: Sequence[Attempt] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Paid seconds, of one machine."""
        return sum(attempt.seconds for attempt in self.attempts)

    @property
    def usd(self) -> float | None:
        """Dollars; None as soon as one attempt's price is unknown."""
        parts = [attempt.usd for attempt in self.attempts]
        return None if not parts or None in parts else float(sum(part for part in parts if part is not None))

    @property
    def phases(self) -> dict[str, float]:
        """Seconds by phase, over all attempts."""
        found: dict[str, float] = {}
        for attempt in self.attempts:
            for name, seconds in attempt.phases.items():
                found[name] = found.get(name, 0.0) + seconds
        return found

    def record(self) -> dict[str, Any]:
        """Return what goes into `result.json` and `cost.json`: dollars, seconds and dollars by phase of the last
        attempt and of those that were lost, and the attempts. What is not known for every attempt is None, never too
        small a number."""
        *before, last = self.attempts or [Attempt()]
        lost = [attempt.usd for attempt in before]
        seconds = {name: last.phases.get(name, 0.0) for name in PHASES}
        usd = {name: last.usd_of(value) for name, value in seconds.items()}
        seconds[LOST] = sum(attempt.seconds for attempt in before)
        usd[LOST] = None if None in lost else sum(value for value in lost if value is not None)
        listed = [
            {
                **asdict(attempt),
                "usd": _rounded(attempt.usd, 4),
                "phases": {name: round(value, 1) for name, value in attempt.phases.items()},
            }
            for attempt in self.attempts
        ]
        return {
            "usd": _rounded(self.usd, 4),
            "phases": {name: round(value, 1) for name, value in seconds.items()},
            "usd_by_phase": {name: _rounded(value, 4) for name, value in usd.items()},
            "attempts": listed,
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers as plain values, for metadata; what is unknown is left out."""
        last = self.attempts[-1] if self.attempts else None
        values = {
            "usd": _rounded(self.usd, 6),
            "usd_per_hour": last.usd_per_hour if last else None,
            "paid_s": round(self.seconds, 3),
            "attempts": len(self.attempts),
            "machine": last.machine if last else None,
            "machines": last.nodes if last else None,
        }
        if last is not None and last.source == RENTED:
            record = self.record()
            values |= record["phases"]
            values |= {f"{name.removesuffix('_s')}_usd": usd for name, usd in record["usd_by_phase"].items()}
        return {f"cost/{key}": value for key, value in values.items() if value is not None}

    def line(self) -> str:
        """Return one line for a person: `$0.90: 45 min 00 s in 2 attempts on g5.xlarge at $1.20 an hour`."""
        if not self.attempts:
            return f"{text.MISSING} (nothing was measured)"
        last = self.attempts[-1]
        count = f" in {len(self.attempts)} attempts" if len(self.attempts) > 1 else ""
        several = f"{last.nodes} x " if last.nodes > 1 and not last.machine.startswith(f"{last.nodes}") else ""
        span = f"{text.duration(self.seconds)}{count} on {several}{last.machine}"
        if self.usd is None:
            own = " (compute.usd_per_hour tells what this machine costs)" if last.machine == "this machine" else ""
            return f"{text.MISSING}, no price known: {span}{own}"
        prices = {attempt.usd_per_hour for attempt in self.attempts}
        price = (
            f"at {dollars(last.usd_per_hour)} an hour{' each' if several else ''}"
            if len(prices) == 1
            else "at the price of each attempt"
        )
        return f"{dollars(self.usd)}: {span} {price}" + (f" ({last.source})" if last.source else "")


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


def spent(row: Mapping[str, Any]) -> float | None:
    """Return what a cell of an experiment cost, from its row: nothing where it ended before its first start, None where
    a price is unknown."""
    never_started = row.get("attempts") == 0 and row.get("status") != "done"
    return 0.0 if never_started and row.get("usd_total") is None else row.get("usd_total")


def spent_in_all(rows: Iterable[Mapping[str, Any]]) -> tuple[float | None, int]:
    """Return what cells cost together, None where no price is known, and of how many the price is unknown."""
    parts = [(spent(row), row.get("usd_total")) for row in rows]
    unknown = sum(usd is None for usd, _ in parts)
    if not parts or (unknown and not any(usd for usd, _ in parts)):
        return None, unknown
    return sum(usd for usd, _ in parts if usd is not None), unknown


def dollars(usd: float | None) -> str:
    """Return dollars as a person reads them: cents, more digits for small amounts, n/a for what is unknown."""
    if usd is None or not text.is_number(usd):
        return text.MISSING
    if usd >= 0.0995 or usd == 0:
        return f"${usd:,.2f}"
    return f"${usd:.2g}" if usd >= 1e-4 else f"${usd:.1e}"


def recorded(run_folder: str | Path | None) -> list[Attempt]:
    """Return the attempts that a launcher wrote into a job directory; none where it wrote nothing.

    Raises:
        UserError: the file is not JSON.
    """
    path = Path(run_folder) / "outputs" / RECORD if run_folder else None
    return _attempts(read_json(path)) if path is not None and path.is_file() else []


def attempt_of(entry: Mapping[str, Any]) -> Attempt:
    """Return an attempt as a launcher or an experiment wrote it down."""
    known = {
        key: entry[key]
        for key in ("machine", "hourly_usd", "instance_type", "ended", "source")
        if entry.get(key) not in (None, "")
    }
    nodes, phases = int(entry.get("nodes") or 1), dict(entry.get("phases") or {})
    return Attempt(**{"machine": "a machine", "source": RENTED, **known}, nodes=nodes, phases=phases)


def _attempts(record: Any) -> list[Attempt]:
    entries = record.get("attempts") if isinstance(record, Mapping) else None
    return [attempt_of(entry) for entry in entries or []]


def cost_of(result: Mapping[str, Any], usd_per_hour: float | None = None) -> Cost:
    """Return what a run costs, from its `result.json` with `run_folder`.

    Args:
        usd_per_hour: price of the machine, where no launcher has recorded what it paid.
    """
    attempts = _attempts(result.get("cost")) or recorded(result.get("run_folder"))
    if attempts:
        return Cost(attempts)
    phases = {key: float(value) for key, value in (result.get("phases") or {}).items() if text.is_number(value)}
    if not phases:
        return Cost()
    source = "compute.usd_per_hour" if usd_per_hour is not None else ""
    spent = result.get("spent") or {}
    before = []
    lost = spent.get("wall_s", 0.0) - sum(phases.values())
    if spent.get("starts", 1) > 1 and lost > 0:
        # Earlier starts that were preempted or killed; training they did is in `train_s` already, which goes on.
        count = int(spent["starts"]) - 1
        earlier = {"earlier_s": lost / count}
        before = [Attempt(phases=earlier, hourly_usd=usd_per_hour, ended="ended early")] * count
    last = Attempt(phases=phases, hourly_usd=usd_per_hour, ended=str(result.get("status", "")), source=source)
    return Cost([*before, last])


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
