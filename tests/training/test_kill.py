"""SIGKILL to the launcher and its workers together, as a machine that goes away does: the same call goes on from a
checkpoint no older than the last one announced, and the end is that of a run that nobody disturbed. Many rounds, on
workers alone, are those of `test_kill_file.py` and `test_kill_s3.py`."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

DRIVER = """
import pickle, sys
from pathlib import Path
from datasets import load_from_disk
from transformers import AutoTokenizer
from skytune.config import RunConfig, from_dict
from skytune.launch import train
import json, logging
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
folder = Path(sys.argv[1])
config = from_dict(RunConfig, json.loads((folder / "config.json").read_text()))
splits = {name: load_from_disk(folder / name) for name in ("train", "validation", "test")}
done = train(config, splits.pop("train"), splits, AutoTokenizer.from_pretrained(config.model.name))
print("DONE", done.job.root, flush=True)
"""


@pytest.fixture
def scene(tmp_path: Path, tiny_model: Path, tokenized: Callable[..., Any]) -> Callable[..., Path]:
    """Return a function that lays out what a driver process needs."""

    def make(name: str, **checkpoint: Any) -> Path:
        folder = tmp_path / name
        for split, rows in (("train", 200), ("validation", 16), ("test", 16)):
            tokenized(rows).with_format(None).save_to_disk(folder / split)
        config = {
            "name": name,
            "model": {"name": str(tiny_model)},
            "compute": {"device": "cpu"},
            "epochs": 3,
            "launch": {"num_processes": 1, "threads": 1},
            "batch": {"global_size": 8},
            "log": {"every_steps": 1},
            "optimizer": {"lr": 1e-3},
            "eval": {"every_epochs": 2},
            "checkpoint": {"every_steps": 3, "keep": 2, "select": "last", "every_minutes": 0.0, **checkpoint},
        }
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "driver.py").write_text(DRIVER)
        return folder

    return make


def start(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, str(folder / "driver.py"), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "SKYTUNE_HOME": str(folder / "home")},
    )


def kill_all(child: "subprocess.Popen[str]") -> None:
    """Kill the driver and everything below it at once, as a machine that goes away does."""
    family = [psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)]
    for process in family:
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family, timeout=600)


def killed_until_done(folder: Path, rounds: int, seed: int) -> tuple[dict[str, np.ndarray], list[int]]:
    """Kill `rounds` times while it trains, then let it come to its end; return (weights, steps resumed from)."""
    draw, resumed, announced = random.Random(seed), [], 0
    for number in range(rounds + 1):
        child = start(folder)
        assert child.stdout is not None
        until = time.monotonic() + 600
        deadline = None
        for line in child.stdout:
            if line.startswith("resuming from step"):
                resumed.append(int(line.split()[3]))
                assert resumed[-1] >= announced, f"went back behind step {announced}, which was announced as saved"
            if line.startswith("checkpoint: step"):
                announced = max(announced, int(line.split()[2]))
                if number < rounds and deadline is None:
                    deadline = time.monotonic() + draw.random() * 0.6
            if line.startswith("DONE"):
                assert child.wait(600) == 0
                return load_file(Path(line.split(maxsplit=1)[1].strip()) / "outputs/model/model.safetensors"), resumed
            if deadline is not None and time.monotonic() > deadline:
                kill_all(child)
                break
            assert time.monotonic() < until
        child.stdout.close()
        child.wait(600)
    raise AssertionError("it never came to its end")


@pytest.mark.slow
def test_launcher_and_workers_killed(
    scene: Callable[..., Path], forked: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = scene("undisturbed")
    monkeypatch.setattr(sys, "argv", ["driver", str(folder)])
    exec(DRIVER, {})  # here, with forked workers: nobody kills it
    place = capfd.readouterr().out.splitlines()[-1].removeprefix("DONE ")
    undisturbed = load_file(Path(place) / "outputs/model/model.safetensors")
    weights, resumed = killed_until_done(scene("killed"), rounds=1, seed=random.randrange(10**6))
    assert len(resumed) == 1
    assert weights.keys() == undisturbed.keys()
    assert all(np.array_equal(undisturbed[name], value) for name, value in weights.items())
