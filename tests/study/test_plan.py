"""What a design is expected to take, and what must not begin."""

from collections.abc import Callable
from typing import Any

import pytest

from skytune.config import ConfigError, RunConfig
from skytune.study import ResultsStore, make_plan, plan_text

Design = Callable[..., RunConfig]
COMPUTE = {"compute": ["g5.xlarge", "g5.12xlarge"]}


def test_assumed_rates_give_time_and_dollars(design: Design, prices: Any) -> None:
    run = {"data": {"max_rows": 36_000}}
    config = design(run, factors=COMPUTE, assume_samples_per_s={"A10G": 10.0}, assume_setup_s=0.0, max_usd=10.0)
    plan = make_plan(config, prices=prices)
    one, four = plan.cells
    assert (one.forecast.low, one.forecast.seconds, one.forecast.high) == (1800.0, 3600.0, 7200.0)
    assert four.forecast.seconds == 900.0
    assert one.usd(one.forecast.seconds) == pytest.approx(1.0)
    assert plan.total("seconds") == pytest.approx(1.0 + 1.5)
    plan.check()
    text = plan_text(plan)
    assert "30 min 00 s to 2 h 00 min" in text and "$0.50 to $2.00" in text and "assumed" in text
    assert "$1.25 to $5.00; at most $10.00" in text


def test_nodes_are_all_paid_for(design: Design, prices: Any) -> None:
    plan = make_plan(design(factors={"compute": ["p4d.24xlarge x 2"]}, max_usd=100.0), prices=prices)
    assert plan.cells[0].usd(1800.0) == pytest.approx(20.0)


def test_what_is_not_known_is_not_0(design: Design, prices: Any) -> None:
    plan = make_plan(design(factors={"processes": [1, 2]}), prices=prices)
    assert plan.total("seconds") is None
    assert plan.cells[0].usd(10.0) is None
    assert "n/a (no price or no time known)" in plan_text(plan) and "$0" not in plan_text(plan)


REFUSED = {
    "too dear": (
        {"max_usd": 2.0},
        r"^study\.max_usd=2: the 2 cells to run are expected to cost \$2\.50 \(\$1\.25 to",
    ),
    "no budget": ({}, r"^study\.max_usd: g5\.xlarge is paid for; say how much"),
    "no price": (
        {"max_usd": 9.0, "factors": {"compute": ["g6.xlarge"]}},
        r"^study\.max_usd=9 cannot be kept: no price is known for 'g6\.xlarge'; give study\.price_source",
    ),
    "no money for a minute": (
        {"max_usd": 0.01},
        r"^study\.max_usd=0\.01: no cell can begin: \$0\.00 are spent, and a minute of the cheapest machine costs",
    ),
    "one machine paid twice": (
        {"factors": {"rows": [32, 64]}, "prices": {"local": 3.6}, "parallel": 2},
        r"^study\.parallel=2: cells that share this machine would each pay for all of it",
    ),
    "no price here": (
        {"max_usd": 9.0, "factors": {"processes": [1]}},
        r"no price is known for 'local'; give compute\.usd_per_hour or 'study\.prices=\{local: USD\}'$",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_must_not_begin_is_refused_in_one_line(design: Design, prices: Any, kind: str) -> None:
    keys, message = REFUSED[kind]
    run = {"data": {"max_rows": 36_000}}
    config = design(run, **{"factors": COMPUTE, "assume_samples_per_s": {"A10G": 10.0}, "assume_setup_s": 0.0, **keys})
    with pytest.raises(ConfigError, match=message) as told:
        make_plan(config, prices=None if "prices" in keys else prices).check()
    assert "\n" not in str(told.value)


def test_this_machine_may_be_among_paid_ones_without_a_price(design: Design, prices: Any) -> None:
    make_plan(design(factors={"compute": ["local", "g5.xlarge"]}, max_usd=5.0), prices=prices).check()


def test_cells_that_ran_take_the_place_of_assumptions(design: Design, prices: Any) -> None:
    rows = [100, 200, 400, 800, 1600]
    config = design(factors={"rows": rows}, assume_samples_per_s={"cpu": 1.0})
    store = ResultsStore("test")
    before = make_plan(config, store, prices)
    for planned in before.cells[:4]:
        row = before.planned_rows()[before.cells.index(planned)]
        seconds = 10 + planned.cell.samples / 50 + 0.1 * planned.cell.steps
        measured = {"status": "done", "total_s": seconds, "precision": "fp32", "accelerator": "cpu", "usd_total": None}
        store.write(planned.cell.name, {**row, **measured})
    plan = make_plan(config, store, prices)
    assert [planned.forecast.basis for planned in plan.cells] == ["measured"] * 4 + ["fit"]
    assert [planned.todo for planned in plan.cells] == [False] * 4 + [True]
    guess = plan.cells[4].forecast
    assert guess.seconds == pytest.approx(10 + 1600 / 50 + 0.1 * 100, rel=0.01)
    assert guess.low <= guess.seconds <= guess.high
    assert "done already" in plan_text(plan)


def test_prices_come_from_the_design(design: Design) -> None:
    config = design(factors={"compute": ["g5.xlarge spot", "local"]}, prices={"g5.xlarge spot": 0.3}, max_usd=1.0)
    found = [planned.price for planned in make_plan(config).cells]
    assert [(price.usd_per_hour, price.source) for price in found] == [(0.3, "study.prices"), (None, "")]


def test_a_finished_cell_shows_what_was_paid_for_it(design: Design, prices: Any) -> None:
    config = design(factors={"compute": ["g5.xlarge"]}, max_usd=9.0)
    store = ResultsStore("test")
    before = make_plan(config, store, prices)
    measured = {"status": "done", "total_s": 3600.0, "usd_total": 0.25}
    store.write(before.cells[0].cell.name, {**before.planned_rows()[0], **measured})
    text = plan_text(make_plan(config, store, prices))
    assert "$0.25" in text and "$1.00  done" not in text
    assert "expected in all: nothing is left to run" in text
    assert text.splitlines()[3].startswith(before.cells[0].cell.id), "what study.adopt takes"


def test_where_nothing_is_left_to_run_spent_money_stops_nothing(design: Design, prices: Any) -> None:
    config = design(factors={"compute": ["g5.xlarge"]}, max_usd=0.2)
    store = ResultsStore("test")
    before = make_plan(config, store, prices)
    measured = {"status": "done", "total_s": 900.0, "usd_total": 0.25}
    store.write(before.cells[0].cell.name, {**before.planned_rows()[0], **measured})
    make_plan(config, store, prices).check()  # the page can be drawn again
