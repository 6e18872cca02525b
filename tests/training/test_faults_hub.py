"""A Hub that falls silent while a run saves to it, for a while and for ever: real workers, and the Hub's protocol on a
socket of this process (`hub_server`)."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from job_dirs import history, result, same, weights

SETTINGS: dict[str, Any] = {"rows": 48, "epochs": 1, "log": {"every_steps": 1, "every_seconds": 0.0}}
STEPS = 6


@pytest.fixture(scope="module")
def hub(start_hub: Callable[[], Any]) -> Any:
    return start_hub()


@pytest.fixture(scope="module")
def lives(hub: Any, forking: Any) -> Any:
    return forking.within(HF_ENDPOINT=hub.url, HF_TOKEN="hf_right", HF_HUB_OFFLINE="0", HF_HUB_DISABLE_XET="1")


@pytest.fixture(scope="module")
def calm(lives: Any, place: Any) -> Path:
    """The job directory of a run that nobody disturbed."""
    job: Path = place.lay("calm", **SETTINGS)
    assert lives.live(job).code == 0
    return job


@pytest.fixture
def lay(place: Any) -> Callable[[str, float], Path]:
    def lay(name: str, retry_seconds: float) -> Path:
        fast = {"store": f"hf://me/{name}", "every_steps": 2, "async_save": True, "stall_seconds": 0.0}
        impatient = {"impatient": {"_target_": "faults.Impatient"}}
        job: Path = place.lay(
            name, checkpoint=fast, launch={"timeouts": {"store": retry_seconds}}, callbacks=impatient, **SETTINGS
        )
        return job

    return lay


def kept(hub: Any, name: str) -> list[int]:
    """Return the steps of the complete checkpoints."""
    return sorted(int(p.split("/step-")[1][:8]) for p in hub.files(f"me/{name}") if p.endswith("/manifest.json"))


@pytest.fixture
def silent(hub: Any) -> Iterator[Callable[[str], threading.Event]]:
    """Return a function that lets the Hub accept requests and never answer them, from the second checkpoint on, until
    the event that it returns is set."""
    go = threading.Event()

    def fall_silent(name: str) -> threading.Event:
        begun: list[str] = []

        def fault(method: str, path: str) -> None:
            if "/preupload/" in path and f"me/{name}/" in path and kept(hub, name):
                begun.append(path)
            if begun:
                go.wait(600)

        hub.fault = fault
        return go

    yield fall_silent
    go.set()
    hub.fault = None


def test_silent_for_a_while(hub: Any, lives: Any, calm: Path, lay: Any, silent: Any) -> None:
    """All steps are taken meanwhile; the save is tried again, those that came due are skipped, the last one is not."""
    job, go = lay("while", 60.0), silent("while")
    life = lives.start(job)
    try:
        until = time.monotonic() + 600
        while (
            f"step {STEPS}/{STEPS}" not in life.output or "failed, tried again for 60 s: no progress" not in life.output
        ):
            assert not life.ended(0.05) and time.monotonic() < until, life.output
        assert kept(hub, "while") == [2]
        go.set()
        assert life.ended(600), life.output
    finally:
        go.set()
        life.kill()
    assert life.code == 0 and "NOT SAVED" not in life.output, life.output
    assert result(job)["save_failed"] == "" and kept(hub, "while")[-1] == STEPS
    assert same(weights(job), weights(calm)) and history(job) == history(calm)


def test_silent_for_ever(hub: Any, lives: Any, calm: Path, lay: Any, silent: Any) -> None:
    """Training comes to its end, everybody is told, and the result says that the last checkpoint is not there (which
    makes the command's exit code 76, whatever the store). The same command goes on from what was saved."""
    job, go = lay("ever", 0.2), silent("ever")
    life = lives.live(job)
    assert life.code == 0 and "Traceback" not in life.output, life.output
    told = [line for line in life.output.splitlines() if line.startswith("CHECKPOINT NOT SAVED")]
    assert told and all("gave up on" in line and "no progress for 0 s" in line for line in told), life.output
    assert told[-1].startswith(f"CHECKPOINT NOT SAVED, step {STEPS}: hf://me/ever/{job.name}: ")
    assert result(job)["save_failed"].startswith(f"step {STEPS}: ")
    assert same(weights(job), weights(calm)) and history(job) == history(calm)
    go.set()
    hub.fault = None
    assert kept(hub, "ever") == [2]
    life = lives.live(job)
    assert life.code == 0 and "resuming from step 2 " in life.output, life.output
    assert result(job)["save_failed"] == "" and kept(hub, "ever")[-1] == STEPS
    assert same(weights(job), weights(calm))


def test_silent_from_the_start(hub: Any, lives: Any, lay: Any) -> None:
    """Who never answers is noticed before training."""
    go = threading.Event()
    hub.fault = lambda method, path: go.wait(600) and None
    job = lay("start", 0.2)
    try:
        life = lives.live(job)
    finally:
        go.set()
        hub.fault = None
    assert life.code == 1 and "training " not in life.output, life.output
    assert f"hf://me/start/{job.name}: gave up on writing a probe after " in life.output
    assert not (job / "outputs" / "history.jsonl").exists()
