"""The results of an experiment on disk. The files of finished cells are the truth; table and page are derived.

<SKYTUNE_HOME>/benchmarks/<name>/cells/<cell>.json       a finished cell: its row; written whole or not at all
<SKYTUNE_HOME>/benchmarks/<name>/attempts/<cell>.json    starts of a cell: when each began and was last seen
<SKYTUNE_HOME>/benchmarks/<name>/results.parquet, results.csv, report.html
"""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..config import UserError
from ..config.folders import home
from ..job import read_json, write_json
from ..launch.run_dir import slug
from ..pricing.cost import Attempt, attempt_of, recorded
from ..pricing.prices import Price
from .cells import Cell

SCHEMA = 1

BESIDES = "machines"
"""Among the starts of cells: what machines cost while no cell ran there."""

FINISHED = ("done", "failed")
"""Status of a cell that is not run again; a cell that was `stopped` goes on."""


class ResultsStore:
    """One experiment's folder."""

    def __init__(self, name: str, folder: str = "benchmarks", key: str = "study.name") -> None:
        self.path = home() / folder / slug(name)
        self._key = key

    @contextmanager
    def claimed(self) -> Iterator["ResultsStore"]:
        """Hold the folder while cells run.

        Raises:
            UserError: another process runs this experiment; the folder cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / ".lock").open("a+")
        except OSError as error:
            raise UserError(
                f"cannot use {self.path}: {error.strerror} (SKYTUNE_HOME chooses another folder)"
            ) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"another process runs the experiment in {self.path}; {self._key}=NAME begins another one"
                ) from None
            yield self

    def read(self) -> dict[str, dict[str, Any]]:
        """Return the rows that are there, by cell; a file that is not one of ours is told by its name.

        Raises:
            UserError: a damaged file, or one of another version.
        """
        found = {}
        for path in sorted((self.path / "cells").glob("*.json")):
            entry = read_json(path)
            if not isinstance(entry, dict) or entry.get("schema") != SCHEMA:
                raise UserError(f"{path} is no result of this version: move it away, and the cell runs again")
            found[path.stem] = entry["row"]
        return found

    def write(self, cell: str, row: dict[str, Any]) -> None:
        """Write the row of a cell, whole or not at all."""
        write_json(self.path / "cells" / f"{cell}.json", {"schema": SCHEMA, "row": row})

    def starts(self, cell: str) -> list[dict[str, Any]]:
        """Return the starts of a cell so far: `began` and `seen` (seconds since the epoch), how it `ended`."""
        path = self.path / "attempts" / f"{cell}.json"
        return list(read_json(path)) if path.is_file() else []

    def start(self, cell: str, **facts: Any) -> None:
        """Write down that a cell is started."""
        now = time.time()
        self._put(cell, [*self.starts(cell), {"began": now, "seen": now, **facts}])

    def seen(self, cell: str, **facts: Any) -> None:
        """Write down that the newest start of a cell still runs, or how it ended."""
        starts = self.starts(cell)
        starts[-1] = {**starts[-1], "seen": time.time(), **facts}
        self._put(cell, starts)

    def forget(self, cell: str) -> None:
        """Take a cell's row and starts away: it begins anew."""
        for folder in ("cells", "attempts"):
            (self.path / folder / f"{cell}.json").unlink(missing_ok=True)

    def _put(self, cell: str, starts: list[dict[str, Any]]) -> None:
        write_json(self.path / "attempts" / f"{cell}.json", starts)


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
