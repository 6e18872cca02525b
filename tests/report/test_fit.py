"""The fitted model finds the numbers that made the times, and says how far it is off."""

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skytune.report.fit import FEWEST, TERMS, Fit, fits, group_of, nearest


def row(
    samples: int, batch: int, devices: int = 1, nodes: int = 1, seconds: float = 0.0, **more: Any
) -> dict[str, Any]:
    return {
        "status": "done",
        "model": "m",
        "data": "d",
        "accelerator": "T4",
        "strategy": "single" if devices == 1 else "ddp",
        "precision": "fp32",
        "samples": samples,
        "steps": -(-samples // batch),
        "devices": devices,
        "nodes": nodes,
        "total_s": seconds,
        **more,
    }


def timed(
    rows: list[dict[str, Any]], truth: tuple[float, ...], noise: float = 0.0, seed: int = 0
) -> list[dict[str, Any]]:
    setup, per_row, per_step, exchange, node = truth
    draw = random.Random(seed)
    for one in rows:
        seconds = setup + per_row * one["samples"] / one["devices"] + per_step * one["steps"]
        seconds += one["steps"] * (exchange * (1 - 1 / one["devices"]) + node * math.log2(one["nodes"]))
        one["total_s"] = seconds * (1 + draw.uniform(-noise, noise))
    return rows


def grid() -> list[dict[str, Any]]:
    sizes = [(4_000, 16), (4_000, 64), (16_000, 16), (16_000, 64), (64_000, 32)]
    return [row(n, b, d * k, k) for n, b in sizes for d, k in ((1, 1), (4, 1), (8, 2), (8, 4))]


@settings(max_examples=25, deadline=None)
@given(st.tuples(st.floats(5, 300), st.floats(1e-4, 1e-2), *[st.floats(1e-3, 0.1)] * 3))
def test_it_finds_what_made_the_times(truth: tuple[float, ...]) -> None:
    (fit,) = fits(timed(grid(), truth)).values()
    assert [fit.coefficients[name] for name in TERMS] == pytest.approx(truth, rel=1e-3)
    assert fit.error < 1e-6 and fit.cells == 20
    guess = fit.predict(row(200_000, 128, 32, 4))
    assert guess.seconds == pytest.approx(timed([row(200_000, 128, 32, 4)], truth)[0]["total_s"], rel=1e-3)
    # Student's t for 19 degrees of freedom at 95 % is 1.729: no machine repeats a time better than by 5 %.
    assert guess.low == pytest.approx(guess.seconds * math.exp(-1.729 * 0.05), rel=1e-3)
    assert guess.high == pytest.approx(guess.seconds * math.exp(1.729 * 0.05), rel=1e-3)


def test_noise_is_in_the_error_and_in_the_interval() -> None:
    truth = (60.0, 0.004, 0.02, 0.01, 0.02)
    (fit,) = fits(timed(grid(), truth, noise=0.1)).values()
    assert 0.01 < fit.error <= fit.worst < 0.3
    unseen = timed([row(n, b, d, 1) for n in (8_000, 32_000) for b in (16, 64) for d in (1, 2, 4)], truth)
    guesses = [fit.predict(one) for one in unseen]
    inside = sum(guess.low <= one["total_s"] <= guess.high for guess, one in zip(guesses, unseen, strict=True))
    assert inside == len(unseen), "without noise of their own they lie inside"
    assert all(guess.high < 2 * guess.low for guess in guesses)


def test_few_cells_and_repetitions_are_no_fit() -> None:
    rows = timed([row(1000 * (i + 1), 16) for i in range(FEWEST - 1)], (10, 0.01, 0, 0, 0))
    assert fits(rows) == {}
    assert fits([dict(one, seed=seed) for one in rows for seed in range(5)]) == {}, "seeds are no further cells"
    assert fits([dict(one, status="failed") for one in timed(grid(), (1, 1, 1, 1, 1))]) == {}


def test_what_is_not_comparable_is_not_mixed() -> None:
    rows = timed(grid(), (10, 0.001, 0.01, 0.01, 0.01)) + timed(
        [dict(one, accelerator="A100") for one in grid()], (10, 0.0001, 0.01, 0.01, 0.01)
    )
    found = fits(rows)
    assert {group[2] for group in found} == {"T4", "A100"}
    assert all(fit.error < 1e-6 for fit in found.values())
    assert group_of(row(1, 1, 1)) == group_of(row(1, 1, 8)), "one copy or several of the model"
    assert group_of(row(1, 1)) != group_of(row(1, 1, strategy="fsdp"))


def test_a_cell_that_did_not_run_finds_its_fit() -> None:
    found = fits(timed(grid(), (10, 0.001, 0.01, 0.01, 0.01)))
    planned = row(500, 16, accelerator=None, precision="auto")
    assert nearest(found, planned) is not None
    assert nearest(found, row(500, 16, model="other")) is None
    both = {**found, **fits(timed([dict(one, accelerator="A100") for one in grid()], (9, 0.001, 0.01, 0.01, 0.01)))}
    assert nearest(both, planned) is None, "which of two is not known"


def test_a_fit_that_is_far_off_predicts_nothing() -> None:
    falling = [row(n, 10, seconds=seconds) for n, seconds in ((100, 100.0), (200, 50.0), (400, 20.0), (800, 5.0))]
    found = fits(falling)
    fit = nearest(found, row(1600, 10))
    assert fit is not None and not fit.usable, "more rows take less time: no such model"
    assert [Fit(("m",), {}, 4, [1 / off, off] * 2).usable for off in (1.1, 1.9, 2.1, 1e9)] == [True, True, False, False]
