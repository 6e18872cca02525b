"""Helpers of the launch room: modules of the user's own for workers, and what is left of their processes."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TROUBLE = '''
"""Callbacks that do harm on one rank, and a model that does."""
import json
import os
import signal
import threading
import time
from pathlib import Path

import torch


def note_pid(folder):
    agent = {os.getppid()} - {int(os.environ["SKYTUNE_LAUNCHER_PID"])}  # torchrun's, where there is one
    for pid in {os.getpid(), *agent}:
        (Path(folder) / f"pid-{pid}").write_text(str(pid))


class Witness:
    """Writes down what this worker was given."""

    def __init__(self, folder, nothing=None, count=None, items=None, deep=None, config=None):
        self.folder = folder
        self.given = {"nothing": nothing, "count": count, "items": items, "deep": deep}
        self.config = config

    def on_run_start(self, run):
        import datasets
        import evaluate
        import psutil

        listening = [
            place.laddr.ip
            for process in (psutil.Process(), psutil.Process().parent())  # torchrun's agent, where there is one
            for place in process.net_connections("inet")
            if place.status == psutil.CONN_LISTEN
        ]
        note_pid(self.folder)
        seen = {
            **self.given,
            "extra": run.extra,
            "same_config": self.config is run.config,
            "max_steps": run.config.max_steps,
            "listening": listening,
            "rank": run.world.rank,
            "size": run.world.size,
            "precision": run.world.precision.value,
            "evaluate": evaluate.__file__,
            "datasets": datasets.__file__,
            "threads": torch.get_num_threads(),
            "environment": {k: v for k, v in os.environ.items() if k.startswith(("ACCELERATE_", "FSDP_", "MASTER_"))},
        }
        (Path(self.folder) / f"seen-{run.world.rank}.json").write_text(json.dumps(seen))
        print(f"printed by rank {run.world.rank}")

    def on_step_end(self, run):
        import multiprocessing

        for child in multiprocessing.active_children():
            (Path(self.folder) / f"pid-{child.pid}").write_text(str(child.pid))


class Trouble:
    """At its step, on its rank: `kill`s its process, leaves it unable to exit (`linger`) or to go on (`sleep`); or does
    nothing (`none`)."""

    def __init__(self, folder, kind, rank=0, step=2):
        self.folder, self.kind, self.rank, self.step = folder, kind, rank, step

    def on_run_start(self, run):
        note_pid(self.folder)

    def on_step_end(self, run):
        if run.world.rank != self.rank or run.step != self.step:
            return
        print(f"trouble ahead on rank {self.rank}", flush=True)
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == "sleep":
            time.sleep(1000)
        elif self.kind == "linger":
            threading.Thread(target=time.sleep, args=(1000,)).start()


class Fragile(torch.nn.Module):
    """A classifier whose forward fails on one rank, after some calls."""

    def __init__(self, num_labels, vocab_size, rank=1, calls=2):
        super().__init__()
        self.embedding = torch.nn.EmbeddingBag(vocab_size, num_labels)
        self.rank, self.calls = rank, calls

    def forward(self, input_ids, attention_mask=None, labels=None):
        self.calls -= self.training
        if self.training and self.calls == 0 and int(os.environ.get("RANK", "0")) == self.rank:
            raise RuntimeError("the forward pass broke\\nin a way of two lines")
        logits = self.embedding(input_ids)
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}
'''


@pytest.fixture
def trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The module above, where workers find it (a worker is told this process's path)."""
    folder, name = tmp_path / "modules", f"trouble_{tmp_path.name.replace('-', '_')}"
    folder.mkdir()
    (folder / f"{name}.py").write_text(TROUBLE)
    monkeypatch.syspath_prepend(str(folder))
    return name


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Path]:
    """A folder in which workers leave their ids; whatever is left of them at the end is ended."""
    folder = tmp_path / "pids"
    folder.mkdir()
    yield folder
    for pid in noted(folder):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def noted(folder: Path) -> list[int]:
    return [int(file.name.removeprefix("pid-")) for file in folder.glob("pid-*")]


def running(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return not Path("/proc/self").exists()


@pytest.fixture
def left(pids: Path) -> Callable[..., list[int]]:
    """Return a function that waits until the noted processes are gone, and returns those that are not."""

    def wait(expected: int, within: float = 120.0) -> list[int]:
        found = noted(pids)
        assert len(found) >= expected, f"{len(found)} worker processes wrote their ids down, not {expected}"
        until = time.monotonic() + within
        while time.monotonic() < until and any(map(running, found)):
            time.sleep(0.05)
        return [pid for pid in found if running(pid)]

    return wait
