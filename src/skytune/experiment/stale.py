"""Results that answer another question by now: the data or the initial model have changed since a cell ran."""

import functools
import json
import logging
from collections.abc import Callable

from .. import data, models
from ..config import NotReachable, RunConfig, to_dict
from .plan import Plan
from .store import FINISHED, ResultsStore

log = logging.getLogger(__name__)

DATA, MODEL = "data_fingerprint", "model_fingerprint"
"""Keys of a stored row (not of the table) for what the cell was made of."""


def forget_stale(plan: Plan, store: ResultsStore) -> None:
    """Take back the rows of cells whose data or initial model have changed since; where these cannot be looked at, rows
    stay."""
    prints: dict[str, str | None] = {}
    for planned in plan.cells:
        row, config = planned.row, planned.cell.config
        if row is None or row.get("status") not in FINISHED:
            continue
        ways: list[tuple[str, str, list[object], Callable[[], str]]] = [
            (
                DATA,
                "data",
                [to_dict(config.data), config.eval.sets],
                functools.partial(data.Source(config.data).fingerprint, config.eval.sets),
            ),
            (MODEL, "initial model", [to_dict(config.model)], functools.partial(_resolved, config)),
        ]
        for name, what, made_of, look in ways:
            if not row.get(name):
                continue
            key = json.dumps([name, made_of], sort_keys=True)
            if key not in prints:
                prints[key] = _or_none(look)
            if prints[key] is not None and prints[key] != row[name]:
                log.warning("the %s of cell %s changed since it ran: it runs again", what, planned.cell.name)
                store.forget(planned.cell.name)
                break


def model_print(config: RunConfig) -> str | None:
    """Return the fingerprint of the initial model, None where it cannot be looked at."""
    return _or_none(functools.partial(_resolved, config))


def _resolved(config: RunConfig) -> str:
    return models.resolve(config.model).fingerprint


def _or_none(look: Callable[[], str]) -> str | None:
    try:
        return look()
    except NotReachable:
        return None
