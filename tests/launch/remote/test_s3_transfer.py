"""Inputs and outputs through a bucket, with a real S3 protocol (moto) and the real program of a machine."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from skytune.config import RunConfig, UserError, from_dict
from skytune.job import JobDir, read_json
from skytune.launch.remote import s3_transfer as module
from skytune.launch.remote.exchange import Exchange
from skytune.launch.remote.s3_transfer import INPUTS, S3Transfer

pytest.importorskip("s3fs")
boto3 = pytest.importorskip("boto3")

KEY = "a-run-0123456789ab"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    moto = pytest.importorskip("moto.server")
    running = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """An empty bucket, and credentials for it in the environment."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(name, value)
    made = boto3.resource("s3").Bucket(f"bucket-{tmp_path.name.replace('_', '-').lower()}"[:63].strip("-"))
    made.create()
    return made


@pytest.fixture
def through(bucket: Any) -> S3Transfer:
    return S3Transfer(f"s3://{bucket.name}/runs", KEY, retry_seconds=5)


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    folder = tmp_path / "job" / "inputs"
    for name, size in (("train/data-0.arrow", 200_000), ("test/data-0.arrow", 1000), ("test/twin.arrow", 1000)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(bytes(size))
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "config.json").write_text("{}")
    os.symlink(weights, folder / "weights")
    return folder


def test_inputs_are_sent_once_and_arrive(through: S3Transfer, inputs: Path, tmp_path: Path, bucket: Any) -> None:
    machine = JobDir(tmp_path / "machine")
    listing = machine.root / INPUTS
    assert through.upload_inputs(inputs, listing) == 201_002, "of files with the same content one is sent"
    assert through.upload_inputs(inputs, listing) == 0
    (inputs / "test" / "data-0.arrow").write_bytes(b"other rows")
    assert through.upload_inputs(inputs, listing) == 10
    assert {each.key.rpartition("/")[0] for each in bucket.objects.all()} == {"runs/.inputs"}
    assert through.download_inputs(machine) == 202_012 - 1000
    names = [path.relative_to(inputs).as_posix() for path in inputs.rglob("*") if path.is_file()]
    for name in [*names, "weights/config.json"]:
        assert (machine.inputs / name).read_bytes() == (inputs / name).read_bytes()
    assert through.download_inputs(machine) == 0, "what lies on the machine already is not fetched again"


def test_inputs_that_are_old_are_made_young_without_being_sent(
    through: S3Transfer, inputs: Path, tmp_path: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    through.upload_inputs(inputs, tmp_path / INPUTS)
    before = {each.key: each.last_modified for each in bucket.objects.all()}
    monkeypatch.setattr(module, "FRESH", timedelta(seconds=-10))  # all is old
    touched = []
    monkeypatch.setattr(
        S3Transfer, "_renewed", lambda self, name, real=S3Transfer._renewed: touched.append(name) or real(self, name)
    )
    assert through.upload_inputs(inputs, tmp_path / INPUTS) == 0
    after = {each.key: each.last_modified for each in bucket.objects.all()}
    assert {f"runs/.inputs/{name}" for name in touched} == set(before)
    assert all(after[key] >= before[key] for key in before) and set(after) == set(before)
    monkeypatch.setattr(S3Transfer, "_renewed", lambda self, name: False)  # larger than S3 copies at once
    assert through.upload_inputs(inputs, tmp_path / INPUTS) == 201_002


def test_damaged_or_missing_inputs_end_a_job_with_their_name(
    through: S3Transfer, inputs: Path, tmp_path: Path, bucket: Any
) -> None:
    machine = JobDir(tmp_path / "machine")
    through.upload_inputs(inputs, machine.root / INPUTS)
    first = read_json(machine.root / INPUTS)[0]
    key = f"runs/.inputs/{first['sha256']}"
    bucket.Object(key).put(Body=b"x")
    with pytest.raises(UserError, match=f"{first['sha256']}: is damaged"):
        through.download_inputs(machine)
    assert not (machine.inputs / first["path"]).exists()
    bucket.Object(key).delete()
    with pytest.raises(UserError, match=r"s3://bucket-.*fetching"):
        through.download_inputs(machine)


def outputs(job: JobDir, status: str = "completed") -> None:
    job.write_result({"status": status, "steps": 3})
    job.model.mkdir(parents=True)
    (job.model / "model.safetensors").write_bytes(b"weights")
    job.logs.mkdir(parents=True)
    (job.logs / "rank-0.log").write_text("zero")


def test_outputs_of_all_machines_come_back_and_go(through: S3Transfer, tmp_path: Path, bucket: Any) -> None:
    first, second, here = (JobDir(tmp_path / name) for name in ("first", "second", "here"))
    outputs(first)
    second.logs.mkdir(parents=True)
    (second.logs / "rank-1.log").write_text("one")
    (second.outputs / "model").mkdir()
    (second.outputs / "model" / "junk").write_text("of no use")
    assert not through.download_outputs(here)
    through.upload_outputs(second, 1, "code")
    assert not through.download_outputs(here), "the first machine has left nothing yet"
    through.upload_outputs(first, 0, "code")
    assert through.listed_outputs()[0]["code"] == "code" and through.download_outputs(here)
    assert here.read_result() == {"status": "completed", "steps": 3}
    assert (here.model / "model.safetensors").read_bytes() == b"weights" and not (here.model / "junk").exists()
    assert [(here.logs / f"rank-{rank}.log").read_text() for rank in (0, 1)] == ["zero", "one"]
    through.delete_outputs()
    assert not list(bucket.objects.all()) and not through.download_outputs(here)


def test_a_machine_fetches_trains_and_leaves_and_the_results_are_found_later(
    run_job: Callable[..., Any], bucket: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = run_job(rows=16, validation=8, test=8)
    held = done.job.job
    url = f"s3://{bucket.name}/runs"
    held.config.checkpoint.store, held.fingerprints["code"] = url, "c0de"
    machine, here = JobDir(tmp_path / "machine"), JobDir(tmp_path / "here")
    through = S3Transfer.from_config(held.config, held.run_key)
    assert through is not None
    for job in (machine, here):
        job.root.mkdir()
        job.write_job(held)
    through.upload_inputs(done.job.inputs, machine.root / INPUTS)
    words = [sys.executable, "-m", "skytune.launch.skypilot.node", str(machine.root)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=900)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (machine.inputs / "train").is_dir() and through.listed_outputs()[0]["code"] == "c0de"

    def tick() -> None:
        pass

    held.fingerprints["code"] = "other"
    here.write_job(held)
    assert not Exchange(here, through).existing_results(tick), "results of other code are none of this run"
    held.fingerprints["code"] = "c0de"
    here.write_job(held)
    assert Exchange(here, through).existing_results(tick)
    assert (here.model / "model.safetensors").read_bytes() == (machine.model / "model.safetensors").read_bytes()
    assert (here.read_result() or {})["status"] == "completed" and here.predictions("test").is_file()
    assert not Exchange(here, through).existing_results(tick), "once they are here they are not handed out again"


def test_where_the_store_takes_nothing_from_here_inputs_go_as_before(
    bucket: Any, inputs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = S3Transfer(f"s3://{bucket.name}-gone/runs", KEY, retry_seconds=1)
    Exchange(JobDir(inputs.parent), gone).send(tmp_path / "upload", lambda: None)
    sent = tmp_path / "upload" / "job"
    assert (sent / "inputs" / "weights" / "config.json").is_file() and not (sent / INPUTS).exists()
    assert "inputs go to the machines from here, since the store takes none" in caplog.text
    assert "no such bucket" in caplog.text


def test_only_s3_takes_them() -> None:
    for store in (None, "hf://user/name"):
        assert S3Transfer.from_config(from_dict(RunConfig, {"checkpoint": {"store": store}}), KEY) is None
