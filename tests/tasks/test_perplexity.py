"""Perplexity over all tokens, and an interval that holds what it says."""

import math

import numpy as np
import pytest

from skytune.tasks.perplexity import perplexity


def test_tokens_weigh_alike_whatever_row_they_stand_in() -> None:
    found = perplexity(np.array([8.0, 2.0]), np.array([2, 8]))
    assert found["loss"] == 1.0 and found["perplexity"] == pytest.approx(math.e) and found["tokens"] == 10
    assert found["perplexity_low"] < math.e < found["perplexity_high"]
    assert math.isnan(perplexity(np.array([8.0]), np.array([2]))["perplexity_low"])


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    draw = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        counts = draw.integers(1, 40, 200)
        of_row = draw.normal(2.0, 0.5, 200)  # tokens of one row go together
        found = perplexity(of_row * counts, counts)
        hits += found["perplexity_low"] <= math.exp(2.0) <= found["perplexity_high"]
    assert 0.92 <= hits / 400 <= 0.98
