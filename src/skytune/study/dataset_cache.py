"""What cells are made of: splits are read, cut and tokenized once for all that need the same; results whose data or
initial model have changed since are taken back."""

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from .. import data, models
from ..config import NotReachable, RunConfig, to_dict
from ..tasks.prepared import prepared
from .cells import Cell
from .plan import Planned
from .store import ResultsStore


class Splits:
    """Prepared data by what they depend on; the `keep` that were needed last are kept.

    Args:
        seed: the design's: it cuts the data, so that all cells are scored on the same rows.
    """

    def __init__(self, seed: int, keep: int) -> None:
        self.seed, self.keep = seed, keep
        self._found: OrderedDict[str, data.Prepared] = OrderedDict()
        self._lock = Lock()

    def of(self, cell: Cell) -> data.Prepared:
        """Return the splits of a cell.

        Raises:
            UserError: they cannot be had.
            NotReachable: they are on the Hub, which does not answer.
        """
        key = _key(cell, {**to_dict(cell.config.data), "task": to_dict(cell.config.task)})
        with self._lock:
            if key not in self._found:
                self._found[key] = prepared(cell.config, self.seed)
                if len(self._found) > self.keep:
                    self._found.popitem(last=False)
            self._found.move_to_end(key)
            return self._found[key]


def too_few(cell: Cell, found: data.Prepared) -> str:
    """Return why a cell's result would stand under a wrong number of rows; empty where it would not."""
    wanted = cell.config.data.max_rows
    if not cell.sets_rows or wanted is None or len(found.train) >= wanted:
        return ""
    return (
        f"rows {wanted}: the train split has only {len(found.train)} (after what is cut off for other splits); the "
        "level null takes all of them"
    )


def alike(cells: Sequence[Cell]) -> bool:
    """Return whether all cells read the same data for the same tokenizer: what one cannot read, none can."""
    part = {"max_rows", "fraction"}  # how much is used of what is read
    return len({_key(c, {k: v for k, v in to_dict(c.config.data).items() if k not in part}) for c in cells}) == 1


def _key(cell: Cell, read: dict[str, Any]) -> str:
    """Return what tokenized rows depend on, as text."""
    model = to_dict(cell.config.model)
    tokens = {key: model[key] for key in ("name", "revision", "tokenizer", "_target_", "args")}
    return json.dumps([read, tokens, cell.config.eval.sets], sort_keys=True)


log = logging.getLogger(__name__)

DATA, MODEL = "data_fingerprint", "model_fingerprint"
"""Keys of a stored row (not of the table) for what the cell was made of."""


def forget_stale(cells: Sequence[Planned], store: ResultsStore) -> None:
    """Take back the rows of cells whose data or initial model have changed since; where these cannot be looked at, rows
    stay."""
    prints: dict[str, str | None] = {}
    for planned in cells:
        row, config = planned.row or {}, planned.cell.config
        if row.get("status") in (None, "stopped"):  # it runs anyway
            continue
        looks: dict[str, tuple[str, list[object], Callable[[RunConfig], str]]] = {
            DATA: ("data", [to_dict(config.data), config.eval.sets], _data_print),
            MODEL: ("initial model", [to_dict(config.model)], _model_print),
        }
        for name, (what, made_of, look) in looks.items():
            key = json.dumps([name, made_of], sort_keys=True)
            if row.get(name) and key not in prints:
                prints[key] = _or_none(look, config)
            if row.get(name) and prints[key] not in (None, row[name]):
                log.warning("the %s of cell %s changed since it ran: it runs again", what, planned.cell.name)
                store.forget(planned.cell.name)
                break


def model_print(config: RunConfig) -> str | None:
    """Return the fingerprint of the initial model, None where it cannot be looked at."""
    return _or_none(_model_print, config)


def _data_print(config: RunConfig) -> str:
    return data.Source(config.data).fingerprint(config.eval.sets)


def _model_print(config: RunConfig) -> str:
    return models.resolve(config.model).fingerprint


def _or_none(look: Callable[[RunConfig], str], config: RunConfig) -> str | None:
    try:
        return look(config)
    except NotReachable:
        return None
