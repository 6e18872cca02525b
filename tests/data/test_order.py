"""The order of samples: a pure function, the same for any number of processes, each row once an epoch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skytune.data.order import SampleOrder, micro_batches
from skytune.training.prediction import eval_batches

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=200).map(lambda values: np.array(values))


@given(
    lengths=LENGTHS,
    seed=st.integers(0, 2**32 - 1),
    epoch=st.integers(0, 5),
    size=st.integers(1, 40),
    bucket=st.sampled_from([1, 2, 50]),
)
def test_every_epoch_is_a_permutation_in_whole_batches(
    lengths: np.ndarray, seed: int, epoch: int, size: int, bucket: int
) -> None:
    batches = SampleOrder(lengths, seed=seed, global_size=size, bucket_batches=bucket).epoch(epoch)
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    assert all(len(batch) == size for batch in batches[:-1])
    assert 1 <= len(batches[-1]) <= size


@given(lengths=LENGTHS, seed=st.integers(0, 9), size=st.integers(1, 20), step=st.integers(0, 100))
def test_a_step_needs_no_history(lengths: np.ndarray, seed: int, size: int, step: int) -> None:
    walked = SampleOrder(lengths, seed=seed, global_size=size)
    for before in range(step):
        walked.rows(before)
    jumped = SampleOrder(lengths, seed=seed, global_size=size)
    assert walked.rows(step).tolist() == jumped.rows(step).tolist()


@settings(max_examples=200)
@given(rows=st.integers(1, 40), world=st.integers(1, 6), micro=st.one_of(st.none(), st.integers(1, 40)))
def test_micro_batches_are_the_global_batch_however_it_is_cut(rows: int, world: int, micro: int | None) -> None:
    batch = np.arange(100, 100 + rows)
    parts = [micro_batches(batch, rank=r, world_size=world, micro_size=micro) for r in range(world)]
    assert len({len(part) for part in parts}) == 1, "collectives need as many micro-batches on every process"
    assert all(len(m.rows) >= 1 for part in parts for m in part)
    counted = [row for part in parts for m in part for row in m.rows[: m.real]]
    assert sorted(counted) == batch.tolist()
    # Averaged over processes, the weighted micro-batch means are the mean over the global batch.
    values = {row: float(row) ** 1.5 for row in batch.tolist()}
    total = sum(m.weight * np.mean([values[row] for row in m.rows.tolist()]) for part in parts for m in part) / world
    assert total == pytest.approx(np.mean(list(values.values())), rel=1e-12)
    assert all([m.last for m in part] == [False] * (len(part) - 1) + [True] for part in parts)


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=60),
    world=st.integers(1, 4),
    micro=st.one_of(st.none(), st.integers(1, 9)),
)
def test_micro_batches_of_one_length_are_the_global_batch_too(
    lengths: list[int], world: int, micro: int | None
) -> None:
    found = np.array(lengths)
    batch = np.arange(len(found))
    parts = [micro_batches(batch, rank=r, world_size=world, micro_size=micro, lengths=found) for r in range(world)]
    assert len({len(part) for part in parts}) == 1
    assert all([m.last for m in part] == [False] * (len(part) - 1) + [True] for part in parts)
    assert sorted(row for part in parts for m in part for row in m.rows[: m.real]) == batch.tolist()
    assert all(len(set(found[m.rows])) == 1 for part in parts for m in part)
    weights = sum(m.weight for part in parts for m in part)
    assert weights == pytest.approx(world)


@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=60), size=st.integers(1, 9))
def test_evaluation_batches_of_one_length(lengths: list[int], size: int) -> None:
    found = np.array(lengths)
    batches = eval_batches(found, size, None, 1)
    assert sorted(np.concatenate(batches)) == list(range(len(found)))
    assert all(len(set(found[batch])) == 1 and len(batch) <= size for batch in batches)


def test_epochs_differ_and_seeds_differ() -> None:
    lengths = np.full(100, 7)
    order = SampleOrder(lengths, seed=1, global_size=10)
    first, second = np.concatenate(order.epoch(0)), np.concatenate(order.epoch(1))
    other = np.concatenate(SampleOrder(lengths, seed=2, global_size=10).epoch(0))
    assert first.tolist() != second.tolist()
    assert first.tolist() != other.tolist()


def test_length_buckets_save_padding() -> None:
    lengths = np.random.default_rng(0).geometric(0.05, 5000)

    def padding(bucket: int) -> float:
        batches = SampleOrder(lengths, seed=0, global_size=32, bucket_batches=bucket).epoch(0)
        computed = sum(len(rows) * lengths[rows].max() for rows in batches)
        return 1 - lengths.sum() / computed

    assert padding(1) > 0.6
    assert padding(50) < 0.15


def test_limit_and_positions() -> None:
    order = SampleOrder(np.ones(10), seed=0, global_size=4, limit=2)
    assert order.steps_per_epoch == 2
    where = order.position(5)
    assert (where.epoch, where.index) == (2, 1)
    assert order.rows(5).tolist() == order.epoch(2)[1].tolist()


def test_known_order() -> None:
    """Changing the rule changes which rows a resumed run sees next: it must not happen unnoticed."""
    order = SampleOrder(np.array([5, 3, 9, 1, 4, 8, 2]), seed=42, global_size=3, bucket_batches=2)
    assert [batch.tolist() for batch in order.epoch(0)] == GOLDEN


GOLDEN = [[3, 6, 1], [4, 5, 2], [0]]
