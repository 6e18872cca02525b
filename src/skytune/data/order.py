"""The order of samples: a pure function of (seed, epoch, token lengths, global batch, bucket rule).

Global batch k is the same set of rows on one process, on four, with accumulation or without; a position in training is
one number, the optimizer steps done. Nothing here depends on what ran before, so resuming needs no state.

Length bucketing: the shuffled rows are cut into pools of `bucket_batches` global batches, every pool is sorted by
length and cut into batches, and the batches are shuffled over the whole epoch. Batches are then alike in length (little
padding) while their members change every epoch. Sorting within pools of a shuffled order is the usual remedy (Khomenko
et al. 2016, "Accelerating recurrent neural network training using sequence bucketing", arXiv:1708.05604).
"""

from dataclasses import dataclass, replace

import numpy as np


def step_seed(seed: int, step: int, rank: int) -> int:
    """Return the 63-bit seed of one optimizer step on one process (dropout): a resumed run draws what the uninterrupted
    one would have drawn, and nothing about it has to be saved."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> 1)


@dataclass(frozen=True)
class Position:
    """Where a step stands: `index` is the global batch within `epoch`, both from 0."""

    epoch: int
    index: int


class SampleOrder:
    """Rows of every optimizer step of a run.

    Args:
        lengths: int64 [rows], tokens of every row.
        seed: of the run.
        global_size: rows of a global batch; the last one of an epoch may have fewer.
        bucket_batches: global batches in a pool; 1 means no bucketing.
        limit: global batches used of every epoch, None for all.
        one_length: whether all rows of a micro-batch must have one length.
        units: int64 [rows], how often each row counts in the loss (its tokens); None: once each.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        *,
        seed: int,
        global_size: int,
        bucket_batches: int = 50,
        limit: int | None = None,
        one_length: bool = False,
        units: np.ndarray | None = None,
    ) -> None:
        if len(lengths) == 0:
            raise ValueError("there are no rows to order")
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.seed = seed
        self.global_size = global_size
        self.bucket_batches = bucket_batches
        self.one_length = one_length
        self.units = units
        every = -(-len(self.lengths) // global_size)
        self.steps_per_epoch = every if limit is None else min(every, limit)
        self._cached: tuple[int, list[np.ndarray]] | None = None

    def micro_batches(self, step: int, rank: int, world_size: int, micro_size: int | None) -> list["MicroBatch"]:
        """Return the micro-batches of one process in an optimizer step."""
        lengths = self.lengths if self.one_length else None
        split = {"rank": rank, "world_size": world_size}
        found = micro_batches(self.rows(step), **split, micro_size=micro_size, lengths=lengths, units=self.units)
        return [replace(micro, epoch=self.position(step).epoch) for micro in found]

    def position(self, step: int) -> Position:
        """Return the position of an optimizer step (steps count from 0)."""
        return Position(*divmod(step, self.steps_per_epoch))

    def rows(self, step: int) -> np.ndarray:
        """Return the row numbers of the global batch of an optimizer step, int64 [at most global_size]."""
        where = self.position(step)
        return self.epoch(where.epoch)[where.index]

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """Return the global batches of one epoch; together they are a permutation of all rows (without `limit`)."""
        if self._cached is None or self._cached[0] != epoch:
            self._cached = (epoch, self._build(epoch)[: self.steps_per_epoch])
        return self._cached[1]

    def _build(self, epoch: int) -> list[np.ndarray]:
        random = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        order = random.permutation(len(self.lengths))
        whole = len(order) // self.global_size * self.global_size
        pool = self.bucket_batches * self.global_size
        batches = []
        for start in range(0, whole, pool):
            rows = order[start : min(start + pool, whole)]
            if self.bucket_batches > 1:
                rows = rows[np.argsort(self.lengths[rows], kind="stable")]
            batches += [rows[i : i + self.global_size] for i in range(0, len(rows), self.global_size)]
        if self.bucket_batches > 1:
            batches = [batches[i] for i in random.permutation(len(batches))]
        # The rest of the shuffle makes the last, smaller batch: a random sample, not the longest rows of a pool.
        if whole < len(order):
            batches.append(order[whole:])
        return batches


@dataclass(frozen=True)
class MicroBatch:
    """What one process computes at once.

    Attributes:
        rows: row numbers; never empty: a process without rows computes one with weight 0, so that all processes take
            part in every collective operation.
        weight: factor on the mean loss of these rows (of the tokens in them that count). Gradients are averaged over
            processes, so the weights make the sum of all micro-batches the mean over the global batch, however unevenly
            rows and tokens are spread.
        last: True for the step's last micro-batch.
        real: how many of the rows count.
        epoch: the pass over the rows that they belong to.
    """

    rows: np.ndarray
    weight: float
    last: bool
    real: int
    epoch: int = 0


def micro_batches(
    rows: np.ndarray,
    *,
    rank: int,
    world_size: int,
    micro_size: int | None,
    lengths: np.ndarray | None = None,
    units: np.ndarray | None = None,
) -> list[MicroBatch]:
    """Cut a global batch into the micro-batches of one process; every process gets the same number of them.

    Rows are dealt out in turn, so that processes get rows of like lengths where the batch is sorted by length. With
    `lengths` (of all rows there are) rows of one length are dealt out at a time, and no micro-batch has two. With
    `units` (likewise) a micro-batch counts by those of its rows. All processes know all rows of a global batch, so none
    has to ask another how much it counts as a whole.
    """
    whole = len(rows) if units is None else int(units[rows].sum())
    groups = [rows]
    if lengths is not None:
        groups = [rows[lengths[rows] == length] for length in np.unique(lengths[rows])]
    found = []
    for group in groups:
        share = -(-len(group) // world_size)
        size = min(micro_size or share, share)
        own_rows = group[rank::world_size]
        for start in range(0, share, size):
            part = own_rows[start : start + size]
            weight = (len(part) if units is None else int(units[part].sum())) * world_size / whole
            found.append(MicroBatch(part if len(part) else group[:1], weight, False, len(part)))
    found[-1] = replace(found[-1], last=True)
    return found
