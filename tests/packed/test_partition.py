"""How processes divide what they update."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skytune.packed.flat_params import FlatParameters, RowPartition, runs
from skytune.packed.ops import add_rows
from skytune.packed.sharded_update import WORDS, ShardedUpdate


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
def test_parts_cover_all_layers_once(count: int) -> None:
    starts, end = [10, 20, 30, 40, 50], 60
    parts = runs(starts, end, count)
    assert len(parts) == min(count, 5)
    assert [part.start for part in parts.values()] == [starts[number] for number in parts]
    covered = sorted((part.start, part.stop) for part in parts.values())
    assert covered[0][0] == 10 and covered[-1][1] == 60
    assert all(before[1] == after[0] for before, after in pairwise(covered))


@settings(deadline=None)  # the first optimizer imports a lot
@given(st.integers(2, 9), st.lists(st.integers(1, 3000), min_size=1, max_size=5), st.integers(1, 20), st.integers(1, 9))
def test_everything_is_updated_by_one_process_or_by_all(size: int, lengths: list[int], words: int, width: int) -> None:
    """Shares of layers have whole cache lines, those of the table whole rows; what does not come out is everybody's."""
    ends = np.cumsum([words * width + 64, *lengths])
    parts = {number: slice(*map(int, pair)) for number, pair in enumerate(pairwise(ends))}
    arena = FlatParameters(torch.optim.AdamW([torch.nn.Parameter(torch.zeros(int(ends[-1]) + 30))]), torch.float32)
    table = arena.grads[: words * width].view(words, width)
    taken = np.zeros((size, len(arena.grads)), dtype=int)
    for rank in range(size):
        together = ShardedUpdate(arena, parts, table, rank=rank, size=size)
        for number, share in together.shares.items():
            assert share.each % (width if number == WORDS else 64) == 0
            assert share.each * size == share.whole.stop - share.whole.start
            taken[rank, share.own] += 1
        for cut in together.rest:
            taken[rank, cut] += size
    owned = (taken < size).all(0)
    assert (taken[:, owned].sum(0) == 1).all()
    assert (taken[:, ~owned] == size).all()


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 12), st.lists(st.integers(0, 11), max_size=30), st.integers(-1, 3))
def test_rows_are_added_up_by_whoever_has_them(size: int, count: int, ids: list[int], padding: int) -> None:
    """The sum over processes is the gradient of the whole table; nobody writes into the share of another."""
    index = torch.tensor([i % count for i in ids], dtype=torch.int64)
    grad = torch.arange(len(ids) * 2, dtype=torch.float32).view(-1, 2) + 1
    expected = torch.ops.aten.embedding_dense_backward(grad, index, count, padding, False)
    total = torch.zeros(count, 2)
    for rank in range(size):
        rows = RowPartition.of(count, rank, size)
        out = torch.full((count, 2), 7.0)
        add_rows(grad, index.sort(stable=True), rows, padding, out)
        others = torch.ones(count, dtype=torch.bool)
        others[rows.first : rows.stop] = others[rows.left :] = False
        assert (out[others] == 7).all()
        out[others] = 0
        total += out
        assert torch.equal(
            rows.holds(torch.arange(count)), ~others if rank == 0 else ~others & (torch.arange(count) < rows.left)
        )
    assert torch.equal(total, expected)
