"""Early stopping: when patience is at its end, and that a run which was cut short stops where it would have stopped."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_dirs import MEASURED
from safetensors.numpy import load_file

from skytune.config import ConfigError, EarlyStoppingConfig, RunConfig, from_dict
from skytune.training.callbacks.early_stopping import EarlyStopping

WORSE = {
    "log": {"every_steps": 1},
    "eval": {"every_steps": 1},
    "epochs": 3,
    "optimizer": {"lr": 0.3},
    "schedule": {"name": "constant"},
    "early_stopping": {"patience": 3},
}
"""The rate is so high that the validation loss soon rises."""


def validate(stopper: EarlyStopping, values: list[float], first: int = 1, total: int = 1000) -> int | None:
    """Show a stopper one validation after another; return the step after which it stopped."""
    run: Any = SimpleNamespace(step=0, total_steps=total, stop=False, metrics={}, world=SimpleNamespace(main=False))
    for step, value in enumerate(values, first):
        run.step, run.metrics = step, {"score": value}
        stopper.on_validation_end(run)
        if run.stop:
            return step
    return None


def stopper(patience: int = 2, min_delta: float = 0.0, smaller: bool = False) -> EarlyStopping:
    return EarlyStopping(EarlyStoppingConfig(patience=patience, min_delta=min_delta), "score", smaller)


NAN = float("nan")


@pytest.mark.parametrize(
    ("options", "values", "stops"),
    [
        ({}, [0.5, 0.6, 0.6, 0.59, 0.7], 4),  # equal is not better
        ({}, [0.5, 0.4, 0.6, 0.5, 0.61, 0.6, 0.6], 7),  # the count starts anew
        ({"patience": 1}, [0.5, 0.5], 2),
        ({"min_delta": 0.1}, [0.5, 0.55, 0.65, 0.7, 0.74], 5),  # 0.55 is not the new best, so 0.65 beats 0.5 by enough
        ({"smaller": True}, [0.5, 0.4, 0.45, 0.4], 4),
        ({"smaller": True, "min_delta": 0.01}, [0.5, 0.495, 0.48, 0.475, 0.471], 5),
        ({}, [NAN, NAN, 0.9], 2),
        ({}, [0.5, NAN, 0.6, NAN, NAN], 5),
        ({"patience": 4}, [0.5, 0.4, 0.3, 0.2], None),
    ],
)
def test_when_patience_is_at_its_end(options: dict[str, Any], values: list[float], stops: int | None) -> None:
    assert validate(stopper(**options), values) == stops


def test_the_last_step_is_no_early_stop() -> None:
    assert validate(stopper(patience=1), [0.5, 0.4], total=2) is None


@given(
    st.lists(st.floats(-1e3, 1e3) | st.just(NAN), min_size=1, max_size=30),
    st.integers(0, 30),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.1]),
    st.booleans(),
)
def test_a_checkpoint_anywhere_changes_nothing(
    values: list[float], cut: int, patience: int, min_delta: float, smaller: bool
) -> None:
    whole = validate(stopper(patience, min_delta, smaller), values)
    first, second = stopper(patience, min_delta, smaller), stopper(patience, min_delta, smaller)
    stopped = validate(first, values[:cut])
    second.load_state(json.loads(json.dumps(first.state())))
    if stopped is None:
        stopped = validate(second, values[cut:], first=min(cut, len(values)) + 1)
    assert stopped == whole


def steps(done: Any) -> list[int]:
    return [record["step"] for record in done.history if record["kind"] == "step"]


def numbers(done: Any) -> list[dict[str, Any]]:
    """The history without what was measured."""
    return [{key: value for key, value in record.items() if key not in MEASURED} for record in done.history]


def test_a_run_stops_where_it_gets_no_better_also_after_a_resume(
    run_job: Any, here: None, kept: Any, cut_back: Any
) -> None:
    settings = {**WORSE, "checkpoint": kept(select="best", metric="loss")}
    whole = run_job(**settings)
    assert whole.result["stopped_early"] and whole.result["status"] == "completed"
    stopped = whole.result["steps"]
    assert stopped < 24
    measured = {r["step"]: r["metrics"]["loss"] for r in whole.history if r["kind"] == "validation"}
    best = whole.result["best"]["step"]
    assert (min(measured, key=measured.__getitem__), max(measured)) == (best, stopped)
    assert stopped == best + 3  # patience

    run = cut_back(after=stopped - 2)  # one of the three was counted
    again = run_job(**settings)
    assert again.result["resumed_from"] == stopped - 2
    assert again.result["steps"] == stopped
    assert numbers(again) == numbers(whole)
    first, second = (load_file(done.job.model / "model.safetensors") for done in (whole, again))
    assert all(np.array_equal(first[name], second[name]) for name in first)

    (run / "finished.json").unlink()  # as if it had died between its last checkpoint and its end
    third = run_job(**settings)
    assert (third.result["resumed_from"], third.result["steps"]) == (stopped, stopped)
    assert third.result["stopped_early"]
    assert numbers(third) == numbers(whole)
    third_model = load_file(third.job.model / "model.safetensors")
    assert all(np.array_equal(first[name], third_model[name]) for name in first)


def test_two_processes_stop_together_where_one_does_and_average_the_same_weights(run_job: Any, forked: None) -> None:
    """Early stopping and averaged weights on two processes."""
    settings = {
        **WORSE,
        "model": {"dropout": 0.0},
        "ema": {"decay": 0.5},
        "checkpoint": {"metric": "loss"},
        "optimizer": {"name": "sgd", "lr": 3.0},
        "early_stopping": {"patience": 2},
    }
    one = run_job(name="one", **settings)
    two = run_job(name="two", **{**settings, "launch": {"num_processes": 2, "threads": 1}})
    assert one.result["stopped_early"] and two.result["stopped_early"]
    assert two.result["world_size"] == 2
    assert one.result["steps"] == two.result["steps"] < 24
    assert one.result["best"]["step"] == two.result["best"]["step"]
    first, second = (load_file(done.job.model / "model.safetensors") for done in (one, two))
    assert max(float(np.abs(first[name] - second[name]).max()) for name in first) < 1e-4


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"early_stopping": {"patience": 0}}, "early_stopping.patience=0: must be at least 1"),
        ({"early_stopping": {"min_delta": 0.1}}, "early_stopping.min_delta has an effect only together with"),
        ({"early_stopping": {"patience": 1, "min_delta": -0.1}}, "early_stopping.min_delta=-0.1"),
        ({"early_stopping": {"patience": 1}, "eval": {"every_epochs": 0}}, "no effect with one validation at the end"),
    ],
)
def test_what_has_no_effect_is_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        from_dict(RunConfig, values)
