"""Case 19 and every other way in which a bucket fails a run: for a while, for ever, by refusing. Real workers, and S3's
real protocol with faults where a test wants them (`s3_server`)."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from job_dirs import history, result, same, weights
from s3_server import S3, Fault

from skytune.config import ComputeConfig, Device, Preempted
from skytune.job import JobDir
from skytune.launch.local import LocalLauncher

SETTINGS: dict[str, Any] = {"rows": 48, "epochs": 2, "log": {"every_steps": 1, "every_seconds": 0.0}}
STEPS = 12
BUCKET = "faults"


@pytest.fixture(scope="module")
def door() -> Iterator[S3]:
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    door = S3()
    door.client.create_bucket(Bucket=BUCKET)
    yield door
    door.server.shutdown()


@pytest.fixture(autouse=True)
def _open_again(door: S3) -> Iterator[None]:
    yield
    door.fault, door.locks = None, True


@pytest.fixture(scope="module")
def lives(door: S3, forking: Any) -> Any:
    return forking.within(**door.env)


@pytest.fixture(scope="module")
def calm(lives: Any, place: Any) -> Path:
    """The job directory of a run that nobody disturbed."""
    job: Path = place.lay("calm", **SETTINGS)
    assert lives.live(job).code == 0
    assert result(job)["steps"] == STEPS
    return job


@pytest.fixture
def lay(place: Any) -> Callable[..., Path]:
    def lay(
        name: str, checkpoint: dict[str, Any] | None = None, timeouts: dict[str, float] | None = None, **groups: Any
    ) -> Path:
        fast = {"store": f"s3://{BUCKET}/{name}", "every_steps": 2, "async_save": False}
        launch = {"timeouts": {"store": 1.0, **(timeouts or {})}}
        found: Path = place.lay(
            name, checkpoint={**fast, **(checkpoint or {})}, launch=launch, **{**SETTINGS, **groups}
        )
        return found

    return lay


def kept(door: S3, name: str) -> list[int]:
    """Return the steps of the complete checkpoints."""
    found = (re.search(r"/step-(\d+)/manifest.json$", key) for key in door.objects(BUCKET, f"{name}/"))
    return sorted(int(match[1]) for match in found if match)


def assert_calm(job: Path, calm: Path) -> None:
    assert same(weights(job), weights(calm))
    assert history(job) == history(calm)


def after(step: int, what: Callable[[], tuple[int, str] | None]) -> Fault:
    """Return a fault that is there from the moment a step is being saved."""
    begun: list[bool] = []

    def fault(method: str, path: str) -> tuple[int, str] | None:
        if method == "PUT" and f"/step-{step:08d}/" in path:
            begun.append(True)
        return what() if begun else None

    return fault


def test_errors_for_a_while(door: S3, lives: Any, calm: Path, lay: Any) -> None:
    """500s and 503s, one after the other and in a row: tried again with pauses, and nothing is lost."""
    answers = [(500, "InternalError")] * 5 + [(503, "SlowDown")] * 5
    door.fault = after(4, lambda: answers.pop() if answers else None)
    job = lay("while", timeouts={"store": 60.0})
    life = lives.live(job)
    assert life.code == 0 and not answers, life.output
    assert "failed, tried again for 60 s" in life.output and "NOT SAVED" not in life.output
    assert result(job)["save_failed"] == ""
    assert kept(door, "while") == list(range(2, STEPS + 1, 2))
    assert_calm(job, calm)


def test_a_save_that_hangs_does_not_stop_training(door: S3, lives: Any, calm: Path, lay: Any) -> None:
    """The bucket does not answer; background saves that come due meanwhile are skipped, the last one is not."""
    away = threading.Event()
    door.fault = lambda method, path: away.wait(600) and None if method == "PUT" and "/step-00000004/" in path else None
    job = lay(
        "hangs",
        {"async_save": True, "stall_seconds": 0.2},
        {"store": 60.0},
        callbacks={"slow": {"_target_": "faults.Slow", "seconds": 0.4}},
    )
    life = lives.start(job)
    try:
        until = time.monotonic() + 600
        while f"step {STEPS}/{STEPS}" not in life.output:  # all steps were taken, although that save still hangs
            assert not life.ended(0.05) and time.monotonic() < until, life.output
        assert kept(door, "hangs") == [2]
        away.set()
        assert life.ended(600), life.output
    finally:
        away.set()
        life.kill()
    assert life.code == 0, life.output
    skipped = re.findall(r"^checkpoint: step (\d+) skipped: the save of step 4 is still running", life.output, re.M)
    assert set(skipped) <= {"6", "8", "10"} and "10" in skipped
    assert "NOT SAVED" not in life.output and result(job)["save_failed"] == ""
    assert kept(door, "hangs") == [2, 4, STEPS]
    assert_calm(job, calm)


REFUSALS = [(503, "SlowDown"), (403, "AccessDenied"), (403, "InvalidAccessKeyId"), (400, "ExpiredToken")]


@pytest.mark.parametrize("answer", REFUSALS, ids=[code for _, code in REFUSALS])
def test_from_some_moment_on_nothing_works(door: S3, lives: Any, calm: Path, lay: Any, answer: tuple[int, str]) -> None:
    """Case 19: the bucket is away for ever, or a credential is revoked while training runs. Training goes on, everybody
    is told, and the result says that the last checkpoint is not there."""
    name = f"never-{answer[1].lower()}"
    door.fault = after(6, lambda: answer)
    job = lay(name, timeouts={"store": 0.2})
    life = lives.live(job)
    assert life.code == 0, life.output
    reason = {
        503: "gave up on",
        400: "the credentials are refused (ExpiredToken): renew them",
        403: "no permission" if answer[1] == "AccessDenied" else "the credentials are refused (InvalidAccessKeyId)",
    }[answer[0]]
    told = [line for line in life.output.splitlines() if line.startswith("CHECKPOINT NOT SAVED")]
    assert [re.search(r"step \d+", line)[0] for line in told] == [f"step {step}" for step in (6, 8, 10, 12)]  # type: ignore[index]
    assert all(reason in line for line in told), told
    assert result(job)["save_failed"].startswith("step 12: ") and reason in result(job)["save_failed"]
    assert "Traceback" not in life.output
    assert_calm(job, calm)
    door.fault = None
    assert kept(door, name) == [2, 4]
    # The same command goes on from what was saved.
    life = lives.live(job)
    assert life.code == 0 and "resuming from step 4 " in life.output, life.output
    assert result(job)["save_failed"] == "" and kept(door, name)[-1] == STEPS
    assert_calm(job, calm)


def test_the_last_save_alone_fails(door: S3, lives: Any, calm: Path, lay: Any) -> None:
    """The store takes everything else again when the run ends: it is not finished, the same command makes up for it."""
    door.fault = lambda method, path: (403, "AccessDenied") if "/step-00000012/" in path and method == "PUT" else None
    job = lay("last")
    life = lives.live(job)
    assert life.code == 0 and result(job)["save_failed"].startswith("step 12: "), life.output
    assert_calm(job, calm)
    door.fault = None
    life = lives.live(job)
    assert life.code == 0 and "resuming from step 10 " in life.output, life.output
    assert result(job)["save_failed"] == "" and kept(door, "last")[-1] == STEPS
    assert_calm(job, calm)


@pytest.mark.slow
def test_told_to_end_while_nothing_can_be_saved(
    door: S3, lives: Any, calm: Path, lay: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real launcher does not say that it is saved."""
    door.fault = after(4, lambda: (503, "SlowDown"))
    job = lay("told", timeouts={"store": 0.2})
    for name, value in {**door.env, "SKYTUNE_TEST_END": "5 file"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        Preempted, match=r"^stopped after step 6, which could NOT be saved \(step 6: s3://.*the same comm"
    ):
        LocalLauncher().run(JobDir(job), ComputeConfig(device=Device.cpu))
    assert result(job)["status"] == "preempted"
    door.fault = None
    life = lives.live(job)
    assert life.code == 0 and "resuming from step 2 " in life.output, life.output
    assert_calm(job, calm)


def test_a_store_that_cannot_lock_is_told_and_used(door: S3, lives: Any, calm: Path, lay: Any) -> None:
    door.locks = False
    job = lay("unlocked")
    life = lives.live(job)
    assert life.code == 0 and "the store cannot lock: never start this run twice at one moment" in life.output, (
        life.output
    )
    assert_calm(job, calm)


@pytest.mark.slow
def test_other_processes_wait_for_a_last_save_that_takes_long(door: S3, lives: Any, lay: Any) -> None:
    """Longer than they wait for each other in any one operation."""
    door.fault = lambda method, path: (
        time.sleep(9) if method == "PUT" and path.endswith("step-00000012/manifest.json") else None
    )
    job = lay("long", {"async_save": True}, {"store": 60.0, "start": 6.0})
    life = lives.live(job, 2)
    assert life.code == 0, life.output
    assert result(job)["world_size"] == 2 and result(job)["save_failed"] == ""
    assert kept(door, "long") == list(range(2, STEPS + 1, 2))


def test_stopping_when_a_save_failed(door: S3, lives: Any, calm: Path, lay: Any) -> None:
    door.fault = after(4, lambda: (503, "SlowDown"))
    job = lay("stops", {"on_save_error": "stop"}, {"store": 0.2})
    life = lives.live(job)
    assert life.code == 1 and "NOT SAVED" not in life.output and "Traceback" not in life.output
    assert re.search(r"^checkpoint\.on_save_error=stop: step 4: s3://faults/stops/\S+: gave up on ", life.output, re.M)
    assert "step 6/" not in life.output
    door.fault = None
    life = lives.live(job)
    assert life.code == 0 and "resuming from step 2 " in life.output, life.output
    assert_calm(job, calm)


def test_the_next_best_weights_where_the_best_were_not_saved(door: S3, lives: Any, lay: Any) -> None:
    """`keep=1`: rotation keeps the best checkpoint that is there, not the best that should be."""
    door.fault = lambda method, path: (403, "AccessDenied") if "/step-00000006/" in path and method == "PUT" else None
    # Almost nothing is learned: three validations give the same, and of equal ones the earliest is the best.
    best = {"select": "best", "every_steps": 0, "keep": 1}
    job = lay("best", best, epochs=3, eval={"every_epochs": 1}, optimizer={"lr": 1e-7})
    life = lives.live(job)
    assert life.code == 0, life.output
    assert kept(door, "best") == [12, 18]
    assert "BEST WEIGHTS LOST: the best weights, of step 6, cannot be handed on" in life.output
    assert result(job)["best"]["step"] == 12 and "step 6" in result(job)["save_failed"]
    stored = job.parent / "stored.safetensors"
    (key,) = [key for key in door.objects(BUCKET, "best/") if key.endswith("step-00000012/model.safetensors")]
    door.client.download_file(BUCKET, key, str(stored))
    from safetensors.numpy import load_file

    assert same(weights(job), load_file(stored))


@pytest.mark.parametrize(
    ("name", "answer", "told"),
    [
        ("denied", (403, "AccessDenied"), "no permission for writing a probe"),
        ("refused", (403, "InvalidAccessKeyId"), "the credentials are refused"),
        ("region", (301, "PermanentRedirect"), "the bucket lies in another region: set AWS_DEFAULT_REGION"),
        ("signed", (400, "AuthorizationHeaderMalformed"), "the bucket lies in another region"),
        ("bucket", None, "no such bucket: create it, or correct the name"),
        ("away", (503, "SlowDown"), "gave up on writing a probe"),
    ],
)
def test_before_training_a_store_that_refuses_ends_in_one_line(
    door: S3, lives: Any, lay: Any, name: str, answer: tuple[int, str] | None, told: str
) -> None:
    """Case 19: no permission, a credential that is not valid, a bucket in another region or in none."""
    door.fault = lambda method, path: answer if method in ("PUT", "POST") else None
    job = lay(name, {"store": "s3://no-such-bucket/x"} if answer is None else {}, {"store": 0.1})
    life = lives.live(job)
    assert life.code == 1
    lines = [
        line for line in life.output.splitlines() if "tried again for" not in line and not line.startswith("model: ")
    ]
    assert len(lines) == 1 and lines[0].startswith("s3://") and told in lines[0], life.output
    assert not (job / "outputs" / "history.jsonl").exists() and not door.objects(BUCKET, f"{name}/")
