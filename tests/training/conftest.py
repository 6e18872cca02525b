"""What tests of the training room share: the workers' session in this process, and a run that is cut short."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


class Here:
    """A launcher that needs no process."""

    def run(self, job: Any, compute: Any) -> None:
        from accelerate.state import AcceleratorState

        from skytune.training.session import run_job

        AcceleratorState._reset_state(reset_partial_state=True)
        run_job(job, job.read_job(), started=time.time(), asked=1)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run jobs in this process, one after the other: starting a process takes ten times as long as a small job."""
    import torch
    from accelerate.state import AcceleratorState

    monkeypatch.setattr("skytune.launch.jobs.LocalLauncher", Here)
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
