"""The starts of a cell as attempts that were paid for."""

from pathlib import Path
from typing import Any

from ..launch.prices import Price
from ..report.cost import Attempt, recorded
from .cells import Cell
from .store import ResultsStore


def attempts_of(store: ResultsStore, cell: Cell, price: Price, job: Path | None = None) -> list[Attempt]:
    """Return the attempts of a cell: those that its launcher recorded in the job directory with what it paid, else the
    starts of this package, from beginning to when each was last seen, at the design's price."""
    found = recorded(job) if job is not None else []
    return found or [_attempt(start, cell, price) for start in store.starts(cell.name)]


def _attempt(start: dict[str, Any], cell: Cell, price: Price) -> Attempt:
    return Attempt(
        {"wall_s": max(0.0, start["seen"] - start["began"])},
        price.usd_per_hour,
        cell.machine.nodes,
        str(cell.machine.instance),
        cell.machine.spot,
        start.get("ended", "killed"),
        price.source,
    )
