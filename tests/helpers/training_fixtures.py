"""Fixtures of the rooms that a worker runs: the workers' session in this process, and a run that is cut short."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


class Here:
    """A launcher that needs no process."""

    def run(self, job: Any, compute: Any) -> None:
        from accelerate.state import AcceleratorState

        from skytune.training.trainer import run_job

        AcceleratorState._reset_state(reset_partial_state=True)
        run_job(job, job.job, started=time.time(), asked=1)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run jobs in this process, one after the other: starting a process takes ten times as long as a small job."""
    import torch
    from accelerate.state import AcceleratorState

    monkeypatch.setattr("skytune.launch.run_job.LocalLauncher", Here)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def kept(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return checkpoint settings: every two steps, all of them kept, in a store that outlives the run."""

    def settings(store: str = "store", **more: Any) -> dict[str, Any]:
        return {"store": str(tmp_path / store), "every_steps": 2, "keep": 99, "select": "last", **more}

    return settings


@pytest.fixture
def cut_back(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that takes away what a store has of later steps, as if the machine had died there."""

    def cut(after: int, store: str = "store") -> Path:
        (run,) = [path for path in (tmp_path / store).iterdir() if path.is_dir()]
        for folder in run.glob("step-*"):
            if int(folder.name[5:]) > after:
                shutil.rmtree(folder)
        for name in ("finished.json", "completed.json"):
            (run / name).unlink(missing_ok=True)
        return run

    return cut


@pytest.fixture(scope="session")
def forking() -> Iterator[Any]:
    """A server that forks workers, which are cheap."""
    from forked_workers import Lives

    server = Lives()
    yield server
    server.close()


@pytest.fixture(scope="module")
def lives(forking: Any) -> Any:
    """Lives of workers; a module that wants them to find something in their environment overrides this."""
    return forking


@pytest.fixture
def forked(lives: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run jobs in real worker processes that are forked: starting them anew takes ten times as long as a small job."""
    from forked_workers import Forked

    monkeypatch.setattr("skytune.launch.run_job.LocalLauncher", lambda: Forked(lives))


@pytest.fixture(scope="module")
def place(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, sentences: Callable[[int, int], list[tuple[str, int]]]
) -> Any:
    """Where job directories for `forked_workers` are laid out: 90 rows, no two alike."""
    from job_dirs import Place, distinct

    return Place(tmp_path_factory.mktemp("place"), tiny_model, distinct(sentences, 90))


@pytest.fixture(scope="module")
def s3_process() -> Iterator[dict[str, str]]:
    """Moto's S3 in a process of its own: the environment in which it is found."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("forked_workers.py")), "s3"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None and server.stdout is not None
    port = int(server.stdout.readline())
    yield {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    server.stdin.close()
    server.wait(600)
