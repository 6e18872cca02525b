"""A bucket that fails, as whoever runs the command sees it: its exit code and what it says."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from s3_server import S3


@pytest.fixture(scope="module")
def door() -> Iterator[S3]:
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    door = S3()
    door.client.create_bucket(Bucket="runs")
    yield door
    door.server.shutdown()


@pytest.fixture(scope="module")
def scene(new_checkout: Callable[[], Any]) -> Any:
    return new_checkout()


@pytest.fixture(scope="module")
def words(small: list[str]) -> list[str]:
    return [
        *small,
        "checkpoint.store=s3://runs/mine",
        "checkpoint.every_steps=5",
        "launch.timeouts.store=0.2",
        "checkpoint.select=last",
    ]


def test_no_permission_ends_before_training(door: S3, scene: Any, words: list[str]) -> None:
    """Case 19."""
    door.fault = lambda method, path: (403, "AccessDenied") if method == "PUT" else None
    done = scene.run(*words, **door.env)
    assert done.code == 1, done.out + done.err
    (line,) = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: s3://runs/mine/") and "no permission for writing a probe" in line
    assert "Traceback" not in done.out + done.err and "training " not in done.out
    assert scene.statuses()["train_model"] == "failed"


def test_the_last_checkpoint_could_not_be_saved(door: S3, scene: Any, words: list[str]) -> None:
    """The bucket is away from step 10 on: trained and scored all the same, told loudly, and the exit code is 76."""
    begun: list[bool] = []

    def fault(method: str, path: str) -> tuple[int, str] | None:
        if method == "PUT" and "/step-00000010/" in path:
            begun.append(True)
        return (503, "SlowDown") if begun and method == "PUT" else None

    door.fault = fault
    done = scene.run(*words, **door.env)
    assert done.code == 76, done.out + done.err
    assert "CHECKPOINT NOT SAVED, step 10: s3://runs/mine/" in done.out and "training goes on" in done.out
    (line,) = [line for line in done.err.splitlines() if line.startswith("warning: ")]
    assert line.startswith("warning: trained, but not everything could be saved: step "), line
    assert "gave up on" in line
    assert {scene.statuses()[step] for step in ("train_model", "evaluate_model")} == {"completed"}
    (folder,) = [path for path in (scene.home / "skytune" / "runs").iterdir() if path.is_dir()]
    assert (folder / "outputs" / "model" / "model.safetensors").is_file()
