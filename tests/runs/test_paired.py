"""Two models on the same rows: what the test says, and which rows are the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skytune.runs.paired import matched, paired


def test_mcnemar_is_the_exact_binomial_test_of_rows_that_one_model_alone_has_right() -> None:
    first, second = np.ones(100), np.ones(100)
    first[:10], second[10:12] = 0, 0  # 10 rows only the second one has, 2 only the first
    found = paired(first, second)
    assert found.alone == (2, 10)
    assert found.p == pytest.approx(2 * sum([1, 12, 66]) / 2**12)
    assert found.difference == pytest.approx(0.08)
    low, high = found.interval
    assert low < 0.08 < high
    # 1.96 standard errors of a difference of paired shares
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt((12 / 100 - 0.08**2) / 100), rel=0.1)


def test_the_same_answers_differ_by_nothing() -> None:
    found = paired(np.array([1.0, 0, 1]), np.array([1.0, 0, 1]))
    assert (found.p, found.interval, found.difference) == (1.0, (0.0, 0.0), 0.0)


def test_numbers_that_are_not_right_or_wrong_get_an_interval_alone() -> None:
    draw = np.random.default_rng(1)
    first = draw.normal(size=3000)
    found = paired(first, first + draw.normal(0.2, 1, size=3000))
    assert found.alone is None and found.p is None
    assert found.interval[0] < found.difference < found.interval[1]
    assert found.interval[1] - found.interval[0] == pytest.approx(2 * 1.96 / np.sqrt(3000), rel=0.15)


keys = st.lists(st.integers(0, 5), max_size=20).map(lambda values: np.array(values, np.uint64))


@given(keys, keys)
def test_every_match_is_a_match_and_none_is_left_out(first: np.ndarray, second: np.ndarray) -> None:
    left, right = matched(first, second)
    assert (first[left] == second[right]).all()
    assert len(set(left.tolist())) == len(set(right.tolist())) == len(left)
    assert (np.diff(left) > 0).all()
    for key in range(6):
        assert int((first[left] == key).sum()) == min(int((first == key).sum()), int((second == key).sum()))
