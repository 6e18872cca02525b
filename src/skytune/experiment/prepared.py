"""The splits that cells share: read, cut and tokenized once for all that need the same."""

import json
from collections import OrderedDict
from threading import Lock

from .. import data
from ..config import UserError, to_dict
from .cells import Cell


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
            UserError: they cannot be had, or there are fewer rows than the cell's level says.
            NotReachable: they are on the Hub, which does not answer.
        """
        key = data_key(cell)
        with self._lock:
            if key not in self._found:
                self._found[key] = data.prepare(cell.config.data, cell.config.model, self.seed, cell.config.eval.sets)
                if len(self._found) > self.keep:
                    self._found.popitem(last=False)
            self._found.move_to_end(key)
            found = self._found[key]
        wanted = cell.config.data.max_rows
        if cell.sets_rows and wanted is not None and len(found.train) < wanted:
            # Its result would stand under a wrong number.
            raise UserError(
                f"rows {wanted}: the train split has only {len(found.train)} (after what is cut off for other splits); "
                "the level null takes all of them"
            )
        return found


def data_key(cell: Cell) -> str:
    """Return what a cell's tokenized rows depend on, as text."""
    model = to_dict(cell.config.model)
    tokens = {key: model[key] for key in ("name", "revision", "tokenizer", "_target_", "args")}
    return json.dumps([to_dict(cell.config.data), tokens, cell.config.eval.sets], sort_keys=True)
