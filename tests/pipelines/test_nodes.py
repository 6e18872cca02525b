"""The command on two machines, as `srun` starts it: the same words everywhere, node 0 runs the pipeline."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.soak
def test_the_same_command_on_two_machines(new_checkout: Callable[[], Any], small: list[str]) -> None:
    checkout = new_checkout()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [*small, "epochs=1", "launch.num_processes=2", f"launch.master_port={port}"]
    slurm = {
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "127.0.0.1,127.0.0.2",
        "SLURM_JOB_ID": "4711",
    }
    other = subprocess.Popen(
        [sys.executable, str(checkout.source / "src" / "run.py"), *words],
        cwd=checkout.home,
        text=True,
        env={**checkout.env, **slurm, "SLURM_NODEID": "1", "ZENML_CONFIG_PATH": str(checkout.home / "other")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        first = checkout.run(*words, **slurm, SLURM_NODEID="0")
        output = other.communicate(timeout=600)[0]
    finally:
        other.kill()
    assert first.code == 0, first.out + first.err + output
    assert other.returncode == 0, output
    assert output.splitlines()[-1] == "the run is done; node 0 has the results"
    assert not os.path.exists(checkout.home / "other"), "no ZenML on the other machine"
    # Again: node 0 has everything from its cache, and lets the other one go.
    other = subprocess.Popen(
        [sys.executable, str(checkout.source / "src" / "run.py"), *words],
        cwd=checkout.home,
        env={**checkout.env, **slurm, "SLURM_NODEID": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        assert checkout.run(*words, **slurm, SLURM_NODEID="0").code == 0
        assert checkout.statuses()["train_model"] == "cached"
        assert other.wait(600) == 0
    finally:
        other.kill()
    (result,) = (checkout.home / "skytune" / "runs").glob("*/outputs/result.json")
    assert json.loads(result.read_text())["world_size"] == 2
