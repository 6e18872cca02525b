"""How processes divide flat arrays and the rows of a table among themselves."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from .arena import ALIGNED


@dataclass(frozen=True)
class Share:
    """A part of the flat arrays, as much of it for every process."""

    whole: slice
    own: slice
    """This process's."""

    @classmethod
    def of(cls, part: slice, rank: int, size: int, unit: int = ALIGNED) -> "Share":
        """Cut a part for `size` processes in multiples of `unit`; what does not come out at its end is left out."""
        each = (part.stop - part.start) // (size * unit) * unit
        start = part.start + rank * each
        return cls(slice(part.start, part.start + size * each), slice(start, start + each))

    @property
    def each(self) -> int:
        """Elements of every process."""
        return self.own.stop - self.own.start

    @staticmethod
    def between(shares: Iterable["Share"], end: int) -> list[slice]:
        """Return what lies in no share of [0, end)."""
        found, at = [], 0
        for share in sorted(shares, key=lambda share: share.whole.start):
            if share.whole.start > at:
                found.append(slice(at, share.whole.start))
            at = share.whole.stop
        return [*found, slice(at, end)] if at < end else found


@dataclass(frozen=True)
class Rows:
    """The rows of a table that are one process's: `first` to `stop`, and from `rest` on.

    Those from `left` on are too few to be divided: everybody updates them, the first process looks them up and adds
    their gradients up.
    """

    first: int
    stop: int
    rest: int
    left: int

    @classmethod
    def of(cls, count: int, rank: int, size: int) -> "Rows":
        """Divide `count` rows as `Share.of` does."""
        each = count // size
        left = size * each
        return cls(rank * each, (rank + 1) * each, left if rank == 0 else count, left)

    def mine(self, ids: Tensor) -> Tensor:
        """Return which of the ids are."""
        return ((ids >= self.first) & (ids < self.stop)) | (ids >= self.rest)


def runs(starts: list[int], end: int, count: int) -> dict[int, slice]:
    """Return the parts of the flat gradient by the layer that completes them: runs of layers of about the same length.

    Args:
        starts: where every layer's matrices start in the flat gradient, ascending; they lie without gaps.
        end: where the last layer's end.
        count: parts; not more than there are layers.
    """
    count = min(count, len(starts))
    firsts = [number * len(starts) // count for number in range(count)]
    ends = [*(starts[first] for first in firsts[1:]), end]
    return {first: slice(starts[first], stop) for first, stop in zip(firsts, ends, strict=True)}
