"""The starts of a cell as attempts that were paid for."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..launch.prices import Price
from ..report.cost import Attempt, recorded
from .cells import Cell
from .store import ResultsStore


def attempts_of(store: ResultsStore, cell: Cell, price: Price) -> list[Attempt]:
    """Return the attempts of a cell over all its starts: what a launcher that brings machines has recorded and paid,
    else a start of this package from its beginning to when it was last seen, at the design's price."""
    found = []
    for start in store.starts(cell.name):
        found += [Attempt(**entry) for entry in start.get("recorded") or []] or [_attempt(start, cell, price)]
    return found


def recorded_by(job: Path | None) -> dict[str, Any]:
    """Return what the launcher of a job has recorded, for the note of its start; empty where it records nothing."""
    found = recorded(job) if job is not None else []
    return {"recorded": [asdict(attempt) for attempt in found]} if found else {}


def _attempt(start: dict[str, Any], cell: Cell, price: Price) -> Attempt:
    return Attempt(
        {"wall_s": max(0.0, start["seen"] - start["began"])},
        price.usd_per_hour,
        cell.machine.nodes,
        cell.machine.priced,
        start.get("ended", "killed"),
        price.source,
    )
