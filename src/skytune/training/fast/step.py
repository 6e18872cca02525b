"""One optimizer step on packed tokens: eagerly, or captured once for every budget in a CUDA graph and replayed."""

import logging
from collections.abc import Callable

import torch

from .layer import EncoderLayer
from .models import PackedModel
from .packing import DeviceTable, Unpacked

log = logging.getLogger(__name__)

Tensor = torch.Tensor


class PackedStep:
    """Forward, backward, clipping and update over static buffers.

    Args:
        rows: most rows of a micro-batch.
        reduce: sums the flat gradient over processes, in place; None for one process.
    """

    def __init__(
        self,
        model: PackedModel,
        table: DeviceTable,
        rows: int,
        clip_norm: float | None,
        reduce: Callable[[Tensor], None] | None = None,
    ) -> None:
        device = table.tokens.device
        self.model, self.table, self.clip_norm, self.reduce = model, table, clip_norm, reduce
        self.rows = torch.full((rows,), -1, dtype=torch.int64, device=device)
        self.seed = torch.zeros(1, dtype=torch.int64, device=device)
        self.share = torch.zeros((), device=device)
        """Factor on the sum of the rows' losses."""
        self.loss = torch.zeros((), device=device)
        self.graphs: dict[tuple[int, bool, bool], torch.cuda.CUDAGraph] = {}
        self.pool = None

    def logits(self, batch: Unpacked, add: bool = False) -> Tensor:
        """Return the logits [S, classes] of a packed batch."""
        model = self.model
        hidden = model.embed(batch.ids, batch.types, batch.positions)
        for weights, grads, shape in zip(model.weights, model.grads, model.shapes, strict=True):
            hidden = EncoderLayer.apply(hidden, weights, grads, shape, batch.packed, add)
        return model.head(hidden.index_select(0, batch.first))

    def run(self, budget: int, *, add: bool = False, update: bool = True) -> None:
        """Compute one micro-batch; `add` to the step's gradient so far, `update` the weights after it."""
        batch = self.table.unpack(self.rows, budget, self.model.pad_id, self.seed)
        for low, _ in self.model.loose:
            low.grad = None
        rows = torch.nn.functional.cross_entropy(self.logits(batch, add).float(), batch.labels, reduction="sum")
        loss = rows * self.share
        loss.backward()
        lows, views = [low.grad for low, _ in self.model.loose], [view for _, view in self.model.loose]
        self.model.partials.finish(add)
        (torch._foreach_add_ if add else torch._foreach_copy_)(views, lows)
        self.loss.copy_(self.loss + loss.detach() if add else loss.detach())
        if update:
            if self.reduce is not None:
                self.reduce(self.model.arena.grads)
            self.model.arena.update(self.clip_norm)

    def replay(self, budget: int, *, add: bool = False, update: bool = True) -> None:
        """Do what `run` does by replaying its graph; capture it first where there is none yet."""
        key = (budget, add, update)
        if key not in self.graphs:
            self.graphs[key] = self._capture(*key)
        self.graphs[key].replay()

    def _capture(self, budget: int, add: bool, update: bool) -> torch.cuda.CUDAGraph:
        """Capture one variant; weights, state and gradient are as before afterwards."""
        arena = self.model.arena
        state = torch.cuda.get_rng_state(arena.weights.device)
        kept = [t.clone() for t in (arena.weights, arena.first, arena.second, arena.low, arena.grads, self.loss)]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.run(budget, add=add, update=update)  # compiles kernels, warms the libraries up
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            self.run(budget, add=add, update=update)
        self.pool = self.pool or graph.pool()
        originals = (arena.weights, arena.first, arena.second, arena.low, arena.grads, self.loss)
        for tensor, value in zip(originals, kept, strict=True):
            tensor.copy_(value)
        torch.cuda.set_rng_state(state, arena.weights.device)
        return graph
