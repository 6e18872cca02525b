"""Case 19: a full disk. What was saved before stays whole, training goes on or stops as configured, and the newest
checkpoint is never a broken one. Real workers, and a real small disk where this process may mount one."""

import os
import re
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from job_dirs import history, result, same, weights

from skytune.checkpoint.store import Store
from skytune.config import ComputeConfig, Device
from skytune.job import JobDir
from skytune.launch.local import LocalLauncher

SETTINGS: dict[str, Any] = {"rows": 48, "epochs": 2, "log": {"every_steps": 1, "every_seconds": 0.0}}
STEPS = 12


@pytest.fixture(scope="module")
def calm(lives: Any, place: Any) -> Path:
    """The job directory of a run that nobody disturbed."""
    job: Path = place.lay("calm", checkpoint={"every_steps": 2}, **SETTINGS)
    assert lives.live(job).code == 0
    return job


@pytest.fixture(scope="module")
def size(calm: Path, place: Any) -> int:
    """Bytes of a checkpoint."""
    found = Store.open(str(place.home / "calm-store"), calm.name).newest()
    assert found is not None and found.manifest.step == STEPS
    return int(found.manifest.bytes)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Return a maker of a disk of so many bytes."""
    if os.geteuid() != 0:
        pytest.skip("mounts a small file system, which only root may")
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(size: int) -> Path:
        words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        if subprocess.run(words, check=False).returncode:
            pytest.skip("cannot mount a tmpfs here")
        return folder

    yield mount
    subprocess.run(["umount", str(folder)], check=False)


def remount(folder: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)


def assert_calm(job: Path, calm: Path) -> None:
    assert same(weights(job), weights(calm))
    assert history(job) == history(calm)


def assert_one_whole(folder: Path, step: int) -> None:
    """The newest checkpoint is of this step and whole, and there is nothing of another one."""
    found = Store.open(str(folder.parent), folder.name).newest()
    assert found is not None and (found.manifest.step, found.skipped) == (step, ())
    assert [path.name for path in folder.iterdir() if "step-" in path.name] == [f"step-{step:08d}"]


def test_there_is_room_for_one_checkpoint_only(
    disk: Callable[[int], Path], lives: Any, place: Any, calm: Path, size: int
) -> None:
    """The first save fits, no other does (an old one is deleted only after the new one is there); the run comes to its
    end all the same. With more room the same job goes on from what was saved."""
    store = disk(int(1.6 * size))
    job: Path = place.lay(
        "room", checkpoint={"store": str(store), "every_steps": 2, "keep": 1, "async_save": False}, **SETTINGS
    )
    life = lives.live(job)
    assert life.code == 0, life.output
    told = re.findall(r"^CHECKPOINT NOT SAVED, step (\d+): .*no space is left there; make room", life.output, re.M)
    assert told == ["4", "6", "8", "10", "12"], life.output
    assert "Traceback" not in life.output
    assert result(job)["save_failed"].startswith("step 12: ")
    assert_calm(job, calm)
    assert_one_whole(store / job.name, 2)

    remount(store, 3 * size)
    (store / job.name / "finished.json").unlink(missing_ok=True)
    life = lives.live(job)
    assert life.code == 0 and "resuming from step 2 " in life.output and "NOT SAVED" not in life.output, life.output
    assert_calm(job, calm)
    assert_one_whole(store / job.name, STEPS)


def test_it_stops_where_that_is_wanted(
    disk: Callable[[int], Path], lives: Any, place: Any, calm: Path, size: int
) -> None:
    store = disk(int(1.6 * size))
    settings = {"store": str(store), "every_steps": 2, "async_save": False, "on_save_error": "stop"}
    job: Path = place.lay("stop", checkpoint=settings, **SETTINGS)
    life = lives.live(job)
    assert life.code == 1 and re.search(
        r"^checkpoint\.on_save_error=stop: step 4: .*no space is left", life.output, re.M
    )
    assert "step 6/" not in life.output
    assert_one_whole(store / job.name, 2)


def test_somebody_else_fills_the_disk_of_the_run_for_a_while(
    disk: Callable[[int], Path], lives: Any, place: Any, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything lies there: checkpoints, history, logs. The real launcher; nothing is missing at the end."""
    settings: dict[str, Any] = {**SETTINGS, "epochs": 6}  # long enough for a history of several pages
    calm: Path = place.lay("calm-too", checkpoint={"every_steps": 10}, **settings)
    assert lives.live(calm).code == 0
    home = disk(20 * size)
    monkeypatch.setattr(place, "home", home)
    stranger = {"_target_": "faults.Stranger", "path": str(home / "filler"), "fill": 5, "clear": 33}
    saves = {"store": None, "every_steps": 10, "async_save": False}
    quiet = {"_target_": "faults.Slow", "seconds": 0.0}  # instead of a test's own file on that disk
    job: Path = place.lay("filled", checkpoint=saves, callbacks={"rows": quiet, "stranger": stranger}, **settings)
    LocalLauncher().run(JobDir(job), ComputeConfig(device=Device.cpu))
    log = (job / "outputs" / "logs" / "rank-0.log").read_text()
    told = re.findall(r"CHECKPOINT NOT SAVED, step (\d+): .*no space is left", log)
    assert told == ["10", "20", "30"], log
    assert "lines are missing there until there is room again" in log
    assert result(job)["save_failed"] == "" and "checkpoint: step 36 saved" in log
    assert re.findall(r"step (\d+)/36", log) == [str(step) for step in range(1, 37)]
    assert_calm(job, calm)


def test_files_may_have_no_more_than_so_many_bytes(lives: Any, place: Any, calm: Path, size: int) -> None:
    """The same for whoever may not mount: a limit of the process (`ulimit -f`) between the sizes of two files."""
    job: Path = place.lay("limit", checkpoint={"every_steps": 6, "async_save": False}, **SETTINGS)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    server_limits = (int(0.5 * size), before[1])
    life = lives.start(job)
    try:
        resource.prlimit(life.group, resource.RLIMIT_FSIZE, server_limits)
        assert life.ended(600), life.output
    finally:
        life.kill()
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN  # Python's own, so that a write fails instead
    assert life.code == 0, life.output
    told = re.findall(r"^CHECKPOINT NOT SAVED, step (\d+): .*optimizer\.safetensors.*too large", life.output, re.M)
    assert told == ["6", "12"], life.output
    assert Store.open(str(place.home / "limit-store"), job.name).newest() is None
    assert_calm(job, calm)
