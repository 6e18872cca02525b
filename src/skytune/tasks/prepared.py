"""The splits of a run, for its task. A module of its own: workers know tasks, and need nothing of how data is read."""

from ..config import RunConfig
from ..data import Prepared, prepare
from . import chosen


def prepared(config: RunConfig, seed: int, known: list[str] | None = None) -> Prepared:
    """Return the splits of a configuration, for its task; see `data.prepare`."""
    task = chosen(config.task, config.data, config.model)
    return prepare(config.data, config.model, seed, config.eval.sets, known, task)
