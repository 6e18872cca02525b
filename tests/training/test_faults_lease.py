"""Two launches of one run at one moment: they never write together. The second one waits, and takes over from one that
died at once, from one that is silent after the expiry; one that was only frozen notices, and changes nothing any more.
Real workers, checkpoints in a folder and in a bucket."""

import hashlib
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from job_dirs import history, result, same, weights
from s3_server import S3

SETTINGS: dict[str, Any] = {
    "rows": 48,
    "epochs": 3,
    "log": {"every_steps": 1, "every_seconds": 0.0},
    "callbacks": {"hold": {"_target_": "faults.Hold"}},
}
STEPS = 18


@pytest.fixture(scope="module")
def door() -> Iterator[S3]:
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    door = S3()
    door.client.create_bucket(Bucket="leases")
    yield door
    door.server.shutdown()


@pytest.fixture(scope="module")
def two_lives(door: S3, forking: Any) -> Iterator[tuple[Any, Any]]:
    """Two servers: one serves one life at a time."""
    first = forking.within(**door.env)
    with first.twin() as second:
        yield first, second


@pytest.fixture(scope="module")
def calm(two_lives: tuple[Any, Any], place: Any) -> Path:
    """The job directory of a run that nobody disturbed."""
    job: Path = place.lay("calm", **{**SETTINGS, "callbacks": {}})
    assert two_lives[0].live(job).code == 0
    return job


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}/store" if request.param == "file" else f"s3://leases/{tmp_path.name}"


@pytest.fixture
def jobs(place: Any) -> Callable[..., tuple[Path, Path]]:
    """Return a maker of one job in two directories, as on two machines."""

    def make(url: str, lease_seconds: float) -> tuple[Path, Path]:
        name = f"run-{len(list((place.home / 'runs').iterdir()))}"
        saves = {"store": url, "every_steps": 2, "async_save": False}
        first: Path = place.lay(
            name, checkpoint=saves, launch={"timeouts": {"heartbeat": lease_seconds / 2}}, **SETTINGS
        )
        second = place.home / "other-machine" / first.name
        shutil.copytree(first, second, symlinks=True)
        return first, second

    return make


def wait_for(life: Any, pattern: str, seconds: float = 600) -> re.Match[str]:
    """Wait until a life says something."""
    until = time.monotonic() + seconds
    while not (found := re.search(pattern, life.output, re.M)):
        assert not life.ended(0.02) or re.search(pattern, life.output, re.M), life.output
        assert time.monotonic() < until, f"never said {pattern}:\n{life.output}"
    return found


def saved(life: Any) -> int:
    """Return the step that a life announced last."""
    return max(map(int, re.findall(r"^checkpoint: step (\d+) saved", life.output, re.M)), default=0)


def assert_resumed_and_calm(life: Any, job: Path, calm: Path, at_least: int) -> None:
    assert life.code == 0, life.output
    assert at_least <= result(job)["resumed_from"] < STEPS
    assert same(weights(job), weights(calm))
    assert history(job) == history(calm)


def test_the_second_waits_until_the_first_dies(two_lives: Any, jobs: Any, calm: Path, url: str, tmp_path: Path) -> None:
    """Another launch, and so a long wait; but the first one was a process of this machine, and is dead."""
    first, second = jobs(url, 1000.0)
    go_on, never = tmp_path / "go-on", tmp_path / "never"
    one = two_lives[0].start(first, SKYTUNE_LAUNCH="launch-1", SKYTUNE_TEST_HOLD=f"4={go_on},11={never}")
    two = None
    try:
        wait_for(one, r"^checkpoint: step 2 saved")
        two = two_lives[1].start(second, SKYTUNE_LAUNCH="launch-2")
        held = wait_for(two, r"is being written by the launch launch-1 \(process (\d+) on (\S+)\)")
        assert (held[1], held[2]) == (str(one.group), socket.gethostname())
        go_on.touch()
        wait_for(one, r"^checkpoint: step 8 saved")  # the first is not disturbed, the second does nothing
        assert "training" not in two.output and "resuming" not in two.output
        one.kill()
        at = saved(one)
        assert two.ended(600), two.output
    finally:
        for life in filter(None, (one, two)):
            life.kill()
    assert_resumed_and_calm(two, second, calm, at)


def test_a_later_life_of_the_same_launch_takes_over(
    two_lives: Any, jobs: Any, calm: Path, url: str, tmp_path: Path
) -> None:
    """A machine that was thought dead is still there when its launch has a new one: the old one ends."""
    first, second = jobs(url, 1000.0)
    go_on = tmp_path / "go-on"
    one = two_lives[0].start(first, SKYTUNE_LAUNCH="launch-1", SKYTUNE_TEST_HOLD=f"5={go_on}")
    two = None
    try:
        wait_for(one, r"^checkpoint: step 2 saved")
        two = two_lives[1].start(second, SKYTUNE_LAUNCH="launch-1")
        wait_for(two, "^(training|resuming)")
        go_on.touch()
        assert one.ended(600) and two.ended(600), two.output
    finally:
        for life in filter(None, (one, two)):
            life.kill()
    assert one.code == 1
    taken = r"^\S+: (the launch launch-1 on \S+|a launch that has ended since) has taken over this run; this process"
    assert re.search(taken, one.output, re.M), one.output
    assert f"step {STEPS}/" not in one.output
    assert_resumed_and_calm(two, second, calm, saved(one))


def test_a_frozen_one_is_taken_over_and_changes_nothing_any_more(
    two_lives: Any, jobs: Any, calm: Path, tmp_path: Path
) -> None:
    def tree() -> dict[str, str]:
        files = (path for path in sorted((tmp_path / "store").rglob("*")) if path.is_file())
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    first, second = jobs(f"file://{tmp_path}/store", 2.0)
    go_on = tmp_path / "go-on"
    one = two_lives[0].start(first, SKYTUNE_LAUNCH="launch-1", SKYTUNE_TEST_HOLD=f"5={go_on}")
    two = None
    try:
        wait_for(one, r"^checkpoint: step 2 saved")
        assert one.freeze()
        two = two_lives[1].start(second, SKYTUNE_LAUNCH="launch-2")
        wait_for(two, r"is being written by the launch launch-1")  # it is alive, only silent
        assert two.ended(600), two.output
        assert_resumed_and_calm(two, second, calm, saved(one))
        before = tree()
        go_on.touch()
        one.send(signal.SIGCONT)
        assert one.ended(600), one.output
    finally:
        for life in filter(None, (one, two)):
            life.kill()
    assert one.code == 1 and "has taken over this run; this process no longer writes" in one.output
    assert tree() == before


def test_frozen_in_the_middle_of_an_upload(two_lives: Any, jobs: Any, calm: Path, door: S3) -> None:
    """One file of a checkpoint was on its way; the others never follow, nor does the manifest."""
    reached, go = threading.Event(), threading.Event()

    def fault(method: str, path: str) -> None:
        if method == "PUT" and path.endswith("step-00000006/model.safetensors") and not reached.is_set():
            reached.set()
            go.wait(600)

    first, second = jobs("s3://leases/upload", 2.0)
    one, two = two_lives[0].start(first, SKYTUNE_LAUNCH="launch-1"), None
    door.fault = fault
    try:
        assert reached.wait(600), one.output
        assert one.freeze()
        go.set()
        two = two_lives[1].start(second, SKYTUNE_LAUNCH="launch-2")
        assert two.ended(600), two.output
        assert_resumed_and_calm(two, second, calm, 4)
        door.calls.clear()
        one.send(signal.SIGCONT)
        assert one.ended(600), one.output
    finally:
        go.set()
        door.fault = None
        for life in filter(None, (one, two)):
            life.kill()
    assert one.code == 1 and "has taken over this run; this process no longer writes" in one.output
    # A sign of life that was on its way when it froze may arrive: it names the lease's old version and is refused.
    written = [call for call in door.calls if call[0] in ("PUT", "POST", "DELETE")]
    assert [call for call in written if not call[1].endswith("/lease.json")] == []
