"""A run that is told to end saves and says so; the same command goes on from there."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

HOLD = """
import os, pathlib, time
class Hold:
    def on_step_end(self, run):
        while str(run.step) == os.environ.get("HOLD_AT") and not pathlib.Path(run.job.root, "preempt").exists():
            time.sleep(0.02)
"""
# It stands still after a step, until it is asked to end: so it cannot be over before.


@pytest.fixture(scope="module")
def scene(new_checkout: Callable[[], Any], small: list[str]) -> Any:
    """A source tree with a callback that holds a run until the signal is there."""
    checkout = new_checkout()
    (checkout.source / "src" / "hold_steps.py").write_text(HOLD)
    words = [word for word in small if not word.startswith("epochs=")]
    checkout.words = [
        *words,
        "epochs=8",
        "eval.every_epochs=2",
        "log.every_seconds=0",
        "+callbacks.hold._target_=hold_steps.Hold",
    ]
    return checkout


def interrupted(scene: Any, number: signal.Signals, after_step: int) -> subprocess.CompletedProcess[str]:
    """Start a run and send it a signal once it has said that a step was taken."""
    child = subprocess.Popen(
        [sys.executable, str(scene.source / "src" / "run.py"), *scene.words],
        cwd=scene.home,
        env={**scene.env, "HOLD_AT": str(after_step + 3)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    assert child.stdout is not None
    message = ""
    until = time.monotonic() + 600
    for line in child.stdout:
        message += line
        step = re.match(r"step (\d+)/", line)
        if step and int(step[1]) >= after_step:
            os.kill(child.pid, number)
            break
        assert time.monotonic() < until, message
    rest, err = child.communicate(timeout=600)
    return subprocess.CompletedProcess(child.args, child.returncode, message + rest, err)


def test_sigterm_and_ctrl_c_save_and_the_same_command_goes_on(scene: Any) -> None:
    """SIGUSR1 does the same: `test_slurm.py`."""
    first = interrupted(scene, signal.SIGTERM, after_step=10)
    assert first.returncode == 75, first.stderr
    stopped = int(re.search(r"stopped after step (\d+)", first.stderr)[1])  # type: ignore[index]
    assert 10 <= stopped < 96
    second = interrupted(scene, signal.SIGINT, after_step=stopped + 10)
    assert second.returncode == 130, second.stderr
    assert f"resuming from step {stopped} " in second.stdout
    assert "goes on from the last checkpoint" in second.stderr
    (folder,) = [path for path in (scene.home / "skytune" / "runs").iterdir() if path.is_dir()]
    again = max(int(path.parent.name[5:]) for path in (folder / "checkpoints").rglob("step-*/manifest.json"))
    assert again > stopped + 9
    last = scene.run(*scene.words)
    assert last.code == 0, last.err
    assert f"resuming from step {again} " in last.out
    records = [json.loads(line) for line in (folder / "outputs" / "history.jsonl").read_text().splitlines()]
    steps = [record["step"] for record in records if record["kind"] == "step"]
    assert steps == sorted(set(steps)) and steps[-1] == 96
    assert not list((folder / "checkpoints").rglob("step-*")), "a finished run needs its checkpoints no more"
