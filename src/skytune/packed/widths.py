"""To which lengths padded rows are padded: few, so that each can have a graph of its own."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..data.order import MicroBatch, SampleOrder
from .packing import choose_budgets

WIDTHS = 12
"""Padded lengths at most; each costs a capture (about half a second)."""

WASTE = 0.03
"""Share of the columns that may be padding, where that many widths can bring it there."""

EPOCHS = 3
"""Epochs whose steps decide the widths."""

COARSE = 64
"""Widths that nobody chose are multiples of this, so that few are needed."""


@dataclass
class Widths:
    """To which length rows are padded, a function of the longest of them."""

    lengths: np.ndarray
    chosen: list[int]

    @classmethod
    def plan(cls, order: SampleOrder, cut: Callable[[int], list[MicroBatch]], steps: int, multiple: int) -> "Widths":
        """Choose them from the micro-batches that `cut` makes of the first steps (of a whole run, wherever this process
        starts: rounding depends on the width)."""
        last = min(steps, EPOCHS * order.steps_per_epoch)
        longest = [int(order.lengths[micro.rows].max()) for step in range(last) for micro in cut(step)]
        return cls(order.lengths, choose_budgets(np.array(longest or [1]), WIDTHS, grain=multiple, waste=WASTE))

    def __call__(self, rows: np.ndarray) -> int:
        """Return the width of a micro-batch."""
        longest = int(self.lengths[rows].max())
        return next((width for width in self.chosen if longest <= width), -(-longest // COARSE) * COARSE)
