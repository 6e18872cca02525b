"""Attention within the sequences of a packed batch: three ways to compute the same thing.

`tiles`: our Triton kernels, for short sequences, of which a tile holds several. `flash`: the flash attention that
ships with torch, for long ones, in half precision. `plain`: whole score matrices, where neither runs (a CPU).
"""

from typing import Any

import torch
from torch import Tensor

from .cuda_graph import in_fixed_order
from .ops import PROGRAMS, Drop, Packed, join, kept

SHORT = 128
"""Longest sequence for which `tiles` is taken where both run (measured on an H100)."""


def way(qkv: Tensor, packed: Packed) -> str:
    """Return which way is taken."""
    if not qkv.is_cuda:
        return "plain"
    return "tiles" if packed.longest <= SHORT or qkv.dtype == torch.float32 else "flash"


def forward(qkv: Tensor, heads: int, drop: Drop, packed: Packed) -> tuple[Tensor, Any]:
    """Return (out [T, h*d], what `backward` needs); qkv is [T, 3*h*d]."""
    return {"plain": _plain, "tiles": _tiles, "flash": _flash}[way(qkv, packed)](qkv, heads, drop, packed)


def backward(
    dout: Tensor, qkv: Tensor, out: Tensor, kept_back: Any, heads: int, drop: Drop, packed: Packed, sums: Tensor
) -> Tensor:
    """Return dqkv [T, 3*h*d]; `sums` [programs, 3*h*d] gets its partial sums over tokens."""
    chosen = way(qkv, packed)
    if chosen == "flash":
        return join(_flash_backward(dout, qkv, out, kept_back, heads, drop, packed), sums)
    if chosen == "tiles":
        return _tiles_backward(dout, qkv, out, kept_back, heads, drop, packed, sums)
    dqkv = _plain_backward(dout, qkv, heads, drop, packed)
    sums[0] = dqkv.float().sum(0)
    return dqkv


def _scale(qkv: Tensor, heads: int) -> float:
    return float((qkv.shape[1] // (3 * heads)) ** -0.5)


def _probabilities(qkv: Tensor, heads: int, packed: Packed) -> tuple[Tensor, Tensor]:
    query, key, value = qkv.view(len(qkv), 3, heads, -1).permute(1, 2, 0, 3).float()
    score = query @ key.transpose(1, 2) * _scale(qkv, heads)
    return score.masked_fill(packed.begin[:, None] != packed.begin[None, :], -torch.inf).softmax(-1), value


def _dropped(prob: Tensor, drop: Drop, packed: Packed) -> Tensor:
    """Dropout on [h, T, T], head by head as the kernels draw it."""
    if drop.rate == 0:
        return prob
    element = torch.arange(prob.shape[1] * prob.shape[2], device=prob.device).view(prob.shape[1:])
    keep = torch.stack([kept(element, drop, packed.seed, head) for head in range(len(prob))])
    return torch.where(keep, prob * drop.raised, torch.zeros_like(prob))


def _plain(qkv: Tensor, heads: int, drop: Drop, packed: Packed) -> tuple[Tensor, Any]:
    prob, value = _probabilities(qkv, heads, packed)
    out = (_dropped(prob, drop, packed) @ value).transpose(0, 1).reshape(len(qkv), -1)
    return out.to(qkv.dtype), None


def _plain_backward(dout: Tensor, qkv: Tensor, heads: int, drop: Drop, packed: Packed) -> Tensor:
    query, key, _value = qkv.view(len(qkv), 3, heads, -1).permute(1, 2, 0, 3).float()
    grad = dout.view(len(qkv), heads, -1).transpose(0, 1).float()
    prob, value = _probabilities(qkv, heads, packed)
    after = _dropped(prob, drop, packed)
    dprob = _dropped(grad @ value.transpose(1, 2), drop, packed)
    dscore = prob * (dprob - (dprob * prob).sum(-1, keepdim=True)) * _scale(qkv, heads)
    parts = [dscore @ key, dscore.transpose(1, 2) @ query, after.transpose(1, 2) @ grad]
    return torch.stack(parts).permute(2, 0, 1, 3).reshape(qkv.shape).to(qkv.dtype)


# Tokens of a tile, and of the pieces in which it looks at others. Small ones waste little on sentences of a dozen
# tokens, and one or two warps without a pipeline leave room for more programs: on an H100, at 3,584 tokens of SST-2,
# forward took 11.9 us and backward 41.5 us, against 20.7 and 59.6 us with tiles of 64, four warps and three stages.
FORWARD = {"M": 16, "N": 32, "num_warps": 1}
BACKWARD = {"M": 32, "N": 32, "num_warps": 2, "num_stages": 1}


def _given(qkv: Tensor, heads: int, drop: Drop, packed: Packed) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what both kernels take last, and what they are compiled for."""
    given = (packed.begin, packed.end, *drop.given(packed), _scale(qkv, heads), len(qkv))
    precision = "ieee" if qkv.dtype == torch.float32 else "tf32"
    return given, {"HEADS": heads, "D": qkv.shape[1] // (3 * heads), "DROP": drop.rate > 0, "PRECISION": precision}


def _tiles(qkv: Tensor, heads: int, drop: Drop, packed: Packed) -> tuple[Tensor, Any]:
    from . import attention_kernels

    tokens, width = len(qkv), qkv.shape[1] // 3
    out = torch.empty(tokens, width, device=qkv.device, dtype=qkv.dtype)
    lse = torch.empty(heads, tokens, device=qkv.device, dtype=torch.float32)
    given, fixed = _given(qkv, heads, drop, packed)
    attention_kernels.forward[(-(-tokens // FORWARD["M"]), heads)](qkv, out, lse, *given, **fixed, **FORWARD)
    return out, lse


def _tiles_backward(
    dout: Tensor, qkv: Tensor, out: Tensor, lse: Any, heads: int, drop: Drop, packed: Packed, sums: Tensor
) -> Tensor:
    from . import attention_kernels

    tokens, width = dout.shape
    dqkv = torch.empty_like(qkv)
    tiles = -(-tokens // BACKWARD["M"])
    # A tile leaves one row of sums. Where there are more tiles than rows, they are added up first.
    partial = sums if tiles <= PROGRAMS else torch.empty(tiles, 3 * width, device=sums.device)
    given, fixed = _given(qkv, heads, drop, packed)
    attention_kernels.backward[(tiles, heads, 2)](
        qkv, out, dout, lse, dqkv, partial, partial.stride(0), *given, **fixed, **BACKWARD
    )
    if tiles <= PROGRAMS:
        sums[tiles:].zero_()  # another budget's rows
    else:
        torch.sum(partial, 0, out=sums[0])
        sums[1:].zero_()
    return dqkv


def _lengths(packed: Packed) -> tuple[Any, ...]:
    return packed.bounds, packed.bounds, packed.longest, packed.longest


def _flash(qkv: Tensor, heads: int, drop: Drop, packed: Packed) -> tuple[Tensor, Any]:
    parts, scale = qkv.view(len(qkv), 3, heads, -1).unbind(1), _scale(qkv, heads)
    out, lse, state, unused, _ = torch.ops.aten._flash_attention_forward(
        *parts, *_lengths(packed), drop.rate, False, False, scale=scale
    )
    return out.view(len(qkv), -1), (lse, state, unused)


def _flash_backward(
    dout: Tensor, qkv: Tensor, out: Tensor, saved: Any, heads: int, drop: Drop, packed: Packed
) -> tuple[Tensor, Tensor, Tensor]:
    parts, scale = qkv.view(len(qkv), 3, heads, -1).unbind(1), _scale(qkv, heads)
    (lse, *states), shape = saved, parts[0].shape
    with in_fixed_order():
        dq, dk, dv = torch.ops.aten._flash_attention_backward(
            dout.view(shape), *parts, out.view(shape), lse, *_lengths(packed), drop.rate, False, *states, scale=scale
        )
    flat = (len(qkv), -1)
    return dq.reshape(flat), dk.reshape(flat), dv.reshape(flat)
