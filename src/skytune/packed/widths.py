"""Shapes of micro-batches: to which lengths rows are padded, or filled up; few, so that each can have a graph."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..data.order import MicroBatch, SampleOrder
from .packing import GRAIN, choose_budgets

WIDTHS = 12
"""Padded lengths at most; each costs a capture (about half a second)."""

WASTE = 0.03
"""Share of the columns that may be padding, where that many widths can bring it there."""

EPOCHS = 3
"""Epochs whose steps decide the widths."""

COARSE, JOINED = 64, 1024
"""Widths that nobody chose are multiples of this, so that few are needed; of rows that are laid out as one: of that."""


@dataclass
class Widths:
    """To which length rows are padded, a function of the longest of them, or of all of them where they are one row."""

    lengths: np.ndarray
    chosen: list[int]
    places: np.ndarray | None = None
    """`TokenTable.places`, where rows are laid out as one."""

    least: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Sequences and tokens that count for which rows of a width have room, where they are laid out as one."""

    @classmethod
    def plan(
        cls,
        order: SampleOrder,
        cut: Callable[[int], list[MicroBatch]],
        steps: int,
        multiple: int,
        places: np.ndarray | None = None,
    ) -> "Widths":
        """Choose them from the micro-batches that `cut` makes of the first steps (of a whole run, wherever this process
        starts: rounding depends on the width)."""
        last = min(steps, EPOCHS * order.steps_per_epoch)
        widths, multiple = cls(order.lengths, [], places), max(multiple, GRAIN if places is not None else 1)
        batches = [micro.rows for step in range(last) for micro in cut(step)]
        needed = np.array([widths._needed(rows) for rows in batches] or [1])
        widths.chosen = choose_budgets(needed, WIDTHS, grain=multiple, waste=WASTE)
        if places is None:
            return widths
        for rows in batches:
            width = widths(rows)
            begin, counted = places[rows].sum(0)
            needed = np.array([begin + 2 + width // order.lengths.max(), counted])  # what fills a width is cut as well
            room = -(-needed // GRAIN) * GRAIN
            widths.least[width] = tuple(np.maximum(widths.least.get(width, (0, 0)), room).tolist())
        return widths

    def __call__(self, rows: np.ndarray) -> int:
        """Return the width of a micro-batch."""
        needed, coarse = self._needed(rows), COARSE if self.places is None else JOINED
        return next((width for width in self.chosen if needed <= width), -(-needed // coarse) * coarse)

    def _needed(self, rows: np.ndarray) -> int:
        lengths = self.lengths[rows]
        return int(lengths.max() if self.places is None else lengths.sum())
