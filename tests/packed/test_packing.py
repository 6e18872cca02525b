"""Budgets and packed batches."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skytune.packed.packing import DeviceTable, choose_budgets


def waste(totals: np.ndarray, budgets: list[int]) -> int:
    return sum(min(b for b in budgets if b >= total) - total for total in totals)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 900), min_size=1, max_size=30), st.integers(1, 4))
def test_budgets_hold_every_step_and_waste_least(totals, most):
    """No other choice of as many multiples of the grain leaves fewer tokens empty."""
    totals = np.array(totals)
    found = choose_budgets(totals, most, grain=64)
    assert 1 <= len(found) <= most and found == sorted(found)
    assert all(budget % 64 == 0 for budget in found) and found[-1] >= totals.max() > found[-1] - 64
    sizes = sorted({-(-int(total) // 64) * 64 for total in totals})
    others = itertools.combinations(sizes, min(most, len(sizes)))
    assert waste(totals, found) == min(waste(totals, list(b)) for b in others if b[-1] >= totals.max())


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 900), min_size=1, max_size=30), st.floats(0.0, 0.5))
def test_no_more_budgets_than_a_share_of_empty_tokens_takes(totals, share):
    totals = -(-np.array(totals) // 64) * 64
    found = choose_budgets(totals, 6, grain=64, waste=share)
    assert waste(totals, found) <= max(share * totals.sum(), waste(totals, choose_budgets(totals, 6, grain=64)))
    if len(found) > 1:
        assert waste(totals, choose_budgets(totals, len(found) - 1, grain=64)) > share * totals.sum()


def test_a_packed_batch_is_its_rows_one_after_another(rows_of):
    data = rows_of(20, pad=3, types=True)
    table = DeviceTable(data, torch.device("cpu"))
    chosen = [4, 17, 0, 9]
    rows = torch.tensor([*chosen, -1, -1])
    batch = table.unpack(rows, 192, 3, torch.zeros(1, dtype=torch.int64))
    ids, types = data.columns["input_ids"], data.columns["token_type_ids"]
    at = 0
    for place, row in enumerate(chosen):
        cut = slice(ids.offsets[row], ids.offsets[row + 1])
        size = cut.stop - cut.start
        assert batch.ids[at : at + size].tolist() == ids.values[cut].tolist()
        assert batch.types[at : at + size].tolist() == types.values[cut].tolist()
        assert batch.positions[at : at + size].tolist() == list(range(size))
        assert batch.packed.begin[at : at + size].tolist() == [at] * size
        assert batch.packed.end[at : at + size].tolist() == [at + size] * size
        assert batch.first[place] == at and batch.labels[place] == data.labels[row]
        at += size
    assert (batch.ids[at:] == 3).all() and (batch.packed.begin[at:] >= at).all()
    assert batch.labels[4:].tolist() == [-100, -100]


@settings(deadline=None, max_examples=40, suppress_health_check=[])
@given(st.lists(st.integers(0, 19), min_size=1, max_size=12, unique=True), st.integers(0, 3))
def test_bounds_cover_the_budget_in_pieces_no_longer_than_the_longest_row(chosen, more):
    data = _rows()
    table = DeviceTable(data, torch.device("cpu"))
    total = int(data.lengths[chosen].sum())
    budget = -(-total // 64) * 64 + 64 * more
    rows = torch.tensor([*chosen, -1])
    packed = table.unpack(rows, budget, 0, torch.zeros(1, dtype=torch.int64)).packed
    sizes = packed.bounds.diff()
    assert packed.bounds[0] == 0 and packed.bounds[-1] == budget
    assert (sizes >= 0).all() and int(sizes.max()) <= packed.longest
    at = torch.arange(budget)
    assert ((packed.begin <= at) & (at < packed.end)).all()


def _rows():
    import pyarrow as pa

    from skytune.data.batches import TokenTable

    random = np.random.default_rng(4)
    ids = [random.integers(4, 60, size=n).tolist() for n in random.integers(1, 40, size=20)]
    return TokenTable(pa.table({"input_ids": ids, "labels": random.integers(0, 3, size=20)}))


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_draws_a_fair_and_independent_mask(rate):
    """The share that is dropped, and its correlation with neighbours, other seeds and other salts, are as of chance."""
    from skytune.packed.ops import Drop, kept

    element = torch.arange(200_000)
    masks = [
        kept(element, Drop(rate, salt), torch.tensor([seed])).float()
        for salt, seed in ((65536, 1), (65536, 2), (131072, 1), (65537, 1))
    ]
    error = 4 * (rate * (1 - rate) / len(element)) ** 0.5
    for mask in masks:
        assert abs(1 - mask.mean().item() - rate) < error
        shifted = torch.corrcoef(torch.stack([mask[:-1], mask[1:]]))[0, 1].item()
        assert abs(shifted) < 4 / len(element) ** 0.5
    correlation = torch.corrcoef(torch.stack(masks)) - torch.eye(len(masks))
    assert correlation.abs().max() < 5 / len(element) ** 0.5
