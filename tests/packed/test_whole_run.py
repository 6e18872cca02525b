"""Whole jobs on the fast path, in real worker processes on the CPU, against the same jobs taken the plain way."""

from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from skytune.config import UserError

pytestmark = pytest.mark.usefixtures("forked")

SAME: dict[str, Any] = {
    "rows": 150,
    "epochs": 2,
    "max_steps": 24,
    "model": {"dropout": 0.0},
    "optimizer": {"lr": 1e-3},
    "log": {"every_steps": 1},
    "checkpoint": {"select": "last"},
    "eval": {"every_steps": 10},
}


def losses(done: Any) -> list[float]:
    return [record["loss"] for record in done.history if record["kind"] == "step"]


def weights(done: Any) -> dict[str, np.ndarray]:
    return load_file(done.job.model / "model.safetensors")


def test_the_fast_path_learns_what_the_plain_way_learns(run_job: Any) -> None:
    """Losses to 1e-5 over 24 steps (19 an epoch, the last of 6 rows), weights to 5e-5, the same validations."""
    plain = run_job(name="plain", compute={"packed": "off"}, **SAME)
    assert plain.result.get("steps_taken") is None
    expected = weights(plain)
    for processes, micro in ((1, 3), (2, 4)):
        fast = run_job(
            name=f"fast-{processes}-{micro}",
            compute={"packed": "on"},
            launch={"num_processes": processes},
            batch={"micro_size": micro},
            **SAME,
        )
        assert fast.result["steps_taken"] == "fast" and fast.result["world_size"] == processes
        np.testing.assert_allclose(losses(fast), losses(plain), atol=1e-5, rtol=0)
        for name, found in weights(fast).items():
            np.testing.assert_allclose(found, expected[name], atol=5e-5, rtol=0, err_msg=name)
        records = [[r["step"] for r in done.history if r["kind"] == "validation"] for done in (fast, plain)]
        assert records[0] == records[1] == [10, 19, 20, 24]
        assert fast.result["train_rows"] == plain.result["train_rows"]


def test_a_run_goes_on_on_the_other_path(run_job: Any, tmp_path: Any) -> None:
    """Dropout on: a run saved at step 12 on the fast path ends as if it had not stopped; so does one from the plain way
    but for rounding, dropout off."""
    store = {"store": str(tmp_path), "every_steps": 12, "keep": 9}
    whole = run_job(
        name="whole", compute={"packed": "on"}, **{**SAME, "model": {}, "checkpoint": {**SAME["checkpoint"], **store}}
    )
    place = str(next(tmp_path.glob("whole-*/step-00000012")))
    rest = run_job(name="rest", compute={"packed": "on"}, resume=place, **{**SAME, "model": {}})
    assert rest.result["resumed_from"] == 12
    assert losses(rest) == losses(whole)
    for name, found in weights(rest).items():
        assert np.array_equal(found, weights(whole)[name]), name
    begun = run_job(name="begun", compute={"packed": "off"}, **{**SAME, "checkpoint": {**SAME["checkpoint"], **store}})
    place = str(next(tmp_path.glob("begun-*/step-00000012")))
    other = run_job(name="other", compute={"packed": "on"}, resume=place, **SAME)
    np.testing.assert_allclose(losses(other), losses(begun), atol=1e-5, rtol=0)


def test_two_processes_go_on_from_a_save_that_the_clock_asked_for(run_job: Any, tmp_path: Any) -> None:
    """Each of them updates a share of the weights: only the first one's clock counts, and all bring theirs for it."""
    two = {
        **SAME,
        "model": {},
        "eval": {"every_epochs": 0},
        "launch": {"num_processes": 2},
        "compute": {"packed": "on"},
    }
    store = {"store": str(tmp_path), "every_minutes": 1e-6, "keep": 9, "select": "last"}
    whole = run_job(name="whole", **{**two, "checkpoint": store})
    place = str(next(tmp_path.glob("whole-*/step-00000019")))
    rest = run_job(name="rest", resume=place, **two)
    assert rest.result["resumed_from"] == 19
    assert losses(rest) == losses(whole)
    for name, found in weights(rest).items():
        assert np.array_equal(found, weights(whole)[name]), name


def test_where_it_does_not_apply_the_reason_is_said(run_job: Any) -> None:
    with pytest.raises(UserError, match=r"compute\.packed=on: compile\.mode asks for torch\.compile"):
        run_job(name="compiled", compute={"packed": "on"}, compile={"mode": "on"}, max_steps=1)


@pytest.mark.parametrize("processes", [1, 2])
def test_what_has_no_packed_form_is_captured(run_job: Any, processes: int) -> None:
    """Another optimizer and a moving average: the same losses and validations as eagerly, by one process and by two."""
    more = {**SAME, "optimizer": {"name": "sgd", "lr": 0.05}, "ema": {"decay": 0.9}, "batch": {"micro_size": 3}}
    plain = run_job(name="off", compute={"packed": "off"}, **more)
    fast = run_job(name="on", compute={"packed": "on"}, launch={"num_processes": processes}, **more)
    assert fast.result["steps_taken"] == "captured" and fast.result["world_size"] == processes
    np.testing.assert_allclose(losses(fast), losses(plain), atol=1e-5, rtol=0)
    records = [[[*r["metrics"].values()] for r in done.history if r["kind"] == "validation"] for done in (fast, plain)]
    assert len(records[0]) == 4
    np.testing.assert_allclose(*records, atol=1e-5)
    for name, found in weights(fast).items():
        np.testing.assert_allclose(found, weights(plain)[name], atol=5e-5, rtol=0, err_msg=name)


@pytest.mark.parametrize(("strategy", "micro"), [("ddp", None), ("ddp", 3), ("fsdp", 3)])
def test_captured_steps_of_two_processes_go_on_to_the_bit(
    run_job: Any, tmp_path: Any, strategy: str, micro: int | None
) -> None:
    two = {
        **SAME,
        "strategy": {"name": strategy},
        "model": {},
        "optimizer": {"lr": 1e-3, "no_decay": ["bias"]},
        "batch": {"micro_size": micro},
        "launch": {"num_processes": 2},
        "compute": {"packed": "on"},
    }
    store = {"store": str(tmp_path), "every_steps": 12, "keep": 9, "select": "last"}
    whole = run_job(name="whole", **{**two, "checkpoint": store})
    assert whole.result["steps_taken"] == "captured"
    rest = run_job(name="rest", resume=str(next(tmp_path.glob("whole-*/step-00000012"))), **two)
    assert rest.result["resumed_from"] == 12 and losses(rest) == losses(whole)
    for name, found in weights(rest).items():
        assert np.array_equal(found, weights(whole)[name]), name
