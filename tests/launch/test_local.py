"""The local launcher around workers that are a few lines of script: how they end, and who is to blame."""

import logging
import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skytune.config import ComputeConfig, LaunchConfig, RunConfig, UserError, WorkerError
from skytune.config.schema.compute import TimeoutsConfig
from skytune.job import Job, JobDir, RankError
from skytune.launch import LocalLauncher, local, processes
from skytune.launch import log_streaming as follow
from skytune.launch.gpus import processes_wanted, threads_each

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., JobDir]:
    """Return a function that runs a script in place of the worker; `JOB` is the job directory there."""

    def run(script: str, wanted: int = 1, grace: float = 2.0) -> JobDir:
        job = JobDir(tmp_path / "job")
        settings = LaunchConfig(num_processes=wanted, threads=1, timeouts=TimeoutsConfig(kill=grace))
        job.write_job(Job(kind="train", run_key="k", config=RunConfig(launch=settings), labels=["a", "b"]))
        head = (
            f"import json, os, signal, subprocess, sys, time\nfrom pathlib import Path\nJOB = Path({str(job.root)!r})\n"
        )
        head += "def result(size): (JOB / 'outputs' / 'result.json').write_text(json.dumps({'world_size': size}))\n"
        code = head + textwrap.dedent(script)
        monkeypatch.setattr(local, "module_command", lambda *a, **k: [sys.executable, "-c", code])
        LocalLauncher().run(job, ComputeConfig())
        return job

    return run


def test_a_worker_that_leaves_its_result(launch: Callable[..., JobDir], capfd: pytest.CaptureFixture[str]) -> None:
    job = launch("print('spoken', flush=True); print('muttered', file=sys.stderr, flush=True); result(1)")
    shown = capfd.readouterr()
    assert shown.out == "spoken\n"
    assert "muttered" not in shown.err
    record = (job.logs / "output.log").read_text()
    assert "spoken" in record and "muttered" in record


def test_output_passes_while_it_is_printed_and_as_it_is(
    launch: Callable[..., JobDir], capfd: pytest.CaptureFixture[str]
) -> None:
    launch("sys.stdout.write('\\r 10%|#\\r 20%|##'); sys.stdout.flush(); result(1)")
    assert capfd.readouterr().out == "\r 10%|#\r 20%|##"


def test_an_exit_without_a_result_is_no_success(launch: Callable[..., JobDir]) -> None:
    with pytest.raises(WorkerError, match="worker process 0 failed: it ended with exit code 0 and left no result"):
        launch("pass")


def test_the_last_lines_are_shown(launch: Callable[..., JobDir]) -> None:
    with pytest.raises(WorkerError) as caught:
        launch("for i in range(40): print('line', i, file=sys.stderr)\nsys.exit(3)")
    first, where, *shown = str(caught.value).splitlines()
    assert first == "worker process 0 failed: it ended with exit code 3 and left no result"
    assert where.endswith("rank-0.log:")
    assert shown == [f"  line {i}" for i in range(25, 40)]


def test_last_words_without_an_end_of_line_are_shown(launch: Callable[..., JobDir]) -> None:
    with pytest.raises(WorkerError, match=r"  terminate called$"):
        launch("sys.stderr.write('terminate called'); sys.stderr.flush(); os._exit(1)")


def test_rank_0s_log_becomes_log_records(launch: Callable[..., JobDir]) -> None:
    """For whoever keeps a step's log; whole lines, each once, those of the last moment too."""
    lines: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    keeper = Keeper()
    follow.records.addHandler(keeper)
    try:
        launch(
            "log = (JOB / 'outputs' / 'logs' / 'rank-0.log').open('w')\n"
            "for part in ('one\\ntw', 'o\\n', 'three\\n'): log.write(part); log.flush(); time.sleep(0.7)\n"
            "result(1)"
        )
    finally:
        follow.records.removeHandler(keeper)
    assert lines == ["one", "two", "three"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_signal_is_named(launch: Callable[..., JobDir], number: signal.Signals) -> None:
    with pytest.raises(WorkerError, match=f"it was ended by {number.name}"):
        launch(f"os.kill(os.getpid(), {int(number)})")


def test_another_world_size_than_asked_for_is_no_success(launch: Callable[..., JobDir]) -> None:
    with pytest.raises(WorkerError, match="2 worker processes were asked for, 1 trained"):
        launch("result(1)", wanted=2)


def test_a_worker_that_does_not_end_after_its_result(
    launch: Callable[..., JobDir], caplog: pytest.LogCaptureFixture
) -> None:
    start = time.monotonic()
    launch("result(1); signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)", grace=0.5)
    assert time.monotonic() - start < 300


def test_a_worker_that_closes_its_output_and_lives_on(launch: Callable[..., JobDir]) -> None:
    start = time.monotonic()
    launch("os.close(1); os.close(2); time.sleep(0.5); result(1); os._exit(0)")
    assert time.monotonic() - start < 300


def test_a_child_that_outlives_the_worker_is_ended(launch: Callable[..., JobDir], tmp_path: Path) -> None:
    start = time.monotonic()
    launch("child = subprocess.Popen(['sleep', '600']); (JOB / 'child').write_text(str(child.pid)); result(1)")
    assert time.monotonic() - start < 300
    pid = int((tmp_path / "job" / "child").read_text())
    assert not processes.group_alive(os.getpgid(pid) if Path(f"/proc/{pid}").exists() else pid)


def test_one_that_ignores_the_request_is_killed(launch: Callable[..., JobDir], tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(WorkerError):
        launch(
            "stubborn = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);'\n"
            "stubborn += 'print(1, flush=True); time.sleep(600)'\n"
            "child = subprocess.Popen([sys.executable, '-c', stubborn], stdout=subprocess.PIPE)\n"
            "child.stdout.readline()\n"
            "(JOB / 'child').write_text(str(child.pid))\n"
            "sys.exit(1)",
            grace=0.5,
        )
    assert time.monotonic() - start < 300
    pid = int((tmp_path / "job" / "child").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
        raise (
            ProcessLookupError
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            else OSError
        )


REPORT = """
============================================================
skytune.training.worker FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-01_00:00:00
  host      : here
  rank      : 1 (local_rank: 1)
  exitcode  : {one} (pid: 12)
  error_file: <N/A>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : here
  rank      : 0 (local_rank: 0)
  exitcode  : {zero} (pid: 11)
  error_file: <N/A>
============================================================
"""


@pytest.mark.parametrize(
    ("zero", "one", "errors", "blamed"),
    [
        (1, 1, {0: 2.0, 1: 1.0}, "worker process 1 failed: RuntimeError: of rank 1"),
        (1, 1, {0: 1.0, 1: 2.0}, "worker process 0 failed: RuntimeError: of rank 0"),
        (1, -9, {0: 1.0}, "worker process 1 failed: it was ended by SIGKILL"),
        (1, -15, {0: 1.0}, "worker process 0 failed: RuntimeError: of rank 0"),
        (-11, -15, {}, "worker process 0 failed: it was ended by SIGSEGV"),
        (7, -15, {}, "worker process 0 failed: it ended with exit code 7"),
    ],
)
def test_who_is_to_blame(tmp_path: Path, zero: int, one: int, errors: dict[int, float], blamed: str) -> None:
    """Ranks that lose a peer fail as well, a moment later; torchrun may see all of it at once."""
    job = JobDir(tmp_path)
    for rank, at in errors.items():
        job.write_error(rank, RankError(type="RuntimeError", message=f"of rank {rank}\nmore", user=False, time=at))
    message = str(local.failure(job, 1, ["a line that says rank : 5", *REPORT.format(zero=zero, one=one).splitlines()]))
    assert message.startswith(blamed)


def test_a_user_error_has_no_log(tmp_path: Path) -> None:
    job = JobDir(tmp_path)
    job.write_error(1, RankError(type="UserError", message="data.label: no such column", user=True, time=1.0))
    found = local.failure(job, 1, ["much noise"])
    assert type(found) is UserError
    assert str(found) == "data.label: no such column"


def test_the_workers_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "ACCELERATE_MIXED_PRECISION",
        "FSDP_VERSION",
        "RANK",
        "WORLD_SIZE",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
    ):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT / "src")]))
    monkeypatch.setenv("MY_OWN", "kept")
    env = processes.environment(2, 3)
    assert not {
        "ACCELERATE_MIXED_PRECISION",
        "FSDP_VERSION",
        "RANK",
        "WORLD_SIZE",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
    } & set(env)
    assert (env["SKYTUNE_WORLD_SIZE"], env["OMP_NUM_THREADS"], env["MY_OWN"]) == ("2", "3", "kept")
    assert env["PYTHONPATH"] == str(tmp_path)  # the package's own folder comes last, by another way
    assert os.environ["RANK"] == "7"  # ours stays


@pytest.mark.parametrize(
    ("asked", "device", "gpus", "wanted"),
    [
        ("auto", "auto", 4, 4),
        ("auto", "auto", 0, 1),
        ("auto", "cpu", 4, 1),
        ("auto", "mps", 1, 1),
        (2, "cpu", 0, 2),
        (3, "auto", 1, 3),
    ],
)
def test_how_many_processes(monkeypatch: pytest.MonkeyPatch, asked: Any, device: Any, gpus: int, wanted: int) -> None:
    monkeypatch.setattr("skytune.launch.gpus.count_gpus", lambda: gpus)
    assert processes_wanted(ComputeConfig(device=device), LaunchConfig(num_processes=asked)) == wanted


def test_threads_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert threads_each(LaunchConfig(), 1) == 8
    assert threads_each(LaunchConfig(), 3) == 2
    assert threads_each(LaunchConfig(), 16) == 1
    assert threads_each(LaunchConfig(threads=5), 3) == 5


@pytest.mark.parametrize(
    ("load", "given", "policy"),
    [
        (0.4, None, None),
        (3.9, None, None),
        (4.0, None, "PASSIVE"),
        (9.0, "ACTIVE", "ACTIVE"),
    ],
)
def test_threads_spin_only_where_the_cores_are_theirs(
    monkeypatch: pytest.MonkeyPatch, load: float, given: str | None, policy: str | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if given:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)
    assert processes.environment(1, 8).get("OMP_WAIT_POLICY") == policy
