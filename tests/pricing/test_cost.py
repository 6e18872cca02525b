"""Dollars are seconds times what was paid; what is unknown stays unknown."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skytune.config import UserError
from skytune.job import write_json
from skytune.pricing.cost import RECORD, Attempt, Cost, cost_of, dollars, recorded

SPANS = st.lists(st.floats(0, 1e5), min_size=1, max_size=5)


def test_half_an_hour_and_a_quarter_at_1_20_are_90_cents() -> None:
    cost = Cost(
        [
            Attempt(phases={"train_s": 30 * 60.0}, hourly_usd=1.2, ended="preempted"),
            Attempt(phases={"train_s": 15 * 60.0}, hourly_usd=1.2),
        ]
    )
    assert cost.usd == pytest.approx(0.90)
    assert cost.line() == "$0.90: 45 min 00 s in 2 attempts on this machine at $1.20 an hour"


@given(SPANS, st.floats(0.01, 100), st.integers(1, 8))
def test_dollars_add_up_by_phase_by_machine_and_by_attempt(spans: list[float], price: float, machines: int) -> None:
    attempts = [
        Attempt(phases={"setup_s": span / 4, "train_s": span}, hourly_usd=price * machines, nodes=machines)
        for span in spans
    ]
    cost = Cost(attempts)
    assert cost.usd == pytest.approx(sum(spans) * 1.25 / 3600 * price * machines)
    assert sum(cost.phases.values()) == pytest.approx(cost.seconds)


@given(SPANS, st.integers(0, 4))
def test_one_unknown_price_makes_the_sum_unknown(spans: list[float], which: int) -> None:
    attempts = [
        Attempt(phases={"train_s": span}, hourly_usd=None if i == which % len(spans) else 1.0)
        for i, span in enumerate(spans)
    ]
    cost = Cost(attempts)
    assert cost.usd is None
    assert cost.line().startswith("n/a, no price known")
    assert "cost/usd" not in cost.as_dict() and cost.as_dict()["cost/attempts"] == len(spans)


def test_a_run_on_this_machine_costs_what_it_is_told() -> None:
    result = {"phases": {"start_s": 60.0, "train_s": 1740.0}, "status": "completed"}
    assert cost_of(result).usd is None
    assert cost_of(result, 2.0).usd == pytest.approx(1.0)
    assert cost_of(result, 2.0).line() == "$1.00: 30 min 00 s on this machine at $2.00 an hour (compute.usd_per_hour)"
    assert cost_of({}).line() == "n/a (nothing was measured)"


def test_earlier_starts_of_a_run_are_paid_for_too() -> None:
    result = {"phases": {"train_s": 1000.0}, "spent": {"starts": 3, "wall_s": 1600.0}}
    cost = cost_of(result, 3.6)
    assert (cost.usd, cost.seconds, len(cost.attempts)) == (pytest.approx(1.6), pytest.approx(1600.0), 3)
    assert "in 3 attempts" in cost.line()


def test_what_a_launcher_recorded_goes_before_all_else(tmp_path: Path) -> None:
    attempts: list[dict[str, Any]] = [
        {"phases": {"provision_s": 400.0}, "hourly_usd": 4.0, "nodes": 2, "machine": "none", "ended": "no machine"},
        {
            "phases": {"provision_s": 100.0, "job_s": 800.0},
            "hourly_usd": 4.0,
            "nodes": 2,
            "ended": "preempted",
            "machine": "2 x g5.xlarge (spot)",
            "usd": 1.0,
        },
        {"phases": {"job_s": 900.0}, "hourly_usd": 12.0, "nodes": 2, "machine": "2 x g5.xlarge", "ended": "done"},
    ]
    write_json(tmp_path / "outputs" / RECORD, {"usd": 4.0, "phases": {}, "attempts": attempts})
    from_file = cost_of({"run_folder": str(tmp_path), "phases": {"train_s": 5.0}}, 100.0)
    from_result = cost_of({"cost": {"attempts": attempts}, "phases": {"train_s": 5.0}}, 100.0)
    for cost in (from_file, from_result):
        assert cost.usd == pytest.approx(0.25 * (4.0 + 12.0))
        assert cost.line() == (
            "$4.00: 36 min 40 s in 3 attempts on 2 x g5.xlarge at the price of each attempt (SkyPilot)"
        )
        told = cost.as_dict()
        assert (told["cost/job_s"], told["cost/job_usd"]) == (900.0, 3.0)
        assert (told["cost/lost_s"], told["cost/lost_usd"]) == (1300.0, 1.0), "what got no machine cost nothing"
    unknown = cost_of({"cost": {"attempts": [{**attempts[1], "hourly_usd": None}, attempts[2]]}}).as_dict()
    assert "cost/lost_usd" not in unknown and unknown["cost/lost_s"] == 900.0
    assert recorded(tmp_path / "elsewhere") == [] and recorded(None) == []
    (tmp_path / "outputs" / RECORD).write_text("[")
    with pytest.raises(UserError, match=r"cost\.json is not valid JSON"):
        recorded(tmp_path)


@pytest.mark.parametrize(
    ("usd", "shown"),
    [
        (None, "n/a"),
        (float("nan"), "n/a"),
        (0.0, "$0.00"),
        (1234.5, "$1,234.50"),
        (0.12, "$0.12"),
        (0.0997, "$0.10"),
        (0.01234, "$0.012"),
        (0.00002, "$2.0e-05"),
    ],
)
def test_dollars_as_a_person_reads_them(usd: float | None, shown: str) -> None:
    assert dollars(usd) == shown
