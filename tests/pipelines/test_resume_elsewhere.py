"""A machine is lost; another one that has nothing but the store's URL goes on, exactly."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

HOLD = """
import os, pathlib, time
class Hold:
    def on_step_end(self, run):
        while str(run.step) == os.environ.get("HOLD_AT") and not pathlib.Path(run.job.root, "preempt").exists():
            time.sleep(0.02)
"""
# It stands still after a step, until it is asked to end: so it cannot be over before.

STORE = "hf://me/runs"
MINE = "plugins=[hold_steps]"
"""The store names a callback of ours, which is called only where the command names its module."""


class Machines:
    """Machines of one source tree, each with a home of its own, and the stores that they reach."""

    def __init__(self, checkout: Any, hub: Any, s3: str) -> None:
        self.checkout, self.hub = checkout, hub
        (checkout.source / "src" / "hold_steps.py").write_text(HOLD)
        self.env = {
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": "hf_right",
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "AWS_ENDPOINT_URL": s3,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def machine(self, name: str) -> Any:
        """Return a machine; it is empty when it is first used."""
        home = self.checkout.source / name
        home.mkdir(exist_ok=True)
        found = type(self.checkout)(self.checkout.source, home)
        found.env |= self.env
        return found


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    pytest.importorskip("s3fs")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def machines(new_checkout: Callable[[], Any], start_hub: Callable[[], Any], s3: str) -> Machines:
    return Machines(new_checkout(), start_hub(), s3)


@pytest.fixture(scope="module")
def words(small: list[str], tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A run that takes some seconds, from a model in a folder that only the first machine has."""
    own = tmp_path_factory.mktemp("first") / "own-model"
    shutil.copytree(tiny_model, own)
    kept = [word for word in small if not word.startswith("model.name=")]
    hold = "+callbacks.hold._target_=hold_steps.Hold"
    return [*kept, f"model.name={own}", hold, "log.every_seconds=0", "log.every_steps=1", "checkpoint.select=last"]


@pytest.fixture(scope="module")
def stopped(machines: Machines, words: list[str]) -> dict[str, bytes]:
    """The first machine is told to end in the middle; return what then lies in the store."""
    machine = machines.machine("first")
    child = subprocess.Popen(
        [sys.executable, str(machine.source / "src" / "run.py"), *words, f"checkpoint.store={STORE}"],
        cwd=machine.home,
        env={**machine.env, "HOLD_AT": "8"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    assert child.stdout is not None
    message, until = "", time.monotonic() + 600
    for line in child.stdout:
        message += line
        step = re.match(r"step (\d+)/", line)
        if step and int(step[1]) >= 5:
            os.kill(child.pid, signal.SIGTERM)
            break
        assert time.monotonic() < until, message
    rest, err = child.communicate(timeout=600)
    assert child.returncode == 75, message + rest + err
    return dict(machines.hub.files("me/runs"))


@pytest.fixture(scope="module")
def whole(machines: Machines, words: list[str], stopped: object) -> Iterator[dict[str, np.ndarray]]:
    """Weights of the same run without interruption, on the first machine, whose model is taken away afterwards."""
    machine = machines.machine("first")
    done = machine.run(*words)
    assert done.code == 0, done.err
    found = weights(machine)
    model = Path(next(word for word in words if word.startswith("model.name="))[11:])
    model.rename(model.with_name("gone"))
    yield found


def weights(machine: Any) -> dict[str, np.ndarray]:
    (folder,) = (path for path in (machine.home / "skytune" / "runs").iterdir() if path.is_dir())
    found: dict[str, np.ndarray] = load_file(folder / "outputs" / "model" / "model.safetensors")
    return found


def run_key(files: dict[str, bytes]) -> str:
    (key,) = {path.split("/")[0] for path in files if path.endswith("/run.json")}
    return key


@pytest.fixture(scope="module")
def bucket(stopped: dict[str, bytes], s3: str) -> str:
    """The same store as a bucket."""
    import boto3

    client = boto3.client(
        "s3", endpoint_url=s3, aws_access_key_id="key", aws_secret_access_key="secret", region_name="us-east-1"
    )
    client.create_bucket(Bucket="elsewhere")
    for path, data in stopped.items():
        client.put_object(Bucket="elsewhere", Key=f"runs/{path}", Body=data)
    return "s3://elsewhere/runs"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hub", pytest.param("s3", marks=pytest.mark.soak)])
def test_resume_alone_goes_on_exactly(
    kind: str, machines: Machines, stopped: dict[str, bytes], whole: dict[str, np.ndarray], bucket: str
) -> None:
    key, place = run_key(stopped), STORE if kind == "hub" else bucket
    step = max(int(found[1]) for found in (re.search(r"step-(\d+)/manifest.json", path) for path in stopped) if found)
    machine = machines.machine(f"empty-{kind}")
    done = machine.run(f"resume={place}")
    assert (done.code, done.err.count("\n")) == (1, 1), done.err
    assert "wants callbacks.hold._target_=hold_steps.Hold" in done.err
    done = machine.run(f"resume={place}", MINE)
    assert done.code == 0, done.err
    assert f"continuing {key}: its configuration comes from {place}/{key}" in done.out
    assert "own-model is not on this machine: its architecture and tokenizer come from the store" in done.out
    assert f"resuming from step {step} ({place}/{key}/step-{step:08d})" in done.out
    found = weights(machine)
    assert found.keys() == whole.keys()
    assert all(np.array_equal(found[name], whole[name]) for name in whole)
    history = machine.home / "skytune" / "runs" / key / "outputs" / "history.jsonl"  # the same run key came out
    records = [json.loads(line) for line in history.read_text().splitlines()]
    steps = [record["step"] for record in records if record["kind"] == "step"]
    assert steps == list(range(1, max(steps) + 1))
    if kind == "hub":
        files = machines.hub.files("me/runs")
        assert run_key(files) == key, "nothing else was begun in the store"
        assert f"{key}/finished.json" in files and f"{key}/step-{max(steps):08d}/manifest.json" in files


@pytest.mark.slow
def test_what_is_another_run_is_refused(
    machines: Machines, stopped: dict[str, bytes], bucket: str, reviews: Path, tmp_path: Path
) -> None:
    key = run_key(stopped)
    for path, data in stopped.items():
        target = tmp_path / "store" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    machine = machines.machine("empty-hub")
    done = machine.run(f"resume={bucket}", MINE, "compute=auto", "--cfg")
    assert (done.code, done.err) == (0, "")
    assert f"resume: {bucket}/{key}\n" in done.out and "device: auto\n" in done.out and "text: Satz\n" in done.out
    done = machine.run(f"resume={tmp_path}/store", MINE, "seed=5")
    assert (done.code, done.err.count("\n")) == (1, 1), done.err
    assert f"is of another run, {key}: seed: 42 there, 5 here" in done.err
    lines = reviews.read_text(encoding="utf-8").splitlines()
    other = tmp_path / "reviews.csv"
    other.write_text("\n".join(lines[:-3]), encoding="utf-8")
    done = machine.run(f"resume={tmp_path}/store", MINE, f"data.train={other}")
    assert (done.code, done.err.count("\n")) == (1, 1), done.err
    assert re.search(rf"is of another run, {key}: fingerprints.data: .* there, .* here", done.err)
    assert [path.parent.name for path in (tmp_path / "store").glob("*/run.json")] == [key]
