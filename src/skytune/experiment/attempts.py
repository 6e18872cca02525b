"""The starts of a cell as attempts that were paid for."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..pricing.cost import Attempt, attempt_of, recorded
from ..pricing.prices import Price
from .cells import Cell
from .store import ResultsStore


def attempts_of(store: ResultsStore, cell: Cell, price: Price) -> list[Attempt]:
    """Return the attempts of a cell over all its starts: what a launcher that brings machines has recorded and paid,
    else a start of this package from its beginning to when it was last seen, at the design's price."""
    found = []
    for start in store.starts(cell.name):
        found += [attempt_of(entry) for entry in start.get("recorded") or []] or [_attempt(start, cell, price)]
    return found


def recorded_by(job: Path | None) -> dict[str, Any]:
    """Return what the launcher of a job has recorded, for the note of its start; empty where it records nothing."""
    found = recorded(job) if job is not None else []
    return {"recorded": [asdict(attempt) for attempt in found]} if found else {}


def _attempt(start: dict[str, Any], cell: Cell, price: Price) -> Attempt:
    return Attempt(
        phases={"wall_s": max(0.0, start["seen"] - start["began"])},
        hourly_usd=price.hourly(cell.machine.nodes),
        nodes=cell.machine.nodes,
        machine=cell.machine.priced,
        ended=start.get("ended", "killed"),
        source=price.source,
    )
