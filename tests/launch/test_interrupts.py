"""Ctrl-C, and a launcher that is gone from one moment to the next: no worker is left."""

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
from skytune.config import ComputeConfig
from skytune.job import JobDir
from skytune.launch.local import LocalLauncher
try:
    LocalLauncher().run(JobDir(sys.argv[1]), ComputeConfig(device="cpu"))
except KeyboardInterrupt:
    print("KeyboardInterrupt came out")
    sys.exit(130)
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

    def write(name: str, pids: Path, **launch: Any) -> JobDir:
        with monkeypatch.context() as patch:
            patch.setattr("skytune.launch.jobs.LocalLauncher", Writer)
            with pytest.raises(Stop):
                run_job(
                    rows=16, validation=4, test=4, name=name, max_steps=10**6, launch=launch,
                    callbacks={"pid": {"_target_": f"{trouble}.Trouble", "folder": str(pids), "kind": "none"}},
                )  # fmt: skip
        return found.pop()

    return write


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
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
        job = written(name, pids, num_processes=count, threads=1, grace_seconds=5.0)
        drivers[name] = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(job.root)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    try:
        # Three workers and torchrun's agent.
        assert wait_for(lambda: len(list(pids.glob("pid-*"))) == 4, 90), [d.poll() for d in drivers.values()]
        time.sleep(0.5)  # in the middle of their steps
        drivers["interrupted"].send_signal(signal.SIGINT)
        drivers["killed"].kill()
        out, err = drivers["interrupted"].communicate(timeout=20)
        assert drivers["interrupted"].returncode == 130
        assert out.endswith("KeyboardInterrupt came out\n")
        assert "Traceback" not in err
        drivers["killed"].communicate(timeout=20)
        assert left(expected=4, within=8.0) == []
    finally:
        for driver in drivers.values():
            driver.kill()
            driver.wait()
