"""Triton kernels of attention over packed sequences: a token sees the tokens of its own sequence, nothing is padded.

Flash attention (Dao et al. 2022, arXiv:2205.14135) with a block-diagonal mask. A tile of tokens may hold many short
sequences, and its loop runs from where the first of them starts to where the last one ends. Kernels that give every
sequence tiles of its own compute 128 x 128 scores for a sentence of 13 tokens.
"""

import triton
import triton.language as tl

from .kernels import kept


@triton.jit
def forward(
    qkv,
    out,
    lse,
    begin,
    end,
    seed,
    salt,
    threshold,
    raised,
    scale,
    T,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    DROP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out [T, HEADS, D] and the log of the softmax's sum, lse [HEADS, T]; begin, end [T] bound a token's sequence."""
    head = tl.program_id(1)
    q_at = tl.program_id(0) * M + tl.arange(0, M)
    d = tl.arange(0, D)
    q_in = q_at < T
    row: tl.constexpr = 3 * HEADS * D
    q = tl.load(qkv + q_at[:, None] * row + head * D + d[None, :], mask=q_in[:, None], other=0.0)
    q_begin = tl.load(begin + q_at, mask=q_in, other=-1)
    first = tl.load(begin + tl.program_id(0) * M)
    last = tl.load(end + tl.minimum(tl.program_id(0) * M + M, T) - 1)
    high = tl.full([M], -float("inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    for n in range(first, last, N):
        k_at = n + tl.arange(0, N)
        k_in = k_at < last
        at = k_at[:, None] * row + head * D + d[None, :]
        k = tl.load(qkv + HEADS * D + at, mask=k_in[:, None], other=0.0)
        v = tl.load(qkv + 2 * HEADS * D + at, mask=k_in[:, None], other=0.0)
        seen = tl.load(begin + k_at, mask=k_in, other=-2)[None, :] == q_begin[:, None]
        score = tl.where(seen, tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale, -float("inf"))
        higher = tl.maximum(high, tl.max(score, 1))
        safe = tl.where(higher == -float("inf"), 0.0, higher)
        prob = tl.exp(score - safe[:, None])
        shrink = tl.exp(high - safe)
        total = total * shrink + tl.sum(prob, 1)
        if DROP:
            keep = kept(seed, salt + head, q_at[:, None] * T + k_at[None, :], threshold)
            prob = tl.where(keep, prob * raised, 0.0)
        acc = acc * shrink[:, None] + tl.dot(prob.to(v.dtype), v, input_precision=PRECISION)
        high = higher
    total = tl.where(total == 0, 1.0, total)
    acc = acc / total[:, None]
    place = out + q_at[:, None] * (HEADS * D) + head * D + d[None, :]
    tl.store(place, acc.to(out.dtype.element_ty), mask=q_in[:, None])
    tl.store(lse + head * T + q_at, high + tl.log(total), mask=q_in)


@triton.jit
def backward(
    qkv,
    out,
    dout,
    lse,
    dqkv,
    partial,
    stride,
    begin,
    end,
    seed,
    salt,
    threshold,
    raised,
    scale,
    T,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    DROP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """dqkv [T, 3, HEADS, D]: half of the programs take a tile as keys and values, half as queries; no atomics.

    Row i of `partial` [tiles, 3 * HEADS * D] gets the sums of dqkv over tile i, for the biases before it.
    """
    head = tl.program_id(1)
    d = tl.arange(0, D)
    row: tl.constexpr = 3 * HEADS * D
    wide: tl.constexpr = HEADS * D
    tile = tl.program_id(0) * M + tl.arange(0, M)
    tile_in = tile < T
    tile_begin = tl.load(begin + tile, mask=tile_in, other=-1)
    first = tl.load(begin + tl.program_id(0) * M)
    last = tl.load(end + tl.minimum(tl.program_id(0) * M + M, T) - 1)
    at = tile[:, None] * row + head * D + d[None, :]
    sums = partial + tl.program_id(0) * stride + head * D + d
    if tl.program_id(2) == 0:
        tile_k = tl.load(qkv + wide + at, mask=tile_in[:, None], other=0.0)
        tile_v = tl.load(qkv + 2 * wide + at, mask=tile_in[:, None], other=0.0)
        dk = tl.zeros([M, D], tl.float32)
        dv = tl.zeros([M, D], tl.float32)
        for n in range(first, last, N):
            q_at = n + tl.arange(0, N)
            q_in = q_at < last
            q = tl.load(qkv + q_at[:, None] * row + head * D + d[None, :], mask=q_in[:, None], other=0.0)
            o_at = q_at[:, None] * wide + head * D + d[None, :]
            do = tl.load(dout + o_at, mask=q_in[:, None], other=0.0)
            o = tl.load(out + o_at, mask=q_in[:, None], other=0.0)
            delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)
            seen = tl.load(begin + q_at, mask=q_in, other=-2)[:, None] == tile_begin[None, :]
            score = tl.dot(q, tl.trans(tile_k), input_precision=PRECISION) * scale
            log_sum = tl.load(lse + head * T + q_at, mask=q_in, other=0.0)
            prob = tl.where(seen, tl.exp(score - log_sum[:, None]), 0.0)
            dprob = tl.dot(do, tl.trans(tile_v), input_precision=PRECISION)
            after = prob
            if DROP:
                keep = kept(seed, salt + head, q_at[:, None] * T + tile[None, :], threshold)
                after = tl.where(keep, prob * raised, 0.0)
                dprob = tl.where(keep, dprob * raised, 0.0)
            dv += tl.dot(tl.trans(after.to(do.dtype)), do, input_precision=PRECISION)
            dscore = prob * (dprob - delta[:, None])
            dk += tl.dot(tl.trans(dscore.to(q.dtype)), q, input_precision=PRECISION)
        dk = (dk * scale).to(dqkv.dtype.element_ty)
        dv = dv.to(dqkv.dtype.element_ty)
        tl.store(dqkv + wide + at, dk, mask=tile_in[:, None])
        tl.store(dqkv + 2 * wide + at, dv, mask=tile_in[:, None])
        tl.store(sums + wide, tl.sum(tl.where(tile_in[:, None], dk.to(tl.float32), 0.0), 0))
        tl.store(sums + 2 * wide, tl.sum(tl.where(tile_in[:, None], dv.to(tl.float32), 0.0), 0))
    else:
        tile_q = tl.load(qkv + at, mask=tile_in[:, None], other=0.0)
        o_at = tile[:, None] * wide + head * D + d[None, :]
        do = tl.load(dout + o_at, mask=tile_in[:, None], other=0.0)
        o = tl.load(out + o_at, mask=tile_in[:, None], other=0.0)
        delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)
        log_sum = tl.load(lse + head * T + tile, mask=tile_in, other=0.0)
        dq = tl.zeros([M, D], tl.float32)
        for n in range(first, last, N):
            k_at = n + tl.arange(0, N)
            k_in = k_at < last
            at_k = k_at[:, None] * row + head * D + d[None, :]
            k = tl.load(qkv + wide + at_k, mask=k_in[:, None], other=0.0)
            v = tl.load(qkv + 2 * wide + at_k, mask=k_in[:, None], other=0.0)
            seen = tl.load(begin + k_at, mask=k_in, other=-2)[None, :] == tile_begin[:, None]
            score = tl.dot(tile_q, tl.trans(k), input_precision=PRECISION) * scale
            prob = tl.where(seen, tl.exp(score - log_sum[:, None]), 0.0)
            dprob = tl.dot(do, tl.trans(v), input_precision=PRECISION)
            if DROP:
                keep = kept(seed, salt + head, tile[:, None] * T + k_at[None, :], threshold)
                dprob = tl.where(keep, dprob * raised, 0.0)
            dscore = prob * (dprob - delta[:, None])
            dq += tl.dot(dscore.to(k.dtype), k, input_precision=PRECISION)
        dq = (dq * scale).to(dqkv.dtype.element_ty)
        tl.store(dqkv + at, dq, mask=tile_in[:, None])
        tl.store(sums, tl.sum(tl.where(tile_in[:, None], dq.to(tl.float32), 0.0), 0))
