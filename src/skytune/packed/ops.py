"""The operations of a packed encoder layer: on CUDA the Triton kernels, elsewhere the same mathematics in plain torch.

Shapes: T tokens of one packed batch, H features, C columns, h heads of d features. Every dropout takes a `salt`, so
that two of them never share random numbers; the masks are the same in both forms. Gradients of biases and of
normalization weights are sums over tokens: every operation leaves partial sums in a cut of `Partials`, one kernel adds
them up at the end.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .flat_params import RowPartition

PROGRAMS = 264
"""Rows of partial sums: two programs for every multiprocessor of an H100."""

MANY = 2048
"""Tokens from which on the kernels have work for the whole device; their shapes were measured there on an H100."""


@dataclass(frozen=True)
class Packed:
    """One packed batch: `begin` and `end` int32 [T], where the sequence of every token starts and ends.

    `bounds` int32 [S + idle + 1] are the same as cumulative lengths, no sequence longer than `longest`; `seed` is
    int64 [1] on the device.
    """

    begin: Tensor
    end: Tensor
    bounds: Tensor
    longest: int
    seed: Tensor


@dataclass(frozen=True)
class Drop:
    """One dropout: its rate and its salt."""

    rate: float
    salt: int

    @property
    def threshold(self) -> int:
        """Hashes below it are dropped."""
        return min(int(self.rate * 2**32), 2**32 - 1)

    @property
    def raised(self) -> float:
        """Factor on what is kept."""
        return 1 / (1 - self.rate)

    def given(self, packed: Packed) -> tuple[Tensor, int, int, float]:
        """Return what every kernel with a dropout takes of it."""
        return packed.seed, self.salt, self.threshold, self.raised


class Partials:
    """Partial sums [layers, programs, C] in fp32, and the rows of gradients [layers, C] that they belong to."""

    def __init__(self, out: Tensor) -> None:
        self.out = out
        self.buffer = torch.zeros(out.shape[0], PROGRAMS, out.shape[1], device=out.device, dtype=torch.float32)

    def finish(self, add: bool) -> None:
        """Write (or add) the sums of all layers."""
        layers, columns = self.out.shape
        if not _triton(self.out):
            total = self.buffer.sum(1)
            self.out.copy_(self.out + total if add else total)
            return
        from . import kernels

        kernels.reduce_partials[(-(-columns // 64), layers)](
            self.buffer, self.out, self.out.stride(0), PROGRAMS, columns, ADD=add, ROWS=64, BLOCK=64, num_warps=4
        )


def _triton(tensor: Tensor) -> bool:
    return tensor.is_cuda


def dropout_add_norm(
    x: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor, eps: float, drop: Drop, packed: Packed
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (y, z, stats): z = dropout(x) + residual, y = its layer norm, stats fp32 [T, 2] (mean, 1/deviation)."""
    if not _triton(x):
        z = dropped(x, drop, packed) + residual
        mean = z.float().mean(1, keepdim=True)
        scale = torch.rsqrt((z.float() - mean).square().mean(1, keepdim=True) + eps)
        y = (z.float() - mean) * scale * gamma.float() + beta.float()
        return y.to(x.dtype), z, torch.cat([mean, scale], 1)
    from . import kernels

    rows, width = x.shape
    y, z = torch.empty_like(x), torch.empty_like(x)
    stats = torch.empty(rows, 2, device=x.device, dtype=torch.float32)
    each = 4 if rows >= MANY else 1
    fixed = {**_fixed(width, drop), "ROWS": each, "num_warps": 8 if each > 1 else 4}
    kernels.dropout_add_norm[(-(-rows // each),)](
        x, residual, gamma, beta, y, z, stats, *drop.given(packed), eps, rows, **fixed
    )
    return y, z, stats


def dropout_add_norm_backward(
    dy: Tensor, z: Tensor, stats: Tensor, gamma: Tensor, drop: Drop, packed: Packed, partial: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients (dx, dresidual) of `dropout_add_norm`.

    Args:
        partial: a cut [programs, 3H] for the sums of gamma's, beta's and dx's gradient.
    """
    rows, width = dy.shape
    if not _triton(dy):
        normal = (z.float() - stats[:, :1]) * stats[:, 1:]
        inner = dy.float() * gamma.float()
        dz = stats[:, 1:] * (inner - inner.mean(1, keepdim=True) - normal * (inner * normal).mean(1, keepdim=True))
        dx = dropped(dz, drop, packed)
        partial[0] = torch.cat([(dy.float() * normal).sum(0), dy.float().sum(0), dx.sum(0)])
        return dx.to(dy.dtype), dz.to(dy.dtype)
    from . import kernels

    dz = torch.empty_like(dy)
    dx = torch.empty_like(dy) if drop.rate > 0 else dz
    each = 4 if rows >= MANY else 2
    fixed = {**_fixed(width, drop), "ROWS": each, "num_warps": 4}
    kernels.dropout_add_norm_backward[(PROGRAMS,)](
        dy, z, gamma, stats, dz, dx, partial, partial.stride(0), *drop.given(packed), rows, **fixed
    )
    return dx, dz


def _fixed(width: int, drop: Drop) -> dict[str, Any]:
    """What kernels over whole rows are compiled for: H, the next power of two, and whether there is a dropout."""
    return {"H": width, "BLOCK": 1 << (width - 1).bit_length(), "DROP": drop.rate > 0}


def gelu(h: Tensor) -> Tensor:
    """Return the exact GELU."""
    if not _triton(h):
        return torch.nn.functional.gelu(h)
    from . import kernels

    out = torch.empty_like(h)
    kernels.gelu[(-(-h.numel() // 2048),)](h, out, h.numel(), BLOCK=2048, num_warps=4)
    return out


def gelu_backward(df: Tensor, h: Tensor, partial: Tensor) -> Tensor:
    """Return dh [T, C]; `partial` [programs, C] gets its sums over rows."""
    if not _triton(df):
        with torch.enable_grad():
            leaf = h.detach().requires_grad_()
            (dh,) = torch.autograd.grad(torch.nn.functional.gelu(leaf), leaf, df)
        partial[0] = dh.float().sum(0)
        return dh
    from . import kernels

    rows, columns = df.shape
    dh = torch.empty_like(df)
    each = 2 if rows >= MANY else 1
    kernels.gelu_backward[(PROGRAMS, -(-columns // 1024))](
        df, h, dh, partial, partial.stride(0), rows, columns, ROWS=each, BLOCK=1024, num_warps=4 * each
    )
    return dh


def join(parts: tuple[Tensor, Tensor, Tensor], partial: Tensor) -> Tensor:
    """Return three [T, C] side by side; `partial` [programs, 3C] gets the sums over rows. CUDA only."""
    from . import kernels

    rows, columns = parts[0].shape
    out = torch.empty(rows, 3 * columns, device=partial.device, dtype=parts[0].dtype)
    kernels.join[(PROGRAMS, -(-columns // 256), 3)](
        *parts, out, partial, partial.stride(0), rows, columns, ROWS=4, BLOCK=256, num_warps=2
    )
    return out


def mix(x: Tensor) -> Tensor:
    """The hash of `kernels.mix` on int64 tensors that hold 32-bit numbers."""
    x = x & 0xFFFFFFFF
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & 0xFFFFFFFF
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


def kept(element: Tensor, drop: Drop, seed: Tensor, more: int = 0) -> Tensor:
    """Return which elements (int64) survive; `more` is added to the salt."""
    key = mix(seed.cpu() + mix(torch.tensor(drop.salt + more)))
    return mix(element ^ key.to(element.device)) >= drop.threshold


def dropped(x: Tensor, drop: Drop, packed: Packed) -> Tensor:
    """Return x [T, H] after dropout."""
    if drop.rate == 0:
        return x
    element = torch.arange(x.numel(), device=x.device).view(x.shape)
    return torch.where(kept(element, drop, packed.seed), x * drop.raised, torch.zeros_like(x))


def add_rows(grad: Tensor, order: tuple[Tensor, Tensor], rows: RowPartition, padding: int, out: Tensor) -> None:
    """Add up the gradients of tokens by their row, for the rows that are one process's; the other shares' are left
    alone, and what nobody's share has is 0 on all but the first process.

    Adds in the order of tokens, in fp32: the same inputs give the same bits.

    Args:
        grad: [N, H].
        order: int64 [N] each: the tokens' rows in ascending order, and where they stand in `grad`.
        padding: the row that gets no gradient; -1 for none.
        out: [V, H], the gradient of the table.
    """
    out[rows.first : rows.stop].zero_()
    out[rows.left :].zero_()
    ids, places = order
    if not _triton(out):
        kept = rows.holds(ids) & (ids != padding)
        out.index_add_(0, ids[kept], grad[places[kept]].to(out.dtype))
        return
    from . import kernels

    count, width = grad.shape
    given = (ids, places, grad, out, count, rows.first, rows.stop, rows.rest, padding, width)
    kernels.add_rows[(count, -(-width // 256))](*given, BLOCK=256, ROWS=32, num_warps=4)
