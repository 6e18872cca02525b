"""One optimizer step on packed tokens: eagerly, or captured once for every budget in a CUDA graph and replayed."""

import logging
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from .architectures import PackedModel
from .layer import EncoderLayer
from .packing import DeviceTable, Unpacked
from .sharded_update import ShardedUpdate

log = logging.getLogger(__name__)


class GraphStep:
    """Forward, backward, clipping and update over static buffers.

    Args:
        rows: most rows of a micro-batch.
        processes: this one's rank, and how many train the model together.
    """

    def __init__(
        self,
        model: PackedModel,
        table: DeviceTable,
        rows: int,
        clip_norm: float | None,
        processes: tuple[int, int] = (0, 1),
    ) -> None:
        device = table.tokens.device
        self.model, self.table, self.clip_norm = model, table, clip_norm
        rank, size = processes
        self.together = (
            ShardedUpdate(model.arena, model.parts, model.words_grad, rank=rank, size=size) if size > 1 else None
        )
        self.grads = model.grads
        if self.together is not None:
            model.words.together = self.together
            self.grads = [
                replace(grads, done=partial(self.together.layer_done, number))
                for number, grads in enumerate(model.grads)
            ]
        self.whole = torch.full((rows + 1,), -1, dtype=torch.int64, device=device)
        """What a micro-batch is told in whole numbers: the seed, then its rows (-1 for none)."""
        self.real = torch.zeros(5, device=device)
        """And in real ones: learning rate, Adam's two corrections, (clipping,) factor on the sum of its losses."""
        self.seed, self.rows, self.share = self.whole[:1], self.whole[1:], self.real[4]
        model.arena.scalars = self.real[:4]
        self.loss = torch.zeros((), device=device)
        self.graphs: dict[tuple[int, bool, bool], torch.cuda.CUDAGraph] = {}
        self.pool: object = None

    def logits(self, batch: Unpacked, add: bool = False) -> Tensor:
        """Return the logits [S, classes] of a packed batch."""
        model = self.model
        hidden = model.embed(batch.ids, batch.types, batch.positions)
        if self.together is not None:
            self.together.embedded()
        layers = zip(model.weights, self.grads, model.shapes, strict=True)
        for number, (weights, grads, shape) in enumerate(layers):
            if self.together is not None:
                self.together.layer_needed(number)
            hidden = EncoderLayer.apply(hidden, weights, grads, shape, batch.packed, add)
        return model.head(hidden.index_select(0, batch.first))

    def run(self, budget: int, *, add: bool = False, update: bool = True, alone: bool = False) -> None:
        """Compute one micro-batch; `add` to the step's gradient so far, `update` the weights after it.

        Args:
            alone: exchange nothing with other processes.
        """
        if self.together is not None:
            self.together.begin(budget, add=add, update=update, alone=alone)
        batch = self.table.unpack(self.rows, budget, self.model.pad_id, self.seed)
        for low, _ in self.model.loose:
            low.grad = None
        rows = torch.nn.functional.cross_entropy(self.logits(batch, add).float(), batch.labels, reduction="sum")
        loss = rows * self.share
        loss.backward()
        # Words that processes share have written theirs.
        found = [(low.grad, view) for low, view in self.model.loose if low.grad is not None]
        self.model.partials.finish(add)
        (torch._foreach_add_ if add else torch._foreach_copy_)([view for _, view in found], [grad for grad, _ in found])
        self.loss.copy_(self.loss + loss.detach() if add else loss.detach())
        if update:
            if self.together is None:
                self.model.arena.update(self.clip_norm)
            else:
                self.together.finish()
                self.together.update(self.clip_norm)

    def take(self, budget: int, *, add: bool = False, update: bool = True) -> None:
        """Do what `run` does; on a GPU by replaying its graph, captured now where there is none yet."""
        if not self.whole.is_cuda:
            self.run(budget, add=add, update=update)
            return
        if (budget, add, update) not in self.graphs:
            self.capture(budget, add=add, update=update)
        self.graphs[budget, add, update].replay()

    def forget(self) -> None:
        """Let go of all graphs."""
        for graph in self.graphs.values():
            graph.reset()
        self.graphs.clear()
        self.pool = None

    def capture(self, budget: int, *, add: bool, update: bool) -> None:
        """Capture one variant; weights, state, gradient and random numbers are as before afterwards."""
        arena = self.model.arena
        state = torch.cuda.get_rng_state(arena.weights.device)
        kept = [t.clone() for t in (arena.weights, arena.first, arena.second, arena.low, arena.grads, self.loss)]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            # Compiles kernels, warms libraries up. Other processes may not capture now: nothing is exchanged.
            self.run(budget, add=add, update=update, alone=True)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            self.run(budget, add=add, update=update)
        self.pool = self.pool or graph.pool()
        originals = (arena.weights, arena.first, arena.second, arena.low, arena.grads, self.loss)
        for tensor, value in zip(originals, kept, strict=True):
            tensor.copy_(value)
        torch.cuda.set_rng_state(state, arena.weights.device)
        self.graphs[budget, add, update] = graph
