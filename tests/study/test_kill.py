"""The study is killed twice, with real worker processes, and started again: the table is that of a straight run."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skytune.config import RunConfig, to_dict
from skytune.study.table import COLUMNS, frame, records

SLOW = "import time\nclass Slow:\n    def on_step_end(self, run): time.sleep(0.25)\n"

RUN = """
import json, sys
from skytune.config import RunConfig, from_dict
from skytune.study import run_experiment
rows = run_experiment(from_dict(RunConfig, json.loads(open(sys.argv[1]).read())))
open(sys.argv[2], "w").write(json.dumps(rows))
"""

TIMED = {name for name in COLUMNS if name.endswith("_s") and name != "steps"} | {
    "attempts",
    "finished_at",
    "mfu",
    "usd_total",
    "usd_per_1000_samples",
    "usd_per_accuracy_point",
    "job",
}
"""Columns of when and how long; all others must be the same."""


def start(config: RunConfig, folder: Path, env: dict[str, str]) -> "subprocess.Popen[bytes]":
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(to_dict(config)))
    words = [sys.executable, "-c", RUN, str(folder / "config.json"), str(folder / "rows.json")]
    log = (folder / "log.txt").open("ab")
    return subprocess.Popen(
        words, env={**os.environ, **env, "SKYTUNE_HOME": str(folder / "home")}, stdout=log, stderr=log
    )


def wait_for(what: Callable[[], bool], child: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + 600
    while not what():
        assert child.poll() is None and time.monotonic() < until, log.read_text()[-3000:]
        time.sleep(0.05)


@pytest.mark.soak
@pytest.mark.slow
def test_killed_twice_and_started_again_gives_the_same_table(design: Callable[..., RunConfig], tmp_path: Path) -> None:
    (tmp_path / "slow_cells.py").write_text(SLOW)
    env = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[2] / "src"), str(tmp_path)])}
    run = {"checkpoint": {"every_steps": 2}, "callbacks": {"slow": {"_target_": "slow_cells.Slow"}}, "epochs": 3}
    config = design({**run, "compute": {"usd_per_hour": 3.6}}, factors={"rows": [48, 64]})

    straight = tmp_path / "straight"
    child = start(config, straight, env)

    killed = tmp_path / "killed"
    other = start(config, killed, env)
    cells, log = killed / "home/benchmarks/test/cells", killed / "log.txt"
    try:
        # In the middle of the first cell, once a checkpoint of it is there; then in the middle of the second.
        wait_for(lambda: bool(list(killed.glob("home/runs/*/checkpoints/*/step-*/manifest.json"))), other, log)
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        assert not list(cells.glob("*.json"))
        other = start(config, killed, env)
        wait_for(lambda: len(list(cells.glob("*.json"))) == 1, other, log)
        finished = {path.name: path.read_bytes() for path in cells.glob("*.json")}
        wait_for(lambda: len(list(killed.glob("home/runs/*/job.json"))) == 2, other, log)
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        other = start(config, killed, env)
        assert other.wait(600) == 0, log.read_text()[-3000:]
        assert child.wait(600) == 0, (straight / "log.txt").read_text()[-3000:]
    finally:
        for process in (child, other):
            if process.poll() is None:
                process.kill()
    for name, content in finished.items():
        assert (cells / name).read_bytes() == content, "a finished cell was run again"

    def table(folder: Path) -> list[dict[str, Any]]:
        rows = records(frame(json.loads((folder / "rows.json").read_text())))
        return [{key: value for key, value in row.items() if key not in TIMED} for row in rows]

    assert table(killed) == table(straight)
    rows = json.loads((killed / "rows.json").read_text())
    assert [row["attempts"] for row in rows] == [2, 2], "both starts of both cells are in the table"
    for row in rows:
        assert row["usd_total"] == pytest.approx(row["total_s"] / 1000, rel=1e-3)  # 3.60 USD an hour, killed starts too


@pytest.mark.soak
@pytest.mark.slow
def test_an_interrupt_ends_cells_that_run_at_once_and_they_go_on(
    design: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """Cells in threads get no signal of their own: whoever waits for them asks their workers to save and end."""
    (tmp_path / "slow_cells.py").write_text(SLOW)
    env = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[2] / "src"), str(tmp_path)])}
    run = {"callbacks": {"slow": {"_target_": "slow_cells.Slow"}}, "epochs": 5}
    config = design(run, factors={"rows": [48, 64, 80]}, parallel=2)
    folder = tmp_path / "home-of-it"
    child, log = start(config, folder, env), folder / "log.txt"
    try:
        wait_for(lambda: log.read_text().count("step 1/") >= 2, child, log)
        os.kill(child.pid, signal.SIGINT)
        assert child.wait(600) != 0
        told = log.read_text()
        assert told.count("told to end (asked by the launcher): stopped after step") == 2, told[-3000:]
        assert (
            not list(folder.glob("home/benchmarks/test/cells/*.json")) and len(list(folder.glob("home/runs/*/"))) == 2
        )
        child = start(config, folder, env)
        assert child.wait(600) == 0, log.read_text()[-3000:]
    finally:
        if child.poll() is None:
            child.kill()
    rows = json.loads((folder / "rows.json").read_text())
    assert [(row["status"], row["attempts"]) for row in rows] == [("done", 2), ("done", 2), ("done", 1)]
    assert log.read_text().count("resuming from step") == 2
