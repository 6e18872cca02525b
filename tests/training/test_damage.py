"""Checkpoints that are not what was saved: the run goes on from the one before and names the file; where none is whole
it ends in one line and leaves everything as it was. All with real workers."""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from job_dirs import history, result, same, weights

FILES = ["history.json", "manifest.json", "model.safetensors", "optimizer.json", "optimizer.safetensors"]
"""All that a checkpoint consists of, smallest ones included."""


def delete(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = [delete, truncate, zero, flip]


@pytest.fixture(scope="module")
def whole(lives: Any, place: Any) -> Path:
    """A run of six steps with checkpoints at steps 2 and 4, killed in step 5; beside it, how it would have ended."""
    job: Path = place.lay("damage", rows=48, checkpoint={"every_steps": 2, "async_save": False})
    assert lives.live(job).code == 0
    shutil.move(job / "outputs", job / "undisturbed" / "outputs")
    shutil.rmtree(place.home / "damage-store")
    assert lives.live(job, SKYTUNE_TEST_END="5 kill").code == -9
    (run,) = (place.home / "damage-store").iterdir()
    assert sorted(path.name for path in run.glob("step-*")) == ["step-00000002", "step-00000004"]
    assert sorted(os.listdir(run / "step-00000004")) == FILES
    shutil.copytree(run, place.home / "pristine")
    return job


@pytest.fixture
def run(whole: Path, place: Any) -> Path:
    """The run's folder in the store, as the kill left it."""
    (found,) = (place.home / "damage-store").iterdir()
    shutil.rmtree(found)
    shutil.copytree(place.home / "pristine", found)
    return Path(found)


def tree(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("file", FILES)
def test_the_one_before_is_used(lives: Any, whole: Path, run: Path, file: str, damage: Callable[[Path], None]) -> None:
    """Case 15: every file of the newest checkpoint, the smallest included."""
    damage(run / "step-00000004" / file)
    life = lives.live(whole)
    assert life.code == 0, life.output
    assert "resuming from step 2 " in life.output
    (named,) = [line for line in life.output.splitlines() if line.startswith("checkpoint passed over")]
    assert "step-00000004" in named and file in named
    assert same(weights(whole), weights(whole / "undisturbed"))
    assert history(whole) == history(whole / "undisturbed")


def test_undamaged_the_newest_is_used(lives: Any, whole: Path, run: Path) -> None:
    """Guards the test above against a store whose newest checkpoint is never taken."""
    life = lives.live(whole)
    assert life.code == 0 and "resuming from step 4 " in life.output and "passed over" not in life.output
    assert result(whole)["resumed_from"] == 4
    assert same(weights(whole), weights(whole / "undisturbed"))


def test_all_broken_ends_in_one_line_and_changes_nothing(lives: Any, whole: Path, run: Path) -> None:
    """Case 15: never a silent start at step 0."""
    flip(run / "step-00000004" / "optimizer.safetensors")
    delete(run / "step-00000002" / "history.json")
    (run / ".step-00000006-1-00000000").mkdir()  # what a kill may have left
    (run / ".step-00000006-1-00000000" / "model.safetensors").write_bytes(b"half")
    (run / "lease.json").unlink()
    before = tree(run)
    life = lives.live(whole)
    assert life.code == 1
    lines = [line for line in life.output.splitlines() if not line.startswith("model: ")]
    assert len(lines) == 1, lines
    for part in (
        "no checkpoint there is whole",
        "step-00000004: optimizer.safetensors is damaged",
        "step-00000002: history.json is missing",
        "resume=never",
    ):
        assert part in lines[0]
    assert tree(run) == before
    assert not (whole / "outputs" / "model").exists() and not (whole / "outputs" / "result.json").exists()


def test_all_broken_through_the_launcher(whole: Path, run: Path) -> None:
    """Case 15: whoever starts the workers gets the same one line as an error of its own (`run.py` makes it exit 1)."""
    from skytune.config import ComputeConfig, Device, UserError
    from skytune.job import JobDir
    from skytune.launch.local import LocalLauncher

    shutil.rmtree(whole / "outputs", ignore_errors=True)
    for step in (2, 4):
        truncate(run / f"step-{step:08d}" / "model.safetensors")
    before = tree(run)
    before.pop("lease.json")
    with pytest.raises(UserError, match=r"^[^\n]*no checkpoint there is whole[^\n]*resume=never$"):
        LocalLauncher().run(JobDir(whole), ComputeConfig(device=Device.cpu))
    assert tree(run) == before


@pytest.fixture(scope="module")
def s3_lives(s3_process: dict[str, str], forking: Any) -> Any:
    return forking.within(**s3_process)


def test_a_store_that_lags(s3_lives: Any, place: Any, s3_process: dict[str, str]) -> None:
    """Case 16: the manifest is visible before a big file (here in S3). The checkpoint does not count until the file is
    there; if it never comes, the one before is good enough; if no manifest ever comes, nothing is started anew and
    nothing deleted."""
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=s3_process["AWS_ENDPOINT_URL"],
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket="lag")
    job = place.lay("lag", rows=48, checkpoint={"store": "s3://lag/runs", "every_steps": 2, "async_save": False})
    assert s3_lives.live(job, SKYTUNE_TEST_END="5 kill").code == -9

    def objects() -> dict[str, str]:
        found = client.list_objects_v2(Bucket="lag").get("Contents", [])
        return {entry["Key"]: entry["ETag"] for entry in found if not entry["Key"].endswith("lease.json")}

    (big,) = [key for key in objects() if key.endswith("step-00000004/model.safetensors")]
    data = client.get_object(Bucket="lag", Key=big)["Body"].read()

    for there, step in ((None, 2), (data[:-10], 2), (data, 4)):  # not there, not all of it, there
        client.delete_object(Bucket="lag", Key=big)
        if there is not None:
            client.put_object(Bucket="lag", Key=big, Body=there)
        life = s3_lives.live(job, SKYTUNE_TEST_END=f"{step + 1} kill")
        assert life.code == -9 and f"resuming from step {step} " in life.output, life.output
        assert ("step-00000004: model.safetensors" in life.output) == (step == 2)

    client.delete_object(Bucket="lag", Key=big)
    assert s3_lives.live(job).code == 0  # it never came
    assert result(job)["resumed_from"] == 2 and result(job)["train_rows"] == 48

    for key in objects():
        if key.endswith(("manifest.json", "finished.json")):
            client.delete_object(Bucket="lag", Key=key)
    before = objects()
    life = s3_lives.live(job)
    assert life.code == 1 and "no checkpoint there is whole" in life.output, life.output
    assert objects() == before
