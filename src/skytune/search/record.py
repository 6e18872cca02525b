"""What a search has written down: its trials in their order, and what every cell of theirs has come to.

<SKYTUNE_HOME>/searches/<name>/search.json           the space, the rungs, the trials and their settings, the result
<SKYTUNE_HOME>/searches/<name>/cells/<cell>.json     a cell's row: scores by rung, how it ended
<SKYTUNE_HOME>/searches/<name>/attempts/<cell>.json  starts of a cell, as an experiment's
<SKYTUNE_HOME>/searches/<name>/results.csv, results.parquet, report.html, optuna.journal
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..config import UserError
from ..job import read_json, write_json
from ..study.cells import Cell
from ..study.store import ResultsStore
from .ladder import Ladder
from .space import Setting, Space

log = logging.getLogger(__name__)

SCHEMA = 1
FILE = "search.json"
FOLDER = "searches"

PAUSED, DONE, FAILED = "paused", "done", "failed"
"""Status of a cell that stands at a rung, came to its end, or cannot; another one goes on."""


def search_store(name: str) -> ResultsStore:
    """Return the folder of a search."""
    return ResultsStore(name, FOLDER, "search.name")


@dataclass(frozen=True)
class Trial:
    """One setting, with a cell for every repetition."""

    number: int
    setting: Setting
    cells: list[Cell]


class SearchTable:
    """The table of one search."""

    def __init__(self, store: ResultsStore, space: Space) -> None:
        self.store, self.space = store, space
        self.path = store.path / FILE
        self.values = read_record(store) or {"schema": SCHEMA, "began": time.time(), "trials": [], "dropped": 0}
        self.trials: list[Trial] = []
        self.rows = store.read()

    def open(self, ladder: Ladder, trials: int) -> None:
        """Take up the trials that are there and lie inside the space; say which do not."""
        written, now = self.values.get("space"), self.space.as_text()
        kept, lost = [], 0
        for entry in self.values["trials"]:
            setting = dict(entry["setting"])
            cells = self.space.cells(setting) if self.space.holds(setting) else []
            if cells and entry["cells"][: len(cells)] == [cell.name for cell in cells][: len(entry["cells"])]:
                kept.append(Trial(entry["number"], setting, cells))
            else:
                lost += 1
        if lost or (written is not None and written != now):
            what = "the space changed" if written != now else "the configuration around the trials changed"
            log.info("%s: %d of %d earlier trials lie inside and are kept", what, len(kept), len(kept) + lost)
        self.trials = kept
        began = self.values.get("ladder")
        if began is None or not kept:
            self.values["ladder"] = {"eta": ladder.eta, "rungs": ladder.rungs, "trials": trials}
        elif (began["eta"], began["rungs"]) != (ladder.eta, ladder.rungs) and ladder.eta == began["eta"]:
            log.info("the rungs stay those that this search began with: %d", began["rungs"])
        elif ladder.eta != began["eta"]:
            raise UserError(
                f"search.halving: {self.store.path} was begun with {_told_eta(began['eta'])}; keep that, or give the "
                "search another search.name"
            )
        self.values["space"] = now
        self.save()

    @property
    def ladder(self) -> Ladder:
        """The rungs that this search began with."""
        began = self.values["ladder"]
        return Ladder(began["eta"], began["rungs"])

    @property
    def planned(self) -> int:
        """How many trials it began with."""
        return int(self.values["ladder"]["trials"])

    def add(self, setting: Setting) -> Trial:
        """Write down a new trial, before anything of it runs."""
        numbers = [entry["number"] for entry in self.values["trials"]]
        trial = Trial(max(numbers, default=-1) + 1, setting, self.space.cells(setting))
        names = [cell.name for cell in trial.cells]
        self.values["trials"].append({"number": trial.number, "setting": setting, "cells": names})
        self.trials.append(trial)
        self.save()
        return trial

    def write(self, cell: Cell, row: dict[str, Any]) -> None:
        """Write the row of a cell."""
        self.rows[cell.name] = row
        self.store.write(cell.name, row)

    def save(self, **more: Any) -> None:
        """Write the search itself."""
        self.values |= more
        write_json(self.path, self.values)

    def row(self, cell: Cell) -> Mapping[str, Any]:
        """Return what is known of a cell."""
        return self.rows.get(cell.name) or {}

    def failed(self, trial: Trial) -> bool:
        """Whether one of the trial's cells cannot come to its end."""
        return any(self.row(cell).get("status") == FAILED for cell in trial.cells)

    def score(self, trial: Trial, rung: int) -> float | None:
        """Return the mean score of a trial's cells at a rung; None where one has none."""
        found = [score_at(self.row(cell), rung) for cell in trial.cells]
        known = [score for score in found if score is not None]
        return sum(known) / len(known) if found and len(known) == len(found) else None

    def ended(self, trial: Trial, rung: int) -> bool:
        """Whether there is nothing left to run of a trial up to a rung."""
        return self.failed(trial) or self.score(trial, rung) is not None

    def standing(self, rung: int, trials: Sequence[Trial] | None = None) -> dict[int, float | None]:
        """Return the scores at a rung of the trials that have come to it, by number."""
        here = self.trials if trials is None else trials
        return {trial.number: self.score(trial, rung) for trial in here if self.score(trial, rung) is not None}

    def highest(self, trial: Trial) -> int:
        """Return the highest rung that a trial has come to; -1 for none."""
        return max((rung for rung in range(self.ladder.rungs) if self.score(trial, rung) is not None), default=-1)

    def trial(self, number: int) -> Trial:
        """Return a trial by its number."""
        return next(trial for trial in self.trials if trial.number == number)


def score_at(row: Mapping[str, Any], rung: int) -> float | None:
    """Return a cell's score at a rung. One that ended early (`early_stopping`) has its last score from there on."""
    scores = row.get("scores") or []
    if rung < len(scores):
        found = scores[rung]["score"]
    elif row.get("status") == DONE and scores:
        found = scores[-1]["score"]
    else:
        return None
    return None if found is None else float(found)


def read_record(store: ResultsStore) -> dict[str, Any] | None:
    """Return what `search.json` holds; None where there is none.

    Raises:
        UserError: it is not one of this version.
    """
    path = store.path / FILE
    if not path.is_file():
        return None
    values = read_json(path)
    if not isinstance(values, dict) or values.get("schema") != SCHEMA or not isinstance(values.get("trials"), list):
        raise UserError(f"{path} is no search of this version: move it away, and the search begins anew")
    return values


def _told_eta(eta: int) -> str:
    return "no halving (search.halving=null)" if eta == 1 else f"search.halving={eta}"
