"""Real worker processes: what they are given, how they end, and that nothing is left of them."""

import contextlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skytune.config import UserError

WITHIN = 600.0
"""A run that fails must have ended by then."""


def at_once(run_job: Callable[..., Any], runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Run jobs in threads of this process; return what came out of each, an exception too."""
    found: dict[str, Any] = {}

    def run(name: str) -> None:
        try:
            found[name] = run_job(**{"rows": 32, "validation": 4, "test": 4, "name": name, **runs[name]})
            found[name].claim.close()  # as when nobody knows of the outcome any more
        except BaseException as error:
            found[name] = error

    threads = [threading.Thread(target=run, args=(name,)) for name in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    return found


@pytest.mark.slow
def test_two_processes_of_one_machine_save_in_parts(run_job: Any, tmp_path: Path) -> None:
    """Sharded checkpoints are agreed upon beside training, where nothing listens at a port."""
    done = run_job(
        rows=32,
        validation=8,
        test=4,
        strategy={"name": "fsdp"},
        launch={"num_processes": 2, "threads": 1},
        checkpoint={"store": str(tmp_path / "store"), "every_steps": 1, "keep": 9},
        max_steps=2,
    )
    assert (done.result["world_size"], done.result["save_failed"]) == (2, "")
    saved = sorted(path.parent.name for path in (tmp_path / "store").glob("*/step-*/manifest.json"))
    assert saved == ["step-00000001", "step-00000002"]


@pytest.mark.slow
def test_two_processes_with_everything_in_the_way(
    run_job: Any, trouble: str, pids: Path, left: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """Cases 1, 2, 3 and 24 in one run: types, world size, files named like libraries, a busy port, foreign settings."""
    here = tmp_path / "here"
    here.mkdir()
    for name in ("evaluate.py", "datasets.py"):
        (here / name).write_text("raise RuntimeError('the wrong file was imported')\n")
    monkeypatch.chdir(here)
    accelerate = tmp_path / "hf" / "accelerate"
    accelerate.mkdir(parents=True)
    (accelerate / "default_config.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmixed_precision: fp16\n"
        "num_processes: 8\nuse_cpu: false\n"
    )
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_SHARDING_STRATEGY", "FULL_SHARD")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("RANK", "5")
    values = {"nothing": None, "count": None, "items": ["a", 1, None, 2.5, True], "deep": {"n": None, "s": "None"}}
    extra = {"my_key": 1, "none": None, "text": "1"}
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # somebody has it already: just as well
            stack.enter_context(socket.create_server(("127.0.0.1", 29500)))
        done = run_job(
            rows=48,
            validation=8,
            test=5,
            launch={"num_processes": 2, "threads": 1},
            loader={"num_workers": 1},
            callbacks={"witness": {"_target_": f"{trouble}.Witness", "folder": str(pids), **values}},
            extra=extra,
        )

    assert (done.result["world_size"], done.result["processes_asked"], done.result["status"]) == (2, 2, "completed")
    assert done.result["precision"] == "fp32"
    for rank in (0, 1):
        seen = json.loads((pids / f"seen-{rank}.json").read_text())
        assert {key: seen[key] for key in values} == values
        assert seen["extra"] == extra
        assert seen["max_steps"] is None
        assert seen["same_config"] is True
        assert (seen["rank"], seen["size"], seen["precision"], seen["threads"]) == (rank, 2, "fp32", 1)
        assert "site-packages" in seen["evaluate"] and "site-packages" in seen["datasets"]
        assert not [
            key for key in seen["environment"] if key.startswith(("ACCELERATE_MIXED", "ACCELERATE_USE_FSDP", "FSDP_"))
        ]
        assert seen["environment"]["MASTER_PORT"] != "29500"
        assert set(seen["listening"]) == {"127.0.0.1"}, "no other machine can reach them"
    # Every rank has its log, only rank 0 speaks.
    assert sorted(file.name for file in done.job.logs.glob("rank-*.log")) == ["rank-0.log", "rank-1.log"]
    output = capfd.readouterr().out
    assert "training 6 steps" in output
    assert "printed by rank 0" in output
    assert "printed by rank 1" not in output
    assert "printed by rank 1" in (done.job.logs / "rank-1.log").read_text()
    assert not any(done.job.logs.glob("*.error.json"))
    # Two workers, their agent, and a loader process of each.
    assert left(expected=5) == []


@pytest.mark.slow
def test_the_rank_that_failed_is_named(
    run_job: Any, trouble: str, pids: Path, left: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """Case 26: one rank raises, one is killed, a single process is killed; all three runs at once."""

    def harm(kind: str, rank: int = 0) -> dict[str, Any]:
        return {"t": {"_target_": f"{trouble}.Trouble", "folder": str(pids), "kind": kind, "rank": rank}}

    two = {"num_processes": 2, "threads": 1}
    witness = {"w": {"_target_": f"{trouble}.Witness", "folder": str(pids)}}
    fragile = {"_target_": f"{trouble}.Fragile", "args": {"rank": 1}}
    runs: dict[str, dict[str, Any]] = {
        "raises": {"launch": two, "model": fragile, "callbacks": harm("none")},
        "killed": {"launch": two, "callbacks": harm("kill", rank=1)},
        "alone": {"loader": {"num_workers": 2}, "callbacks": {**harm("kill"), **witness}},
    }
    start = time.monotonic()
    messages = {name: str(found) for name, found in at_once(run_job, runs).items()}
    assert time.monotonic() - start < WITHIN

    first, where, *shown = messages["raises"].splitlines()
    assert first == "worker process 1 failed: RuntimeError: the forward pass broke"
    assert where.endswith("rank-1.log:")
    assert 2 <= len(shown) <= 15
    assert any("in a way of two lines" in line for line in shown)

    how = "it was ended by SIGKILL (out of memory, or somebody killed it)"
    assert messages["killed"].startswith(f"worker process 1 failed: {how}\n")
    assert "trouble ahead on rank 1" in messages["killed"]

    assert messages["alone"].startswith(f"worker process 0 failed: {how}\n")
    assert "training 4 steps" in messages["alone"]
    # Two workers and their agent, twice; one worker and its two loader processes.
    assert left(expected=9) == []


@pytest.mark.slow
def test_a_wrong_world_size_is_an_error(run_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from skytune.launch import local

    right = local.environment
    monkeypatch.setattr(local, "environment", lambda *a: {**right(*a), "SKYTUNE_WORLD_SIZE": "3"})
    with pytest.raises(UserError) as caught:
        run_job(rows=8, validation=4, test=4)
    assert re.fullmatch(r"3 worker processes were asked for, 1 came up: .+", str(caught.value))  # one line


@pytest.mark.slow
def test_runs_at_once(run_job: Any, trouble: str, pids: Path, left: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Two of the same key (the second waits for the first) and one of another, whose worker does not exit by itself."""
    linger = {"t": {"_target_": f"{trouble}.Trouble", "folder": str(pids), "kind": "linger"}}
    runs: dict[str, dict[str, Any]] = {
        "a": {"name": "same"},
        "b": {"name": "same"},
        "c": {"name": "other", "callbacks": linger, "launch": {"timeouts": {"kill": 1.0}}},
    }
    with caplog.at_level("WARNING", logger="skytune"):
        found = at_once(run_job, runs)
    assert {
        name: getattr(outcome, "result", {}).get("status", outcome) for name, outcome in found.items()
    } == dict.fromkeys("abc", "completed")
    keys = {name: outcome.result["run_key"] for name, outcome in found.items()}
    assert keys["a"] == keys["b"] != keys["c"]
    lines = [record.getMessage() for record in caplog.records]
    waits = [line for line in lines if "waiting for it to end" in line]
    assert len(waits) == 1
    assert f"process {os.getpid()}" in waits[0]
    assert len([line for line in lines if "did not end" in line]) == 1
    assert left(expected=1) == []
