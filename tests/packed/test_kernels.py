"""The Triton kernels against the plain torch form of the same operations, dropout masks included.

On a CUDA device they run there. Elsewhere Triton's interpreter runs them, where the package is installed (`pip install
triton`, Linux): torch's CPU build does not bring it, so the test skips then.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from skytune.packed import attention, ops
from skytune.packed.flat_params import RowPartition
from skytune.packed.ops import Drop, Packed, Partials, add_rows

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOKENS, WIDTH, INNER, HEADS = 150, 64, 96, 2


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], list[Any]]], None]]:
    """Return a function that computes something in both forms and compares the tensors."""
    monkeypatch.setattr(ops, "PROGRAMS", 7)
    monkeypatch.setattr(attention, "PROGRAMS", 7)

    def compare(compute: Callable[[], list[Any]], within: float = 3e-4) -> None:
        found = []
        for kernels in (False, True):
            monkeypatch.setattr(ops, "_triton", lambda _, kernels=kernels: kernels)
            monkeypatch.setattr(attention, "way", lambda *_, kernels=kernels: "tiles" if kernels else "plain")
            found.append(compute())
        for plain, kernel in zip(*found, strict=True):
            torch.testing.assert_close(kernel.float(), plain.float(), atol=within, rtol=0)

    yield compare


@pytest.fixture
def packed() -> Packed:
    lengths = [1, 5, 13, 40, 7, 22, 30, 12]
    begin, end, at = torch.zeros(TOKENS, dtype=torch.int32), torch.zeros(TOKENS, dtype=torch.int32), 0
    for length in [*lengths, TOKENS - sum(lengths)]:
        begin[at : at + length], end[at : at + length] = at, at + length
        at += length
    begin, end = begin.to(DEVICE), end.to(DEVICE)
    return Packed(begin, end, begin, 40, torch.tensor([5], device=DEVICE))


def numbers(*shape: int) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(*shape).to(DEVICE)


def sums(columns: int) -> torch.Tensor:
    return torch.zeros(7, columns, device=DEVICE)


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_dropout_add_norm_and_its_gradients(both, packed, rate):
    drop = Drop(rate, 3 * 65536)
    x, residual, gamma, beta = numbers(TOKENS, WIDTH), numbers(TOKENS, WIDTH) * 2, numbers(WIDTH), numbers(WIDTH) + 1
    both(lambda: list(ops.dropout_add_norm(x, residual, gamma, beta, 1e-12, drop, packed)))
    _, z, stats = ops.dropout_add_norm(x, residual, gamma, beta, 1e-12, drop, packed)

    def backward() -> list[Any]:
        partial = sums(3 * WIDTH + 10)
        grads = ops.dropout_add_norm_backward(x, z, stats, gamma, drop, packed, partial[:, 10:])
        return [*grads, partial.sum(0)]

    both(backward)


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("rows", [7, 2], ids=["a row for every tile", "more tiles than rows"])
def test_attention_and_its_gradients(both, packed, rate, rows, monkeypatch):
    drop = Drop(rate, 65536)
    qkv, grad = numbers(TOKENS, 3 * WIDTH), numbers(TOKENS, WIDTH)
    both(lambda: [attention.forward(qkv, HEADS, drop, packed)[0]])
    out, lse = attention.forward(qkv, HEADS, drop, packed)  # the kernel's: the plain form needs no sums
    monkeypatch.setattr(attention, "PROGRAMS", rows)

    def backward() -> list[Any]:
        partial = sums(3 * WIDTH)
        return [attention.backward(grad, qkv, out, lse, HEADS, drop, packed, partial), partial.sum(0)]

    both(backward)


def test_gelu_and_its_gradient(both):
    h, df = numbers(TOKENS, INNER), numbers(TOKENS, INNER).flip(0).contiguous()
    both(lambda: [ops.gelu(h)])

    def backward() -> list[Any]:
        partial = sums(INNER + 5)
        return [ops.gelu_backward(df, h, partial[:, 5:]), partial.sum(0)]

    both(backward)


@pytest.mark.parametrize("add", [False, True])
def test_partial_sums_arrive(both, add):
    def finish() -> list[Any]:
        out = torch.ones(3, 130, device=DEVICE)[:, :128]
        partials = Partials(out)
        partials.buffer.copy_(torch.arange(partials.buffer.numel(), device=DEVICE).view(partials.buffer.shape) % 17)
        partials.finish(add)
        return [out]

    both(finish)


def test_joining_adds_up_too(monkeypatch):
    monkeypatch.setattr(ops, "PROGRAMS", 7)
    parts, partial = tuple(numbers(TOKENS, WIDTH) * (n + 1) for n in range(3)), sums(3 * WIDTH)
    joined = ops.join(parts, partial)
    assert torch.equal(joined, torch.cat(parts, 1))
    torch.testing.assert_close(partial.sum(0), joined.sum(0), atol=1e-4, rtol=0)


@pytest.mark.parametrize("low", [False, True])
def test_adamw(low):
    """One step as torch's own AdamW takes it, and the rounded copy."""
    from skytune.packed.flat_params import FlatParameters

    torch.manual_seed(0)
    ours = torch.nn.Parameter(torch.randn(5000, device=DEVICE))
    other = torch.nn.Parameter(ours.detach().clone())
    settings = {"lr": 1e-2, "weight_decay": 0.1, "eps": 1e-6}
    optimizer, reference = torch.optim.AdamW([ours], **settings), torch.optim.AdamW([other], **settings)
    arena = FlatParameters(optimizer, torch.bfloat16 if low else torch.float32)
    for step in range(1, 4):
        grad = torch.randn(5000, device=DEVICE)
        arena.grads[:5000] = grad
        other.grad = arena.grads[:5000].float()
        torch.nn.utils.clip_grad_norm_([other], 1.0)
        reference.step()
        arena.scalars[:3] = torch.tensor([1e-2, *arena.corrections(step)])
        _step(arena)
    torch.testing.assert_close(ours, other, atol=2e-6, rtol=0)
    if low:
        torch.testing.assert_close(
            arena.low[:5000].float(), ours.detach(), atol=0, rtol=2**-7
        )  # the interpreter cuts off, a GPU rounds


def _step(arena: Any) -> None:
    """Take one step with the kernel, on whatever device."""
    from skytune.packed import kernels

    torch.linalg.vector_norm(arena.grads, dtype=torch.float32, out=arena.norm)
    torch.clamp(1.0 / (arena.norm + 1e-6), max=1.0, out=arena.scalars[3])
    ((start, size, group),) = arena.regions
    assert start == 0
    kernels.adamw[(-(-size // 1024),)](
        arena.weights,
        arena.first,
        arena.second,
        arena.grads,
        arena.low,
        arena.scalars,
        size,
        group["weight_decay"],
        0.9,
        0.999,
        group["eps"],
        HAS_LOW=arena.low is not arena.weights,
        BLOCK=1024,
    )


@pytest.mark.parametrize(("rank", "size"), [(0, 1), (0, 3), (1, 3), (2, 3)])
def test_rows_of_words_are_added_up(monkeypatch, rank, size):
    """One row has more tokens than a program reads at once; another's share and the padding row stay as they are."""
    ids = torch.randint(0, 50, (400,), generator=torch.Generator().manual_seed(1))
    ids[::5] = 3
    grad, rows = numbers(400, 300), RowPartition.of(50, rank, size)
    found = []
    for kernels in (False, True):
        monkeypatch.setattr(ops, "_triton", lambda _, kernels=kernels: kernels)
        out = torch.full((50, 300), 7.0, device=DEVICE)
        add_rows(grad, ids.to(DEVICE).sort(stable=True), rows, 20, out)
        found.append(out)
    torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=0)
