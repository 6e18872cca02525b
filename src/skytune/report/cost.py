"""What a run costs: the seconds of every attempt times the price that was paid for them. An unknown price stays
unknown ("n/a"), it never becomes 0.

Attempts come from the launcher that brought the machines (`outputs/cost.json` in the job directory: under `attempts`
one object each with `machine`, `nodes`, `hourly_usd` of all of them together, `phases` in seconds, and how it `ended`);
on a machine that was there anyway from what the run itself wrote down (`spent` in `result.json`), at
`compute.usd_per_hour`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..job import read_json
from . import text

RECORD = "cost.json"
"""In a job's outputs, written by a launcher that brings machines."""

RENTED = "SkyPilot"
"""Where the price of a machine comes from that was brought up for the run."""

NO_MACHINE = "no machine"
"""How an attempt ended that got none: nothing was paid."""


@dataclass(frozen=True)
class Attempt:
    """One start of a job on machines that are paid for."""

    phases: Mapping[str, float]
    """Paid seconds by phase, `_s` at the end of the names as in `result.json`: `provision_s`, `setup_s`, ..."""

    usd_per_hour: float | None = None
    """What was paid for one machine; None where nobody knows."""

    machines: int = 1
    machine: str = "this machine"
    """For people."""

    ended: str = ""
    """`completed`, `preempted`, `failed`, ..."""

    source: str = ""
    """Where the price comes from."""

    @property
    def seconds(self) -> float:
        """Paid seconds."""
        return float(sum(self.phases.values()))

    @property
    def usd(self) -> float | None:
        """Dollars of all machines together."""
        return None if self.usd_per_hour is None else self.seconds / 3600 * self.usd_per_hour * self.machines


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

    @property
    def usd_by_phase(self) -> dict[str, float] | None:
        """Dollars by phase; None where a price is unknown."""
        if self.usd is None:
            return None
        found: dict[str, float] = {}
        for attempt in self.attempts:
            rate = (attempt.usd_per_hour or 0.0) * attempt.machines / 3600
            for name, seconds in attempt.phases.items():
                found[name] = found.get(name, 0.0) + seconds * rate
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers as plain values, for metadata; what is unknown is left out."""
        last = self.attempts[-1] if self.attempts else None
        values = {
            "usd": None if self.usd is None else round(self.usd, 6),
            "usd_per_hour": last.usd_per_hour if last else None,
            "paid_s": round(self.seconds, 3),
            "attempts": len(self.attempts),
            "machine": last.machine if last else None,
            "machines": last.machines if last else None,
        }
        if last is not None and last.source == RENTED:
            before = [attempt.usd for attempt in self.attempts[:-1]]
            spent = {**last.phases, "lost_s": sum(attempt.seconds for attempt in self.attempts[:-1])}
            rate = None if last.usd_per_hour is None else last.usd_per_hour * last.machines / 3600
            for name, seconds in spent.items():
                values[name] = round(seconds, 3)
                usd = None if rate is None else seconds * rate
                if name == "lost_s":
                    usd = None if None in before else sum(part for part in before if part is not None)
                values[f"{name.removesuffix('_s')}_usd"] = None if usd is None else round(usd, 6)
        return {f"cost/{key}": value for key, value in values.items() if value is not None}

    def line(self) -> str:
        """Return one line for a person: `$0.90: 45 min 00 s in 2 attempts on g5.xlarge at $1.20 an hour`."""
        if not self.attempts:
            return f"{text.MISSING} (nothing was measured)"
        last = self.attempts[-1]
        count = f" in {len(self.attempts)} attempts" if len(self.attempts) > 1 else ""
        several = f"{last.machines} x " if last.machines > 1 and not last.machine.startswith(f"{last.machines}") else ""
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


def _attempts(record: Any) -> list[Attempt]:
    entries = record.get("attempts") if isinstance(record, Mapping) else None
    return [_attempt(entry) for entry in entries or []]


def _attempt(entry: Mapping[str, Any]) -> Attempt:
    nodes, hourly, ended = int(entry.get("nodes") or 1), entry.get("hourly_usd"), str(entry.get("ended") or "")
    if ended == NO_MACHINE:
        hourly = 0.0
    each = None if hourly is None else hourly / nodes
    machine = str(entry.get("machine") or "a machine")
    return Attempt(dict(entry.get("phases") or {}), each, nodes, machine, ended=ended, source=RENTED)


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
        before = [Attempt({"earlier_s": lost / count}, usd_per_hour, ended="ended early")] * count
    return Cost([*before, Attempt(phases, usd_per_hour, ended=str(result.get("status", "")), source=source)])
