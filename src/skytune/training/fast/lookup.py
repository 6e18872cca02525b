"""Embedding tables: small ones whose gradient is a matrix product, a large one that processes exchange by its tokens.

torch sorts the indices of a batch to add up the gradient of an embedding: two dozen kernels for every table. For a
table of a few hundred rows (positions, segments) the product of the one-hot indices with the gradient is one kernel
more than none, and adds up in fp32.

The table of words is a fifth of BERT-base and two thirds of XLM-R, its gradient is there last, and nearly all of it is
0: processes that share one send each other the gradients of their tokens, and every one adds up all of them.
"""

from typing import Any

import torch
from torch import Tensor, nn

from .together import Together

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


class _Words(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, index: Tensor, padding: int, together: Together | None) -> Tensor:
        ctx.rows, ctx.padding, ctx.together = weight.shape[0], padding, together
        ctx.save_for_backward(index if together is None else together.gather(index.reshape(-1)))
        return nn.functional.embedding(index, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (index,) = ctx.saved_tensors
        if ctx.together is not None:
            grad = ctx.together.gather(grad.reshape(-1, grad.shape[-1]))
            ctx.together.wait()
        found = torch.ops.aten.embedding_dense_backward(grad, index, ctx.rows, ctx.padding, False)
        return found, None, None, None


class WordEmbedding(nn.Module):
    """`nn.Embedding` of tokens; its gradient is summed over processes in the pass where `together` says so."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.weight = table.weight
        self.padding = -1 if table.padding_idx is None else table.padding_idx
        self.together: Together | None = None

    def forward(self, index: Tensor) -> Tensor:
        """Return the rows of an index of any shape."""
        together = self.together if self.together is not None and self.together.by_tokens else None
        found: Tensor = _Words.apply(self.weight, index, self.padding, together)
        return found


def lighten(module: nn.Module) -> None:
    """Put `SmallEmbedding` in the place of every small table below a module, in place."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Embedding) and child.num_embeddings <= SMALL and child.padding_idx is None:
                setattr(parent, name, SmallEmbedding(child.weight))
