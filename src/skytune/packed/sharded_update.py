"""Trains one model on several processes: gradients are summed, and every process updates its share of the weights.

The matrices of all layers, most of what there is, are cut into parts of a few layers. As soon as a part's gradient is
whole, every process gets the sum of its share of it (reduce-scatter), while the backward pass goes on. It then updates
that share alone, and gets the other shares' rounded weights (all-gather) before the next forward pass needs them. That
sends as many bytes as summing the whole gradient everywhere would, and divides the optimizer's work by the number of
processes (Rajbhandari et al. 2020, "ZeRO", stage 2, <https://arxiv.org/abs/1910.02054>). The table of words is shared
row by row; where a step has fewer tokens than the table has rows, their rows and gradients are exchanged instead of the
table's (`lookup`). What lies outside (biases, norms, head, small tables) is summed and updated by everybody.

The weights and Adam's averages of other shares are out of date until `collect`.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from .flat_params import FlatParameters, Partition, RowPartition

# torch 2.13 has renamed them.
_all_gather = getattr(torch.distributed, "all_gather_single", None) or torch.distributed.all_gather_into_tensor
_reduce_scatter = getattr(torch.distributed, "reduce_scatter_single", None) or torch.distributed.reduce_scatter_tensor

WORDS = -1
"""Stands for the table of words where layers are numbered."""


class ShardedUpdate:
    """What a step does on several processes; exchanges run on a stream of their own.

    Args:
        arena: weights, gradients and state.
        parts: by layer, the part of the flat gradient that is whole once that layer's backward pass is through, in
            their order in the arrays.
        words: the gradient of the table of words [V, H].
        rank: of this process, of `size`.
    """

    def __init__(self, arena: FlatParameters, parts: dict[int, slice], words: Tensor, *, rank: int, size: int) -> None:
        self.arena, self.words, self.size = arena, words, size
        # Few blocks of threads move the data: they shall not wait for those that compute.
        cuda = arena.grads.is_cuda
        self.stream: Any = torch.cuda.Stream(arena.grads.device, priority=-1) if cuda else None
        self.side: Any = torch.cuda.Stream(arena.grads.device) if cuda else None
        shares = {number: Partition.of(part, rank, size) for number, part in parts.items()}
        start, width = words.storage_offset(), words.shape[1]
        table = Partition.of(slice(start, start + words.numel()), rank, size, width)
        self.rows = RowPartition.of(len(words), rank, size)
        """The rows of the table that are this process's to look up, and to add up."""
        self.shares = {number: share for number, share in {**shares, WORDS: table}.items() if share.each}
        self.first = next(iter(self.shares), None)
        """Whose weights are brought together at the end of a step already: the next one begins with them."""
        self.rest = Partition.between(self.shares.values(), len(arena.grads))
        """What everybody sums and updates."""
        count = sum(cut.stop - cut.start for cut in self.rest)
        self.summed = torch.zeros(count + 1, device=arena.grads.device)
        """The gradient of the rest, and the square of the norm of the shares'."""
        self.views = self.summed[:-1].split([cut.stop - cut.start for cut in self.rest])
        self.norms = torch.zeros(len(self.shares), device=arena.grads.device)
        """Norm of the gradient of this process's part of every share."""
        self.there: dict[int, Any] = {}
        """By layer, the event after which its part of the weights is whole."""
        self.on = True
        """False while a process computes alone (to try out, to warm up): nothing is exchanged."""
        self.by_tokens = False
        """Whether this pass exchanges rows of the table of words and their gradients token by token."""
        self.fresh = False
        """Whether this pass is the first after an update, which has to bring weights together."""
        self.last = True
        """Whether it ends with an update."""
        self.behind = False
        """Whether fp32 weights and optimizer state are out of date outside this process's shares."""

    def begin(self, tokens: int, *, add: bool, update: bool, alone: bool) -> None:
        """Begin a pass over so many tokens a process, see `GraphStep.run`."""
        self.on, self.fresh, self.last = not alone, not alone and not add, update
        # Earlier micro-batches of the step leave a gradient in the table.
        self.by_tokens = update and not add and WORDS in self.shares and tokens * self.size <= len(self.words)
        if self.fresh and WORDS in self.shares and not self.by_tokens:
            self._bring(self.arena.low, self.shares[WORDS])
            self.wait()

    def embedded(self) -> None:
        """Have the weights of all layers come, in the order in which a forward pass needs them."""
        if not self.fresh:
            return
        for number, share in self.shares.items():
            if number not in (self.first, WORDS):
                self._bring(self.arena.low, share)
                if self.stream is not None:
                    self.there[number] = self.stream.record_event()

    def layer_needed(self, number: int) -> None:
        """Wait for the weights of a layer, and of those behind it up to the next part."""
        if number in self.there:
            torch.cuda.current_stream().wait_event(self.there.pop(number))

    def layer_done(self, number: int) -> None:
        """Exchange the gradient that this layer's backward pass has made whole."""
        if not self.last or number not in self.shares:
            return
        share, grads = self.shares[number], self.arena.grads
        with self._aside():
            out = grads[share.own]
            if self.on and grads.is_cuda:
                _reduce_scatter(out, grads[share.whole])  # in place, as NCCL allows; gloo does not say so
            elif self.on:
                _reduce_scatter(spare := torch.empty_like(out), grads[share.whole])
                out.copy_(spare)
            self._measure(number)

    def finish(self) -> None:
        """Exchange the rest of the gradient and wait for all of it."""
        if self.by_tokens:
            self._measure(WORDS)
        else:
            self.layer_done(WORDS)
            self.wait()
        torch._foreach_copy_(list(self.views), [self.arena.grads[cut] for cut in self.rest])
        self.summed[-1] = (self.norms * self.norms).sum()
        if self.on:
            torch.distributed.all_reduce(self.summed)
        torch._foreach_copy_([self.arena.grads[cut] for cut in self.rest], list(self.views))

    def update(self, clip_norm: float | None) -> None:
        """Clip the gradient and take one AdamW step on this process's shares and on what is everybody's."""
        if clip_norm is not None:
            rest = torch.linalg.vector_norm(self.summed[:-1])
            self.arena.norm.copy_((self.summed[-1] + rest * rest).sqrt())
        self.arena.clip(clip_norm)
        # In the order in which they are needed; the first is on its way while the others are computed.
        own = [share.own for share in self.shares.values()]
        self.arena.step(own[:1])
        if self.on and self.first is not None:
            self._bring(self.arena.low, self.shares[self.first])
        self.arena.step([*own[1:], *self.rest])
        self.wait()

    def collect(self) -> None:
        """Bring weights and optimizer state of all processes together (collective); nothing to do where they are."""
        if not self.behind:
            return
        for flat in (self.arena.weights, self.arena.first, self.arena.second):
            for share in self.shares.values():
                self._bring(flat, share)
        self.wait()
        self.arena.round()
        self.behind = False

    def gather(self, values: Tensor) -> Tensor:
        """Return [processes * n, ...] of every process's [n, ...].

        It is there after `wait`; until then `values` must be kept.
        """
        out = values.new_empty(self.size * len(values), *values.shape[1:])
        with self._aside():
            if self.on:
                _all_gather(out, values.contiguous())
            else:
                out.view(self.size, *values.shape).copy_(values)
        return out

    def scatter(self, values: Tensor) -> Tensor:
        """Return [n, ...], this process's part of the sum of every process's [processes * n, ...]; as `gather`."""
        out = values.new_empty(len(values) // self.size, *values.shape[1:])
        with self._aside():
            if self.on:
                _reduce_scatter(out, values)
            else:
                out.copy_(values[: len(out)])
        return out

    def wait(self) -> None:
        """Have what follows wait for what was exchanged so far."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)

    def sort(self, ids: Tensor) -> Any:
        """Return `ids` in order, and where they were, for whoever calls `sorted` first."""
        if self.side is None:
            return ids.sort(stable=True)
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            return ids.sort(stable=True)

    def sorted(self) -> None:
        """Have what follows wait for what was sorted."""
        if self.side is not None:
            torch.cuda.current_stream().wait_stream(self.side)

    def _measure(self, number: int) -> None:
        at = list(self.shares).index(number)
        own = self.arena.grads[self.shares[number].own]
        torch.linalg.vector_norm(own, dtype=torch.float32, out=self.norms[at])

    def _bring(self, flat: Tensor, share: Partition) -> None:
        # Autograd need not know: what it has seen of this array by now, the embeddings, lies outside of what comes.
        flat = flat.data
        with self._aside():
            own = flat[share.own]
            _all_gather(flat[share.whole], own if flat.is_cuda else own.clone())

    def _aside(self) -> AbstractContextManager[Any]:
        """Have what is called within run beside what follows it, after all that was called before."""
        if self.stream is None:
            return nullcontext()
        self.stream.wait_stream(torch.cuda.current_stream())
        context: AbstractContextManager[Any] = torch.cuda.stream(self.stream)
        return context
