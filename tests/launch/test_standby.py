"""A worker that imports its libraries before there is a job."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from skytune.common.exit_codes import EXIT_INTERRUPTED, EXIT_PREEMPTED
from skytune.common.processes import alive
from skytune.config import RunConfig, UserError, from_dict
from skytune.launch import standby


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """As the command has it: torch's compiler, once imported here, would set this by itself."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    yield
    standby.end()


def begun(**groups: Any) -> "subprocess.Popen[bytes] | None":
    values = {"compute": {"device": "cpu"}, "launch": {"num_processes": 1, "threads": 1}}  # as `run_job` has them
    standby.begin(from_dict(RunConfig, values | groups))
    return standby._waiting


def imported(child: "subprocess.Popen[bytes]") -> None:
    """Wait until it has imported torch's library and waits for its job."""
    while not any("libtorch" in place.path for place in psutil.Process(child.pid).memory_maps()):
        time.sleep(0.05)


@pytest.mark.parametrize("early", [True, False])
def test_it_is_the_worker_of_the_job_that_comes(
    run_job: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, early: bool
) -> None:
    """Whether the job is there before its libraries are, or after."""
    child = begun()
    assert child is not None
    if not early:
        imported(child)
    (tmp_path / "witness.py").write_text(
        "import os, sys\nclass Witness:\n    def on_run_start(self, run):\n"
        "        print('process', os.getpid(), os.environ['ZENML_SAID_LATER'], repr(sys.stdin.read()))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ZENML_SAID_LATER", "heard")
    done = run_job(callbacks={"witness": {"_target_": "witness.Witness"}})
    assert done.result["status"] == "completed"
    assert f"process {child.pid} heard ''" in (done.job.logs / "output.log").read_text()
    assert child.poll() == 0 and standby._waiting is None
    if early:
        again = run_job(callbacks={"witness": {"_target_": "witness.Witness"}}, name="again")
        assert again.history[-1]["metrics"] == done.history[-1]["metrics"], "started by itself: the same, to the bit"
        assert f"process {child.pid}" not in (again.job.logs / "output.log").read_text()


def test_what_it_says_and_how_it_ended_comes_back(run_job: Callable[..., Any]) -> None:
    assert begun() is not None
    with pytest.raises(UserError, match="optimizer_that_is_not"):
        run_job(optimizer={"_target_": "optimizer_that_is_not.Here"})


def test_libraries_that_cannot_be_imported_are_told_as_ever(
    run_job: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "accelerate.py").write_text("raise ImportError('this accelerate is broken')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    told = []
    for ready in (True, False):
        if ready:
            assert begun() is not None
        with pytest.raises(Exception, match="this accelerate is broken") as error:
            run_job()
        told.append(str(error.value).splitlines()[0])
    assert told[0] == told[1]


@pytest.mark.parametrize("before", [None, "https://one.example"])
@pytest.mark.parametrize("name", ["HF_ENDPOINT", "OMP_NUM_THREADS"])
def test_one_that_imported_under_other_variables_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, name: str, before: str | None
) -> None:
    """Libraries read them when they are imported; ZenML sets those of a stack when the step begins."""
    if before:
        monkeypatch.setenv(name, before)
    child = begun()
    assert child is not None
    assert standby.take("/nowhere", {**standby._given, name: "another"}) is None
    assert child.poll() is not None
    child = begun()
    assert child is not None
    assert standby.take("/nowhere", {key: value for key, value in standby._given.items() if key != "PATH"}) is None
    assert child.poll() is not None


def test_one_that_was_killed_is_not_missed(run_job: Callable[..., Any]) -> None:
    child = begun()
    assert child is not None
    child.kill()
    child.wait()
    assert run_job().result["status"] == "completed"


def test_who_has_no_use_for_it_ends_it() -> None:
    child = begun()
    assert child is not None
    standby.end()
    assert child.poll() is not None and standby._waiting is None
    standby.end()


def test_it_does_not_outlive_a_command_that_was_killed() -> None:
    code = (
        "import os, sys\nfrom skytune.config import RunConfig, from_dict\nfrom skytune.launch import standby\n"
        "standby.begin(from_dict(RunConfig, {'compute': {'device': 'cpu'}}))\n"
        "print(standby._waiting.pid, flush=True)\nos.kill(os.getpid(), 9)"
    )
    told = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    worker = int(told.stdout)
    while alive(worker):
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_ended_takes_it_along(tmp_path: Path, number: signal.Signals) -> None:
    env = {**os.environ, "SKYTUNE_HOME": str(tmp_path / "home"), "ZENML_CONFIG_PATH": str(tmp_path / "zenml")}
    words = [sys.executable, str(Path(__file__).parents[2] / "src" / "run.py"), "compute=cpu", "max_steps=1"]
    command = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    found: list[psutil.Process] = []
    while command.poll() is None and not found:
        with contextlib.suppress(psutil.NoSuchProcess):  # others come and go
            found = [child for child in psutil.Process(command.pid).children() if "--standby" in child.cmdline()]
        time.sleep(0.01)
    command.send_signal(number)
    told, _ = command.communicate(timeout=120)
    assert found and not found[0].is_running(), told
    assert command.returncode in (EXIT_INTERRUPTED, EXIT_PREEMPTED) and "Traceback" not in told, told


@pytest.mark.parametrize(
    "groups",
    [
        {"plugins": ["mine.py"]},
        {"launch": {"num_processes": 2}},
        {"compute": {"device": "cpu", "instance_type": "g5.xlarge"}},
        {"launch": {"nodes": 2, "hosts": ["other"]}},
        {"pipeline": "search"},
        {"pipeline": "data"},
    ],
)
def test_none_is_started_where_it_would_not_be_the_worker(groups: dict[str, Any]) -> None:
    assert begun(**groups) is None


def test_none_is_started_for_a_command_that_was_given_before(
    run_job: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its training comes out of ZenML's cache, unless that is off."""
    monkeypatch.setenv("SKYTUNE_HOME", str(tmp_path))
    assert begun() is not None
    standby.end()  # nothing was trained
    assert begun() is not None
    run_job()
    assert begun() is None
    assert begun(cache=False) is not None
    standby.end()
    assert begun(seed=7) is not None
    standby.end()
    (tmp_path / "standby.json").write_text("no json")
    assert begun() is not None


def test_what_is_not_installed_is_told_by_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of another kind than NVIDIA's is counted by torch, which who trains elsewhere may not have."""

    def missing(*_: Any) -> int:
        raise ModuleNotFoundError("No module named 'torch'")

    monkeypatch.setattr(standby, "processes_wanted", missing)
    assert begun() is None


def test_one_is_enough() -> None:
    first = begun()
    assert first is not None and begun() is first
    assert os.getpgid(first.pid) == first.pid, "Ctrl-C on the terminal reaches the command alone"
