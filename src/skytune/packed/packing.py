"""Packed batches on the device: the whole split lies there as one row of tokens, a step names only its rows.

A captured step has a fixed number of tokens, its budget. Few budgets serve all steps: they are the cut points that
leave the fewest tokens empty over the steps to come, found by dynamic programming over the histogram of the steps'
token counts (the one-dimensional k-partition that is optimal for any cost which is a sum over intervals; Wang & Song
2011, "Ckmeans.1d.dp", R Journal 3/2).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..data.batches import Ragged, TokenTable
from .ops import Packed

GRAIN = 64
"""Budgets are multiples of this many tokens (one tile of the attention kernel)."""


def choose_budgets(totals: np.ndarray, most: int, grain: int = GRAIN, waste: float = 0.0) -> list[int]:
    """Return at most `most` ascending budgets, multiples of `grain`, the last one at least `totals.max()`.

    Args:
        totals: int [steps], tokens of every step.
        waste: share of all tokens that may be empty, rounding to `grain` apart: no more budgets than that takes.
    """
    sizes, counts = np.unique(-(-np.maximum(totals, 1) // grain) * grain, return_counts=True)
    n = len(sizes)
    below = np.concatenate([[0], np.cumsum(counts)])
    real = np.concatenate([[0], np.cumsum(counts * sizes)])
    # cost of serving sizes[i..j] with a budget of sizes[j]
    best = np.full((most + 1, n + 1), np.inf)
    cut = np.zeros((most + 1, n + 1), dtype=int)
    best[:, 0] = 0
    for used in range(1, most + 1):
        for j in range(1, n + 1):
            i = np.arange(j)
            cost = best[used - 1, i] + sizes[j - 1] * (below[j] - below[i]) - (real[j] - real[i])
            cut[used, j] = int(cost.argmin())
            best[used, j] = cost[cut[used, j]]
    enough = next((used for used in range(1, most) if best[used, n] <= waste * real[n]), most)
    found, j = [], n
    for used in range(enough, 0, -1):
        if j == 0:
            break
        found.append(int(sizes[j - 1]))
        j = cut[used, j]
    return sorted(found)


@dataclass(frozen=True)
class Unpacked:
    """One packed batch of T tokens and S sequences (int64), as the model reads it."""

    ids: Tensor
    types: Tensor
    positions: Tensor
    packed: Packed
    first: Tensor
    """[S], where every sequence starts."""
    labels: Tensor
    """[S], -100 where there is no row."""


class DeviceTable:
    """A split on the device: `tokens` [all tokens], `begin` and `length` of every row, `labels`."""

    def __init__(self, table: TokenTable, device: torch.device) -> None:
        column = table.columns["input_ids"]
        assert isinstance(column, Ragged) and table.labels is not None
        self.tokens = torch.from_numpy(column.values.astype(np.int32)).to(device)
        types = table.columns.get("token_type_ids")
        self.types: Tensor | None = None
        if isinstance(types, Ragged) and types.values.any():
            self.types = torch.from_numpy(types.values.astype(np.int32)).to(device)
        self.begin = torch.from_numpy(column.offsets[:-1].copy()).to(device)
        self.length = torch.from_numpy(table.lengths.copy()).to(device)
        self.labels = torch.from_numpy(table.labels.copy()).to(device)
        self.longest = max(int(table.lengths.max()), 16)

    def idle(self, budget: int) -> int:
        """Return into how many idle sequences what is left of a budget may be cut."""
        return -(-budget // self.longest)

    def unpack(self, rows: Tensor, budget: int, pad_id: int, seed: Tensor) -> Unpacked:
        """Return the packed batch of `rows` (int64 [S], -1 for none); what is left of the budget is one idle sequence.

        All on the device, no word from the CPU: it can be captured. The rows' tokens must fit into the budget.
        """
        there = rows >= 0
        row = rows.clamp(min=0)
        length = torch.where(there, self.length[row], 0)
        until = length.cumsum(0)
        since = until - length
        at = torch.arange(budget, device=rows.device)
        which = torch.searchsorted(until, at, right=True)
        real = which < len(rows)
        which = which.clamp(max=len(rows) - 1)
        positions = torch.where(real, at - since[which], 0)
        source = self.begin[row[which]] + positions
        ids = torch.where(real, self.tokens[source].long(), pad_id)
        types = torch.where(real, self.types[source].long(), 0) if self.types is not None else torch.zeros_like(ids)
        # The rest of the budget is cut like sequences: attention kernels count on the longest one.
        steps = torch.arange(self.idle(budget) + 1, device=at.device) * self.longest
        idle = (until[-1] + steps).clamp(max=budget)
        bounds = torch.cat([since, idle]).int()
        place = torch.searchsorted(idle, at, right=True)
        begin = torch.where(real, since[which], idle[(place - 1).clamp(min=0)]).int()
        end = torch.where(real, until[which], idle[place.clamp(max=len(idle) - 1)]).int()
        labels = torch.where(there, self.labels[row], -100)
        return Unpacked(
            ids, types, positions, Packed(begin, end, bounds, self.longest, seed), since.clamp(max=budget - 1), labels
        )
