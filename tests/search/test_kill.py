"""A search is killed at random moments, driver and workers, and started again: its table is that of a straight one."""

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

import psutil
import pytest

from skytune.config import RunConfig, from_dict
from skytune.launch import LocalLauncher
from skytune.search import findings, run_search

RUN = """
import json, sys
from skytune.config import RunConfig, from_dict
from skytune.search import findings, run_search
if __name__ == "__main__":
    search = run_search(from_dict(RunConfig, json.load(open(sys.argv[1]))))
    open(sys.argv[2], "w").write(json.dumps(findings(search)))
"""

SAME = ("trials", "winner", "importance", "rungs", "failed", "untried", "samples")
"""What must be the same: settings, scores, their order, who won, how much was trained."""


def start(folder: Path, values: dict[str, Any]) -> "subprocess.Popen[bytes]":
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values))
    words = [sys.executable, "-c", RUN, str(folder / "config.json"), str(folder / "found.json")]
    source = str(Path(__file__).resolve().parents[2] / "src")
    env = {**os.environ, "SKYTUNE_HOME": str(folder / "home"), "PYTHONPATH": source}
    log = (folder / "log.txt").open("ab")
    return subprocess.Popen(words, env=env, stdout=log, stderr=log)


def begun(folder: Path) -> int:
    """Return how many starts of trials there were."""
    found = 0
    for path in (folder / "home").glob("searches/t/attempts/*.json"):
        found += len(json.loads(path.read_text()))
    return found


def killed(folder: Path, values: dict[str, Any], kills: int, seed: int) -> dict[str, Any]:
    """Return what a search found that was killed so often; each kill waits for another start of a trial."""
    draw, child, log = random.Random(seed), start(folder, values), folder / "log.txt"
    victims: list[int] = []
    try:
        for _ in range(kills):
            there, until = begun(folder), time.monotonic() + 240
            while begun(folder) == there and child.poll() is None:
                assert time.monotonic() < until, log.read_text()[-3000:]
                time.sleep(0.02)
            time.sleep(draw.random() * 0.8)  # any moment: importing, training, saving, scoring, writing
            if child.poll() is not None:
                break
            family = psutil.Process(child.pid).children(recursive=True)
            victim = draw.choice([child.pid, *(process.pid for process in family)])
            victims.append(victim)
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                continue
            if victim == child.pid:
                child.wait()
                child = start(folder, values)
        assert child.wait(timeout=240) == 0, log.read_text()[-3000:]
    finally:
        if child.poll() is None:
            child.kill()
    assert victims, "it ended before anything was killed"
    return dict(json.loads((folder / "found.json").read_text()))


def compare(found: dict[str, Any], straight: dict[str, Any]) -> None:
    for name in SAME:
        killed, other = (json.loads(json.dumps(one[name])) for one in (found, straight))
        if name == "winner":
            for one in (killed, other):
                del one["config"]
        assert killed == other, name


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_three_times_a_search_is_that_of_a_straight_one(
    values: Callable[..., dict[str, Any]], warm: Callable[[], LocalLauncher], tmp_path: Path
) -> None:
    chosen = values({"epochs": 2, "checkpoint": {"every_steps": 3}}, trials=4, halving=4, retries=50)
    found = killed(tmp_path / "killed", chosen, 3, seed=1)
    compare(found, findings(run_search(from_dict(RunConfig, chosen), warm)))


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kills", "parallel"), [(10, 1), (20, 1), (10, 2)])
def test_killed_again_and_again_a_search_is_that_of_a_straight_one(
    values: Callable[..., dict[str, Any]],
    warm: Callable[[], LocalLauncher],
    tmp_path: Path,
    kills: int,
    parallel: int,
) -> None:
    run = {"epochs": 3, "checkpoint": {"every_steps": 3}}
    chosen = values(run, trials=9, halving=3, confirm=2, retries=50, parallel=parallel)
    found = killed(tmp_path / "killed", chosen, kills, seed=kills + parallel)
    straight = findings(run_search(from_dict(RunConfig, chosen), warm))
    compare(found, straight)
    assert found["confirmation"] == straight["confirmation"]
