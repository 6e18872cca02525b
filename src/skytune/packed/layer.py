"""One encoder layer of BERT's kind on packed tokens, forward and backward written out.

A layer is attention, projection, dropout, residual, layer norm, then GELU, projection, dropout, residual, layer norm
(post-norm: BERT, RoBERTa, XLM-R, CamemBERT, DistilBERT). Against autograd over the modules: query, key and value are
one product, residual gradients are added inside a matrix product, gradients of weights are written where the optimizer
reads them, and those of biases fall out of the kernels that are there anyway.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import attention, ops
from .ops import Drop


@dataclass(frozen=True)
class LayerWeights:
    """Weights of one layer in the number format that is computed with.

    qkv [3H, H] and qkv_bias [3H] are query, key and value below each other; project [H, H]; rise [F, H]; fall [H, F].
    """

    qkv: Tensor
    project: Tensor
    rise: Tensor
    fall: Tensor
    qkv_bias: Tensor
    project_bias: Tensor
    norm1: Tensor
    norm1_bias: Tensor
    rise_bias: Tensor
    fall_bias: Tensor
    norm2: Tensor
    norm2_bias: Tensor


@dataclass(frozen=True)
class LayerGrads:
    """Where gradients go: of the four matrices, and partial sums [programs, 9H + F] of all vectors.

    The vectors' order is norm2, norm2_bias, fall_bias, norm1, norm1_bias, project_bias, qkv_bias, rise_bias.
    """

    qkv: Tensor
    project: Tensor
    rise: Tensor
    fall: Tensor
    vectors: Tensor
    done: Callable[[], None] = lambda: None
    """Called when the matrices' gradients are there."""


@dataclass(frozen=True)
class LayerShape:
    """What the weights do not say."""

    heads: int
    eps: float
    attention: Drop
    project: Drop
    fall: Drop


class EncoderLayer(torch.autograd.Function):
    """x [T, H] -> [T, H]; the weights' gradients go to `grads`, not through autograd."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: LayerWeights, grads: LayerGrads, shape: LayerShape, packed: ops.Packed, add: bool
    ) -> Tensor:
        """Run the layer; keep what the backward pass needs."""
        qkv = torch.addmm(w.qkv_bias, x, w.qkv.t())
        seen, kept_back = attention.forward(qkv, shape.heads, shape.attention, packed)
        projected = torch.addmm(w.project_bias, seen, w.project.t())
        middle, z1, stats1 = ops.dropout_add_norm(projected, x, w.norm1, w.norm1_bias, shape.eps, shape.project, packed)
        risen = torch.addmm(w.rise_bias, middle, w.rise.t())
        active = ops.gelu(risen)
        fallen = torch.addmm(w.fall_bias, active, w.fall.t())
        y, z2, stats2 = ops.dropout_add_norm(fallen, middle, w.norm2, w.norm2_bias, shape.eps, shape.fall, packed)
        ctx.kept = (x, qkv, seen, kept_back, z1, stats1, middle, risen, active, z2, stats2)
        ctx.rest = (w, grads, shape, packed, add)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of x; write all others."""
        x, qkv, seen, kept_back, z1, stats1, middle, risen, active, z2, stats2 = ctx.kept
        w, g, shape, packed, add = ctx.rest
        ctx.kept = None
        width = x.shape[1]
        sums = g.vectors
        dfallen, dmiddle = ops.dropout_add_norm_backward(
            dy.contiguous(), z2, stats2, w.norm2, shape.fall, packed, sums[:, : 3 * width]
        )
        _product_into(g.fall, dfallen, active, add)
        drisen = ops.gelu_backward(dfallen @ w.fall, risen, sums[:, 9 * width :])
        _product_into(g.rise, drisen, middle, add)
        dmiddle.addmm_(drisen, w.rise)  # in place: another tensor would be a copy first
        dprojected, dx = ops.dropout_add_norm_backward(
            dmiddle, z1, stats1, w.norm1, shape.project, packed, sums[:, 3 * width : 6 * width]
        )
        _product_into(g.project, dprojected, seen, add)
        dqkv = attention.backward(
            dprojected @ w.project,
            qkv,
            seen,
            kept_back,
            shape.heads,
            shape.attention,
            packed,
            sums[:, 6 * width : 9 * width],
        )
        _product_into(g.qkv, dqkv, x, add)
        g.done()
        return dx.addmm_(dqkv, w.qkv), None, None, None, None, None


def _product_into(out: Tensor, grad: Tensor, x: Tensor, add: bool) -> None:
    """out [n, k] (+)= grad [T, n]^T x [T, k]."""
    if add:
        out.addmm_(grad.t(), x)
    else:
        torch.mm(grad.t(), x, out=out)
