"""What a run will cost in all: told by runs before it, or unknown; never guessed."""

import json
from pathlib import Path
from typing import Any

import pytest

from skytune.config import ComputeConfig, RunConfig, UserError, from_dict
from skytune.config.folders import home
from skytune.job import Job
from skytune.launch.remote.cost_estimate import Expected, expected, remember
from skytune.launch.remote.offer import Offer, announce, check_price, enter
from skytune.pricing.cost import Attempt

PLAN = Offer(cloud="AWS", instance_type="g5.xlarge", region="us-east-1", use_spot=True, gpus=1, hourly_usd=0.6)
PHASES = {"train_s": 400.0, "validate_s": 100.0, "load_s": 5.0}


def job(key: str = "a-0123456789ab", data: str = "d", **config: Any) -> Job:
    return Job(
        kind="train", run_key=key, config=from_dict(RunConfig, config), labels=["a"], fingerprints={"data": data}
    )


def attempt(machine: str = "g5.xlarge", nodes: int = 1) -> Attempt:
    phases = {"provision_s": 60.0, "setup_s": 120.0, "job_s": 600.0, "down_s": 20.0}
    return Attempt(machine="", instance_type=machine, nodes=nodes, hourly_usd=0.6, ended="done", phases=phases)


def result(**more: Any) -> dict[str, Any]:
    found = {"status": "completed", "steps": 1000, "steps_per_epoch": 500, "resumed_from": None, "phases": PHASES}
    return {**found, **more}


def test_without_an_earlier_run_nothing_is_expected(caplog: pytest.LogCaptureFixture) -> None:
    assert expected(job(), "g5.xlarge", 1) is None
    with caplog.at_level("INFO"):
        announce(job(), PLAN, 2, "cluster mine")
    assert caplog.messages == [
        "launching 2 x g5.xlarge (spot, AWS us-east-1), $1.20 an hour, in all unknown (no run like it has ended on "
        "such machines), as cluster mine"
    ]


def test_the_same_run_is_expected_to_take_as_long_as_last_time(caplog: pytest.LogCaptureFixture) -> None:
    remember(job(), result(), [attempt()])
    found = expected(job(), "g5.xlarge", 1)
    assert found is not None and found.seconds == 800.0
    assert found.words(3.6).startswith("in all about $0.80, 13 min (as this run took on 20")
    assert found.words(None).startswith("in all price n/a, 13 min")
    with caplog.at_level("INFO"):
        announce(job(), PLAN, 1, "cluster mine")
    assert "$0.60 an hour, in all about $0.13, 13 min (as this run took on" in caplog.text


def test_other_steps_of_the_same_work_are_expected_to_be_as_fast() -> None:
    remember(job(epochs=2), result(), [attempt()])
    ten = expected(job("b-0123456789ab", epochs=20, optimizer={"lr": 1e-3}), "g5.xlarge", 1)
    assert ten is not None and ten.seconds == pytest.approx(300 + 10_000 * 0.5)
    assert "10000 steps of 0.5 s and 5 min besides, as a-0123456789ab took on" in ten.why
    few = expected(job("c-0123456789ab", max_steps=100), "g5.xlarge", 1)
    assert few is not None and few.seconds == pytest.approx(300 + 100 * 0.5)


@pytest.mark.parametrize(
    ("other", "machine", "nodes"),
    [
        (job("b", data="other"), "g5.xlarge", 1),
        (job("b", batch={"global_size": 64}), "g5.xlarge", 1),
        (job("b", precision="fp32"), "g5.xlarge", 1),
        (job("b", launch={"num_processes": 2}), "g5.xlarge", 1),
        (job(), "g5.2xlarge", 1),
        (job(), "g5.xlarge", 2),
    ],
    ids=["data", "batch", "precision", "processes", "machine", "nodes"],
)
def test_from_other_work_or_machines_nothing_is_concluded(other: Job, machine: str, nodes: int) -> None:
    remember(job(), result(), [attempt()])
    assert expected(other, machine, nodes) is None


@pytest.mark.parametrize(
    ("found", "attempts"),
    [
        (result(resumed_from=40), [attempt()]),
        (result(status="preempted"), [attempt()]),
        (result(steps=0), [attempt()]),
        (result(), [attempt(), attempt()]),
        (result(), [attempt(machine="")]),
    ],
    ids=["resumed", "preempted", "no-steps", "two-attempts", "unknown-machine"],
)
def test_runs_that_tell_little_are_not_remembered(found: dict[str, Any], attempts: list[Attempt]) -> None:
    remember(job(), found, attempts)
    assert not (home() / "spent.jsonl").exists()


def test_a_file_that_was_cut_off_is_read_as_far_as_it_goes() -> None:
    remember(job(), result(), [attempt()])
    file = Path(home() / "spent.jsonl")
    whole = json.loads(file.read_text())
    file.write_text(json.dumps({**whole, "future": 1}) + "\n" + json.dumps(whole) + "\n" + file.read_text()[:30])
    assert expected(job(), "g5.xlarge", 1) == Expected(seconds=800.0, why=f"as this run took on {whole['day']}")


def test_what_is_too_dear_is_refused_for_all_machines_together() -> None:
    check_price(PLAN, ComputeConfig(max_hourly_usd=1.0))
    with pytest.raises(UserError, match=r"max_hourly_usd=1: what can be had, 2 x g5\.xlarge .* costs \$1\.20 an hour"):
        check_price(PLAN, ComputeConfig(max_hourly_usd=1.0, num_nodes=2))


def test_an_attempt_knows_its_machine() -> None:
    made = Attempt(machine="", nodes=2, hourly_usd=None)
    enter(made, PLAN)
    assert (made.instance_type, made.hourly_usd) == ("g5.xlarge", 1.2)
