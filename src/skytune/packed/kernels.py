"""Triton kernels of the captured step: what lies between the matrix products of an encoder, and the optimizer.

Every kernel reads and writes each number once. Dropout masks are a function of (seed, salt, element): the seed is read
from device memory, so that replays of a captured step differ, and the backward pass draws the same mask again instead
of loading it. Nothing here adds in an order that depends on timing: the same inputs give the same bits.

The functions that launch them are in `ops.py`, beside the same mathematics in plain torch. Offsets are 32-bit: up to
2^31 elements an array.
"""

import triton
import triton.language as tl


@triton.jit
def mix(x):
    """A bijection of 32-bit integers in which every input bit flips every output bit with a probability near 1/2.

    Constants: C. Wellons, "Prospecting for hash functions", 2018 (`lowbias32`). `ops.mix` is the same.
    """
    x = x.to(tl.uint32)
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    return x


@triton.jit
def kept(seed, salt, element, threshold):
    """Whether an element survives dropout; `threshold` is the dropped share of 2^32."""
    key = mix(tl.load(seed).to(tl.uint32) + mix(salt + 0 * tl.load(seed)))
    return mix(element.to(tl.uint32) ^ key) >= threshold.to(tl.uint32)


@triton.jit
def adamw(p, m, v, g, low, scalars, n, decay, beta1, beta2, eps, HAS_LOW: tl.constexpr, BLOCK: tl.constexpr):
    """AdamW (Loshchilov & Hutter 2019, as `torch.optim.AdamW`) on flat arrays; `low` gets the rounded weights.

    scalars: learning rate, 1 - beta1^t, sqrt(1 - beta2^t), factor on the gradient (clipping).
    """
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    rate, one, two, clip = tl.load(scalars), tl.load(scalars + 1), tl.load(scalars + 2), tl.load(scalars + 3)
    grad = tl.load(g + i, mask=inside, other=0.0).to(tl.float32) * clip
    weight = tl.load(p + i, mask=inside, other=0.0)
    first = tl.load(m + i, mask=inside, other=0.0)
    second = tl.load(v + i, mask=inside, other=0.0)
    first += (1 - beta1) * (grad - first)
    second = beta2 * second + (1 - beta2) * grad * grad
    weight = weight * (1 - rate * decay) - rate / one * first / (tl.sqrt(second) / two + eps)
    tl.store(p + i, weight, mask=inside)
    tl.store(m + i, first, mask=inside)
    tl.store(v + i, second, mask=inside)
    if HAS_LOW:
        tl.store(low + i, weight.to(low.dtype.element_ty), mask=inside)


@triton.jit
def dropout_add_norm(
    x,
    residual,
    gamma,
    beta,
    y,
    z,
    stats,
    seed,
    salt,
    threshold,
    raised,
    eps,
    T,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    DROP: tl.constexpr,
):
    """z = dropout(x) + residual; y = layer norm of z; stats [T, 2] holds z's mean and 1/deviation."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, BLOCK)
    real = col[None, :] < H
    inside = (row < T)[:, None] & real
    at = row[:, None] * H + col[None, :]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if DROP:
        value = tl.where(kept(seed, salt, at, threshold), value * raised, 0.0)
    value = value.to(z.dtype.element_ty).to(tl.float32) + tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    value = value.to(z.dtype.element_ty)
    tl.store(z + at, value, mask=inside)
    value = value.to(tl.float32)
    mean = tl.sum(tl.where(real, value, 0.0), 1) / H
    centred = tl.where(real, value - mean[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 1) / H + eps)
    tl.store(stats + 2 * row, mean, mask=row < T)
    tl.store(stats + 2 * row + 1, scale, mask=row < T)
    weight = tl.load(gamma + col, mask=col < H, other=0.0).to(tl.float32)
    bias = tl.load(beta + col, mask=col < H, other=0.0).to(tl.float32)
    result = centred * scale[:, None] * weight[None, :] + bias[None, :]
    tl.store(y + at, result.to(y.dtype.element_ty), mask=inside)


@triton.jit
def dropout_add_norm_backward(
    dy,
    z,
    gamma,
    stats,
    dz,
    dx,
    partial,
    stride,
    seed,
    salt,
    threshold,
    raised,
    T,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    DROP: tl.constexpr,
):
    """Gradients of `dropout_add_norm`; a row of `partial` gets sums for gamma, beta and the bias before x.

    Without dropout dx equals dz and is not written.
    """
    col = tl.arange(0, BLOCK)
    real = col[None, :] < H
    weight = tl.load(gamma + col, mask=col < H, other=0.0).to(tl.float32)
    # Added up over rows at the end only: a sum over axis 0 crosses warps.
    for_gamma = tl.zeros([ROWS, BLOCK], tl.float32)
    for_beta = tl.zeros([ROWS, BLOCK], tl.float32)
    for_bias = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(tl.program_id(0) * ROWS, T, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < T)[:, None] & real
        at = row[:, None] * H + col[None, :]
        grad = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(stats + 2 * row, mask=row < T, other=0.0)
        scale = tl.load(stats + 2 * row + 1, mask=row < T, other=0.0)
        value = tl.load(z + at, mask=inside, other=0.0).to(tl.float32)
        normal = tl.where(inside, (value - mean[:, None]) * scale[:, None], 0.0)
        for_gamma += grad * normal
        for_beta += grad
        inner = grad * weight[None, :]
        value = inner - (tl.sum(inner, 1) / H)[:, None] - normal * (tl.sum(inner * normal, 1) / H)[:, None]
        value = tl.where(inside, value * scale[:, None], 0.0)
        tl.store(dz + at, value.to(dz.dtype.element_ty), mask=inside)
        if DROP:
            value = tl.where(kept(seed, salt, at, threshold), value * raised, 0.0)
            tl.store(dx + at, value.to(dx.dtype.element_ty), mask=inside)
        for_bias += value
    out = partial + tl.program_id(0) * stride + col
    tl.store(out, tl.sum(for_gamma, 0), mask=col < H)
    tl.store(out + H, tl.sum(for_beta, 0), mask=col < H)
    tl.store(out + 2 * H, tl.sum(for_bias, 0), mask=col < H)


@triton.jit
def gelu(h, f, n, BLOCK: tl.constexpr):
    """The exact GELU (Hendrycks & Gimpel 2016), element by element."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(h + i, mask=i < n, other=0.0).to(tl.float32)
    value = 0.5 * value * (1 + tl.erf(value * 0.7071067811865476))
    tl.store(f + i, value.to(f.dtype.element_ty), mask=i < n)


@triton.jit
def gelu_backward(df, h, dh, partial, stride, T, C, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Gradient of `gelu` [T, C]; a row of `partial` gets column sums, for the bias before it."""
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(tl.program_id(0) * ROWS, T, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < T)[:, None] & (col < C)[None, :]
        at = row[:, None] * C + col[None, :]
        value = tl.load(h + at, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(df + at, mask=inside, other=0.0).to(tl.float32)
        density = 0.3989422804014327 * tl.exp(-0.5 * value * value)
        grad = (grad * (0.5 * (1 + tl.erf(value * 0.7071067811865476)) + value * density)).to(dh.dtype.element_ty)
        tl.store(dh + at, grad, mask=inside)
        total += grad.to(tl.float32)
    tl.store(partial + tl.program_id(0) * stride + col, tl.sum(total, 0), mask=col < C)


@triton.jit
def join(q, k, v, out, partial, stride, T, C, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """out [T, 3C] is q, k and v [T, C] side by side; a row of `partial` gets its sums over some rows."""
    part = tl.program_id(2)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    source = q
    if part == 1:
        source = k
    if part == 2:
        source = v
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(tl.program_id(0) * ROWS, T, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < T)[:, None] & (col < C)[None, :]
        value = tl.load(source + row[:, None] * C + col[None, :], mask=inside, other=0.0)
        tl.store(out + row[:, None] * (3 * C) + part * C + col[None, :], value, mask=inside)
        total += value.to(tl.float32)
    tl.store(partial + tl.program_id(0) * stride + part * C + col, tl.sum(total, 0), mask=col < C)


@triton.jit
def reduce_partials(partial, out, out_stride, G, C, ADD: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """out [layers, C] (+)= sums over the middle axis of partial [layers, G, C]."""
    layer = tl.program_id(1)
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, G, ROWS):
        row = start + tl.arange(0, ROWS)
        at = (layer * G + row)[:, None] * C + col[None, :]
        total += tl.sum(tl.load(partial + at, mask=(row < G)[:, None] & (col < C)[None, :], other=0.0), 0)
    place = out + layer * out_stride + col
    if ADD:
        total += tl.load(place, mask=col < C, other=0.0).to(tl.float32)
    tl.store(place, total.to(out.dtype.element_ty), mask=col < C)


@triton.jit
def add_rows(ids, places, grad, out, n, first, stop, rest, padding, H, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """out[r] = sum of grad[places[i]] where ids[i] = r, for r in [first, stop) and from `rest` on; `ids` ascend.

    The program of the first place of a row adds up all of them.
    """
    i = tl.program_id(0)
    target = tl.load(ids + i)
    before = tl.load(ids + i - 1, mask=i > 0, other=-1)
    wanted = ((target >= first) & (target < stop)) | (target >= rest)
    if (target != before) & wanted & (target != padding):
        col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        total = tl.zeros([BLOCK], tl.float32)
        at = i
        found = ROWS
        while found == ROWS:
            row = at + tl.arange(0, ROWS)
            same = tl.load(ids + row, mask=row < n, other=-1) == target
            place = tl.load(places + row, mask=same, other=0)
            inside = same[:, None] & (col < H)[None, :]
            total += tl.sum(tl.load(grad + place[:, None] * H + col[None, :], mask=inside, other=0.0).to(tl.float32), 0)
            found = tl.sum(same.to(tl.int32), 0)
            at += ROWS
        tl.store(out + target * H + col, total.to(out.dtype.element_ty), mask=col < H)
