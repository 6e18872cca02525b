"""The same command at the same moment: on one machine one of the two trains and the other takes what it has trained; on
two machines with one store never do both write."""

import hashlib
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

WAITS = """
import os, pathlib, time
class Waits:
    def on_step_end(self, run):
        until = time.monotonic() + 600
        while run.step == 5 and not pathlib.Path(os.environ["GO_ON"]).exists() and time.monotonic() < until:
            time.sleep(0.02)
"""


def start(scene: Any, name: str, words: list[str], elsewhere: bool = True) -> "subprocess.Popen[str]":
    """Run the command; `elsewhere` with a home and a ZenML store of its own, as on another machine."""
    home = scene.home / name
    home.mkdir()
    env = scene.env
    if elsewhere:
        env = {**env, "HOME": str(home), "SKYTUNE_HOME": str(home / "skytune"), "ZENML_CONFIG_PATH": str(home / "z")}
    return subprocess.Popen(
        [sys.executable, str(scene.source / "src" / "run.py"), *words],
        cwd=home,
        env=env,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=(home / "out").open("w"),
        stderr=(home / "err").open("w"),
    )


def tree(folder: Path) -> dict[str, str]:
    """Return what lies there, without signs of life."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and "lease.json" not in path.name)
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.slow
def test_two_at_once_train_one_after_the_other(
    new_checkout: Callable[[], Any], small: list[str], tmp_path: Path
) -> None:
    """One trains; the other says in one line who does, waits, writes nothing, and (a finished run is no result of
    another) trains then. Both end with the same weights, which are those of the last checkpoint."""
    scene, store, go_on = new_checkout(), tmp_path / "store", tmp_path / "go-on"
    (scene.source / "src" / "waiting.py").write_text(WAITS)
    scene.env["GO_ON"] = str(go_on)
    words = [
        *small,
        f"checkpoint.store=file://{store}",
        "checkpoint.every_steps=3",
        "checkpoint.keep=1",
        "checkpoint.select=last",
        "+callbacks.waits._target_=waiting.Waits",
        "log.every_seconds=0",
    ]
    running = {name: start(scene, name, words) for name in ("one", "two")}

    def outputs() -> dict[str, str]:
        return {name: (scene.home / name / "out").read_text() for name in running}

    holds = r"^.*: is being written by the launch (\S+) \(process \d+ on \S+\); .*$"
    try:
        until = time.monotonic() + 600
        while not (held := [name for name, text in outputs().items() if re.search(holds, text, re.M)]):
            assert all(process.poll() is None for process in running.values()) and time.monotonic() < until, outputs()
            time.sleep(0.05)
        (waits,) = held
        (first,) = running.keys() - held
        # The file and not the line about it: the loop, which stands still at step 5, may not have told of it yet.
        while "step 4/" not in outputs()[first] or not list(store.glob("*/step-*3/manifest.json")):
            assert running[first].poll() is None and time.monotonic() < until, outputs()
            time.sleep(0.05)
        before = tree(store)
        time.sleep(1.5)
        assert tree(store) == before and not re.search("^(training|resuming) ", outputs()[waits], re.M), outputs()[
            waits
        ]
        go_on.touch()
        for process in running.values():
            process.wait(600)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    out = outputs()
    assert [process.returncode for process in running.values()] == [0, 0], out
    assert re.search(holds, out[first], re.M) is None and len(re.findall(holds, out[waits], re.M)) == 1
    assert f"file://{store}/" in re.search(holds, out[waits], re.M)[0]  # type: ignore[index]
    assert not any(word in text for text in out.values() for word in ("NOT SAVED", "Traceback", "taken over"))

    (run,) = [path for path in store.iterdir() if path.is_dir()]
    *_, kept = sorted(run.glob("step-*"))  # beside the last one, the best is kept
    assert kept.name == "step-00000024"
    assert (kept / "manifest.json").is_file() and (run / "finished.json").is_file()
    stored = load_file(kept / "model.safetensors")
    for name in running:
        (path,) = (scene.home / name / "skytune" / "runs").glob("*/outputs/model/model.safetensors")
        weights = load_file(path)
        assert weights.keys() == stored.keys()
        assert all(np.array_equal(weights[key], stored[key]) for key in stored), name


@pytest.mark.slow
def test_two_at_once_on_one_machine_compute_once(
    new_checkout: Callable[[], Any], small: list[str], tmp_path: Path
) -> None:
    """The second waits until the first has stored everything, and takes what the first has computed."""
    scene, go_on = new_checkout(), tmp_path / "go-on"
    (scene.source / "src" / "waiting.py").write_text(WAITS)
    scene.env["GO_ON"] = str(go_on)
    words = [*small, "+callbacks.waits._target_=waiting.Waits"]
    running = {name: start(scene, name, words, elsewhere=False) for name in ("one", "two")}

    def outputs() -> dict[str, str]:
        return {name: (scene.home / name / "out").read_text() for name in running}

    waits = r"this very run is being trained by process (\d+): waiting for it to end"
    try:
        until = time.monotonic() + 600
        while not any(re.search(waits, text) for text in outputs().values()):
            assert all(process.poll() is None for process in running.values()) and time.monotonic() < until, outputs()
            time.sleep(0.05)
        go_on.touch()
        for process in running.values():
            process.wait(600)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    out = outputs()
    errors = {name: (scene.home / name / "err").read_text() for name in running}
    assert [process.returncode for process in running.values()] == [0, 0], errors
    (second,) = [name for name, text in out.items() if re.search(waits, text)]
    (first,) = running.keys() - {second}
    assert re.search(waits, out[second])[1] == str(running[first].pid)  # type: ignore[index]
    assert f"process {running[first].pid} has just finished this very run: its result is taken" in out[second]
    assert "steps (" in out[first] and "steps (" not in out[second], "one of them trained"
    scores = [re.findall(r"^ *(?:test|accuracy).*$", text, re.M) for text in out.values()]
    assert scores[0] and scores[0] == scores[1]
