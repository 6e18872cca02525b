"""Ctrl-C, and a launcher that is gone from one moment to the next: no worker is left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skytune.job import JobDir

DRIVER = """
import sys
from skytune.config import ComputeConfig, Preempted, UserError
from skytune.job import JobDir
from skytune.launch.local import LocalLauncher
try:
    LocalLauncher().run(JobDir(sys.argv[1]), ComputeConfig(device="cpu"))
except KeyboardInterrupt:
    print("KeyboardInterrupt came out")
    sys.exit(130)
except Preempted as error:
    print(error)
    sys.exit(75)
except UserError as error:
    print(error)
    sys.exit(1)
"""


class Stop(Exception):
    """The job is written; it shall not run here."""


@pytest.fixture
def written(run_job: Any, trouble: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., JobDir]:
    """Return a function that writes the job directory of an endless run."""
    found: list[JobDir] = []

    class Writer:
        def run(self, job: JobDir, compute: Any) -> None:
            found.append(job)
            raise Stop

    def write(name: str, pids: Path, kind: str = "none", **launch: Any) -> JobDir:
        with monkeypatch.context() as patch:
            patch.setattr("skytune.launch.run_job.LocalLauncher", Writer)
            with pytest.raises(Stop):
                run_job(
                    rows=16,
                    validation=4,
                    test=4,
                    name=name,
                    max_steps=10**6,
                    launch=launch,
                    callbacks={"pid": {"_target_": f"{trouble}.Trouble", "folder": str(pids), "kind": kind}},
                )
        return found.pop()

    return write


def wait_for(condition: Callable[[], bool], seconds: float = 600.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


@pytest.mark.slow
def test_interrupted_and_killed_launchers_leave_nothing(written: Any, pids: Path, left: Any) -> None:
    """Both at once, one with one worker and one with two: they take the time of one."""
    drivers = {}
    for name, count in (("interrupted", 1), ("killed", 2)):
        job = written(name, pids, num_processes=count, threads=1, timeouts={"kill": 5.0})
        drivers[name] = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(job.root)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    try:
        # Three workers and torchrun's agent.
        assert wait_for(lambda: len(list(pids.glob("pid-*"))) == 4), [d.poll() for d in drivers.values()]
        time.sleep(0.5)  # in the middle of their steps
        drivers["interrupted"].send_signal(signal.SIGINT)
        drivers["killed"].kill()
        out, err = drivers["interrupted"].communicate(timeout=600)
        assert drivers["interrupted"].returncode == 130
        assert out.endswith("KeyboardInterrupt came out\n")
        assert "Traceback" not in err
        drivers["killed"].communicate(timeout=600)
        assert left(expected=4) == []
    finally:
        for driver in drivers.values():
            driver.kill()
            driver.wait()


@pytest.mark.slow
def test_signals_to_everybody_a_second_ctrl_c_and_a_lost_agent(written: Any, pids: Path, left: Any) -> None:
    """Three at once: SIGUSR1 to all processes of a job, as Slurm sends it; Ctrl-C twice, while a step does not come to
    its end; and torchrun's agent killed."""
    kinds = {"everybody": "none", "twice": "sleep", "agent": "sleep"}
    drivers = {}
    try:
        for name, kind in kinds.items():
            job = written(name, pids, kind, num_processes=2, threads=1, timeouts={"kill": 300.0, "stop": 600.0})
            drivers[name] = subprocess.Popen(
                [sys.executable, "-c", DRIVER, str(job.root)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        # Two workers and their agent, three times.
        assert wait_for(lambda: len(noted(pids)) == 9), [driver.poll() for driver in drivers.values()]
        agents = {name: next(p for p in noted(pids) if parent(p) == drivers[name].pid) for name in drivers}
        time.sleep(0.5)  # in the middle of their steps
        workers = [pid for pid in noted(pids) if parent(pid) == agents["everybody"]]
        for pid in (drivers["everybody"].pid, agents["everybody"], *workers):
            os.kill(pid, signal.SIGUSR1)
        drivers["twice"].send_signal(signal.SIGINT)
        os.kill(agents["agent"], signal.SIGKILL)
        out, err = drivers["everybody"].communicate(timeout=600)
        assert drivers["everybody"].returncode == 75, out + err
        assert "stopped after step" in out and "which is saved" in out

        drivers["twice"].send_signal(signal.SIGINT)
        begun = time.monotonic()
        drivers["twice"].communicate(timeout=600)
        assert drivers["twice"].returncode == 130
        assert time.monotonic() - begun < 200, "neither the grace nor the time for saving"

        out, err = drivers["agent"].communicate(timeout=600)
        assert drivers["agent"].returncode == 1, out + err
        assert left(expected=9) == []
    finally:
        for driver in drivers.values():
            driver.kill()
            driver.wait()


def noted(folder: Path) -> list[int]:
    return [int(file.name.removeprefix("pid-")) for file in folder.glob("pid-*")]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
