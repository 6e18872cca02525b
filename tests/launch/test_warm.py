"""Workers that are forked from a process that has imported everything."""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from skytune.common.processes import alive
from skytune.config import WorkerError
from skytune.launch import LocalLauncher
from skytune.launch.warm import WarmWorkers


@pytest.fixture(scope="module")
def workers() -> Iterator[WarmWorkers]:
    found = WarmWorkers()
    yield found
    server = found._server
    found.close()
    assert server is None or server.poll() is not None, "nothing is left behind"


def test_a_forked_worker_is_the_worker_and_the_second_starts_at_once(
    run_job: Callable[..., Any], workers: WarmWorkers, monkeypatch: Any, tmp_path: Any
) -> None:
    forked = run_job(launcher=LocalLauncher(warm=workers))
    again = run_job(launcher=LocalLauncher(warm=workers), seed=7)
    phases = again.result["phases"]
    assert phases["start_s"] < 2.0, "no import stands before it"
    monkeypatch.setenv("SKYTUNE_HOME", str(tmp_path / "elsewhere"))
    started = run_job()
    assert forked.history[-1]["metrics"] == started.history[-1]["metrics"], "the same numbers, to the bit"
    assert (forked.job.logs / "rank-0.log").read_text().count("training") >= 1


def test_what_a_worker_says_and_how_it_ended_comes_back(run_job: Callable[..., Any], workers: WarmWorkers) -> None:
    from skytune.config import UserError

    with pytest.raises(UserError, match="optimizer_that_is_not"):
        run_job(launcher=LocalLauncher(warm=workers), optimizer={"_target_": "optimizer_that_is_not.Here"})


def test_killed_workers_and_a_killed_server_are_told_and_the_next_one_starts(
    run_job: Callable[..., Any], workers: WarmWorkers, tmp_path: Any, monkeypatch: Any
) -> None:
    (tmp_path / "killing_itself.py").write_text(
        "import os, signal\nclass Ends:\n    def on_step_end(self, run): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(WorkerError, match="SIGKILL") as told:
        run_job(launcher=LocalLauncher(warm=workers), callbacks={"ends": {"_target_": "killing_itself.Ends"}})
    assert told.value.killed
    server = workers._server
    assert server is not None
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    done = run_job(launcher=LocalLauncher(warm=workers), seed=8)
    assert done.result["status"] == "completed" and workers._server is not server
    assert alive(workers._server.pid) and not psutil.Process(workers._server.pid).children()
