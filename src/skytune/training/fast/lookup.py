"""Small embedding tables whose gradient is a matrix product.

torch sorts the indices of a batch to add up the gradient of an embedding: two dozen kernels for every table. For a
table of a few hundred rows (positions, segments) the product of the one-hot indices with the gradient is one kernel
more than none, and adds up in fp32.
"""

from typing import Any

import torch
from torch import Tensor, nn

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


def lighten(module: nn.Module) -> None:
    """Put `SmallEmbedding` in the place of every small table below a module, in place."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Embedding) and child.num_embeddings <= SMALL and child.padding_idx is None:
                setattr(parent, name, SmallEmbedding(child.weight))
