"""Embedding tables: small ones whose gradient is a matrix product, a large one that processes exchange by its tokens.

torch sorts the indices of a batch to add up the gradient of an embedding: two dozen kernels for every table. For a
table of a few hundred rows (positions, segments) the product of the one-hot indices with the gradient is one kernel
more than none, and adds up in fp32.

The table of words is a fifth of BERT-base and two thirds of XLM-R, its gradient is there last, and nearly all of it is
0. Of processes that share one, each has some of the rows up to date: it looks up those of all processes' tokens, and
adds up their gradients.
"""

from typing import Any

import torch
from torch import Tensor, nn

from .ops import add_rows
from .sharded_update import ShardedUpdate

SMALL = 1024
"""Largest number of rows for which it is taken."""


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = weight.shape[0]
        return nn.functional.embedding(index, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        flat = grad.reshape(-1, grad.shape[-1])
        hot = torch.arange(ctx.rows, device=index.device)[:, None] == index.reshape(1, -1)
        return hot.to(flat.dtype) @ flat, None


class SmallEmbedding(nn.Module):
    """`nn.Embedding` for a small table without a padding row."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, index: Tensor) -> Tensor:
        """Return the rows of an index of any shape."""
        return _Lookup.apply(self.weight, index)


class _SharedWords(torch.autograd.Function):
    """The gradient goes where the optimizer reads it, not through autograd."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, index: Tensor, padding: int, together: ShardedUpdate) -> Tensor:
        ids = together.gather(index.reshape(-1))
        together.wait()
        ctx.order = together.sort(ids)  # has the whole forward pass to come to its end
        ctx.padding, ctx.together = padding, together
        found = nn.functional.embedding(ids, weight).masked_fill_(~together.rows.holds(ids)[:, None], 0)
        own = together.scatter(found)
        together.wait()
        return own.view(*index.shape, -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None, None]:
        together, order = ctx.together, ctx.order
        ctx.order = None
        whole = together.gather(grad.reshape(-1, grad.shape[-1]))
        together.wait()
        together.sorted()
        add_rows(whole, order, together.rows, ctx.padding, together.words)
        return None, None, None, None


class WordEmbedding(nn.Module):
    """`nn.Embedding` of tokens; exchanged between processes token by token in the pass where `together` says so."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.weight = table.weight
        self.padding = -1 if table.padding_idx is None else table.padding_idx
        self.together: ShardedUpdate | None = None

    def forward(self, index: Tensor) -> Tensor:
        """Return the rows of an index of any shape."""
        if self.together is None or not self.together.by_tokens:
            return nn.functional.embedding(index, self.weight, None if self.padding < 0 else self.padding)
        found: Tensor = _SharedWords.apply(self.weight, index, self.padding, self.together)
        return found


def lighten(module: nn.Module) -> None:
    """Put `SmallEmbedding` in the place of every small table below a module, in place."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Embedding) and child.num_embeddings <= SMALL and child.padding_idx is None:
                setattr(parent, name, SmallEmbedding(child.weight))
