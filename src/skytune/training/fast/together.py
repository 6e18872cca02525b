"""Sums the flat gradient over processes, most of it while the backward pass still runs."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

# torch 2.13 has renamed it.
_all_gather = getattr(torch.distributed, "all_gather_single", None) or torch.distributed.all_gather_into_tensor


class Together:
    """Exchanges parts of a gradient as soon as they are whole, on a stream of their own.

    Args:
        grads: the flat gradient.
        parts: by layer, the part that is whole once that layer's backward pass is through; what lies in none of them
            is exchanged at the end.
        words: where the gradient of the table of words lies; in a pass that exchanges it `by_tokens`, its sum over
            processes is there without us.
    """

    def __init__(self, grads: Tensor, parts: dict[int, slice], words: slice | None = None) -> None:
        self.grads, self.parts, self.words = grads, parts, words
        # Few blocks of threads move the data: they shall not wait for those that compute.
        self.stream: Any = torch.cuda.Stream(grads.device, priority=-1) if grads.is_cuda else None
        self.rest, at = [], 0
        for part in sorted([*parts.values(), *([words] if words else [])], key=lambda part: part.start):
            if part.start > at:
                self.rest.append(slice(at, part.start))
            at = part.stop
        if at < len(grads):
            self.rest.append(slice(at, len(grads)))
        self.on = True
        """False while a process computes alone (to warm up): nothing is exchanged."""
        self.by_tokens = False
        """Whether this pass exchanges the gradient of words token by token (`gather`)."""

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
        if self.words is not None and not self.by_tokens:
            self._sum(self.words)
        self.wait()

    def gather(self, values: Tensor) -> Tensor:
        """Return [processes * n, ...] of every process's [n, ...].

        It is there after `wait`; until then `values` must be kept.
        """
        out = values.new_empty(torch.distributed.get_world_size() * len(values), *values.shape[1:])
        with self._aside():
            _all_gather(out, values.contiguous())
        return out

    def wait(self) -> None:
        """Have what follows wait for what was exchanged so far."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)

    def _sum(self, part: slice) -> None:
        with self._aside():
            torch.distributed.all_reduce(self.grads[part])

    def _aside(self) -> AbstractContextManager[Any]:
        """Have what is called within run beside what follows it, after all that was called before."""
        if self.stream is None:
            return nullcontext()
        self.stream.wait_stream(torch.cuda.current_stream())
        context: AbstractContextManager[Any] = torch.cuda.stream(self.stream)
        return context


def shares(starts: list[int], end: int, count: int) -> dict[int, slice]:
    """Return the parts for `Together`: runs of layers of about the same length.

    Args:
        starts: where every layer's matrices start in the flat gradient, ascending; they lie without gaps.
        end: where the last layer's end.
        count: parts; not more than there are layers.
    """
    count = min(count, len(starts))
    firsts = [number * len(starts) // count for number in range(count)]
    ends = [*(starts[first] for first in firsts[1:]), end]
    return {first: slice(starts[first], stop) for first, stop in zip(firsts, ends, strict=True)}
