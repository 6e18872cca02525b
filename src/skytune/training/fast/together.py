"""Sums the flat gradient over processes, most of it while the backward pass still runs."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor


class Together:
    """Exchanges parts of a gradient as soon as they are whole, on a stream of their own.

    Args:
        grads: the flat gradient.
        parts: by layer, the part that is whole once that layer's backward pass is through; what lies in none of them
            is exchanged at the end.
    """

    def __init__(self, grads: Tensor, parts: dict[int, slice]) -> None:
        self.grads, self.parts = grads, parts
        self.stream: Any = torch.cuda.Stream(grads.device) if grads.is_cuda else None
        self.rest, at = [], 0
        for part in sorted(parts.values(), key=lambda part: part.start):
            if part.start > at:
                self.rest.append(slice(at, part.start))
            at = part.stop
        if at < len(grads):
            self.rest.append(slice(at, len(grads)))
        self.on = True
        """False while a process computes alone (to warm up): nothing is exchanged."""

    def layer_done(self, number: int) -> None:
        """Exchange what this layer's backward pass has made whole."""
        if self.on and number in self.parts:
            self._sum(self.parts[number])

    def finish(self) -> None:
        """Exchange the rest and wait for all of it."""
        if not self.on:
            return
        for part in self.rest:
            self._sum(part)
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)

    def _sum(self, part: slice) -> None:
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream) if self.stream is not None else nullcontext():
            torch.distributed.all_reduce(self.grads[part])


def halves(starts: list[int], end: int) -> dict[int, slice]:
    """Return the parts for `Together`: the upper half of the layers, and the lower half.

    Args:
        starts: where every layer's matrices start in the flat gradient, ascending; they lie without gaps.
        end: where the last layer's end.
    """
    middle = len(starts) // 2
    parts = {middle: slice(starts[middle], end)}
    if middle:
        parts[0] = slice(starts[0], starts[middle])
    return parts
