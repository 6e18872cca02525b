"""Jobs under every strategy, many in one set of processes, and a callback that looks at what each process holds."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked_workers import Lives

from skytune.config import ComputeConfig
from skytune.job import JobDir

WITNESS = '''
"""What one process holds while it trains."""
import gc
import json
from pathlib import Path

import torch


def digest(model):
    import hashlib

    whole = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        whole.update(full.detach().contiguous().numpy().tobytes())
    return whole.hexdigest()


class Witness:
    """Writes down, on every process, what it holds of weights and optimizer, and what it draws for dropout."""

    def __init__(self, folder):
        self.folder, self.seen = Path(folder), {}
        gc.collect()
        self.before = {id(o) for o in gc.get_objects() if isinstance(o, torch.optim.Optimizer)}

    def on_run_start(self, run):
        self.seen = {"first": digest(run.model), "masks": [], "module": None}

    def on_step_end(self, run):
        if run.step <= 3:
            state = torch.get_rng_state()
            self.seen["masks"].append(torch.rand(4).tolist())
            torch.set_rng_state(state)
        if run.step != run.total_steps:
            return
        live = {id(p) for p in run.model.parameters()}
        inner = [
            o
            for o in gc.get_objects()
            if isinstance(o, torch.optim.Optimizer)
            and any(id(p) in live for group in o.param_groups for p in group["params"])
        ]
        held, tensors = 0, set()
        for optimizer in inner:
            for state in optimizer.state.values():
                for value in state.values():
                    if torch.is_tensor(value) and value.ndim and id(value) not in tensors:
                        tensors.add(id(value))
                        held += (value.to_local() if hasattr(value, "to_local") else value).numel()
        self.seen |= {
            "optimizers": sorted(type(o).__name__ for o in inner),
            "state_numbers": held,
            "parameters": {
                name: [type(p).__name__, list(p.shape), list((p.to_local() if hasattr(p, "to_local") else p).shape)]
                for name, p in run.model.named_parameters()
            },
            "placements": sorted({str(getattr(p, "placements", "")) for p in run.model.parameters()}),
            "classes": sorted({type(m).__name__ for m in run.model.modules()}),
            "last": digest(run.model),
        }
        (self.folder / f"seen-{run.world.rank}.json").write_text(json.dumps(self.seen))
'''

MANY = '''
"""Several jobs, one after the other, in the same processes: starting them takes longer than such a job."""
import logging
import os
import sys
import time

import torch.distributed as dist
from accelerate.state import AcceleratorState

from skytune.job import JobDir
from skytune.training import worker
from skytune.training.trainer import run_job

size = int(os.environ["SKYTUNE_WORLD_SIZE"])
if size > 1:  # the next job uses the group again: its peers could not meet at the same address a second time
    dist.destroy_process_group = lambda *_: None
for root in ROOTS:
    jobdir = JobDir(root)
    logging.getLogger("skytune").handlers.clear()
    worker._log_to(jobdir.logs / f"rank-{os.environ.get('RANK', 0)}.log", 0)
    try:
        job = jobdir.job
        sys.path.extend(path for path in job.paths if path not in sys.path)
        AcceleratorState._reset_state(reset_partial_state=True)
        run_job(jobdir, job, started=time.time(), asked=size)
    except BaseException as error:
        worker._report(jobdir, int(os.environ.get("RANK", 0)), error)
        os._exit(1)
'''

Run = Callable[..., Any]


class ShardedUpdate:
    """A launcher for jobs that wait for each other and then run in one set of processes."""

    def __init__(self, lives: Lives, processes: int, count: int) -> None:
        self.lives, self.processes, self.jobs = lives, processes, []
        self.all_there = threading.Barrier(count, action=self._run_all)

    def run(self, job: JobDir, compute: ComputeConfig) -> None:
        self.jobs.append(job)
        self.all_there.wait(300)

    def _run_all(self) -> None:
        from skytune.launch.processes import environment

        roots = [str(job.root) for job in sorted(self.jobs, key=lambda job: job.root.name)]
        code = f"ROOTS = {roots!r}\n{MANY}"
        done = self.lives.live(Path(roots[0]), self.processes, code, **environment(self.processes, 1))
        errors = [error.traceback for job in self.jobs for error in job.read_errors().values()]
        assert done.code == 0, "\n".join([*errors, done.output[-6000:]])


@pytest.fixture
def trained(
    run_job: Run, lives: Lives, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int, dict[str, dict[str, Any]]], dict[str, Any]]:
    """Return a function that trains several configurations, for 20 steps each, on so many processes.

    What it returns by name has `job.seen` beside the outcome, unless `callbacks={}`: what every process wrote down.
    """
    modules, name = tmp_path / "modules", f"witness_{tmp_path.name.replace('-', '_')}"
    modules.mkdir()
    (modules / f"{name}.py").write_text(WITNESS)
    monkeypatch.syspath_prepend(str(modules))

    def train(processes: int, configurations: dict[str, dict[str, Any]]) -> dict[str, Any]:
        launcher = ShardedUpdate(lives, processes, len(configurations))
        monkeypatch.setattr("skytune.launch.run_job.LocalLauncher", lambda: launcher)
        found: dict[str, Any] = {}

        def one(run: str, groups: dict[str, Any]) -> None:
            folder, watched = tmp_path / f"seen-{run}-{processes}", groups.get("callbacks") != {}
            folder.mkdir()
            values: dict[str, Any] = {
                "rows": 150,
                "name": run,
                "epochs": 2,
                "max_steps": 20,
                "model": {"dropout": 0.0},
                "precision": "fp32",
                "optimizer": {"lr": 1e-3},
                "log": {"every_steps": 1},
                "batch": {"global_size": 8},
                "launch": {"num_processes": processes, "threads": 1},
                "checkpoint": {"select": "last"},
                "callbacks": {"witness": {"_target_": f"{name}.Witness", "folder": str(folder)}},
            }
            for key, value in groups.items():
                values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) and value else value
            try:
                done = run_job(**values)
                ranks = range(processes if watched else 0)
                done.job.seen = [json.loads((folder / f"seen-{rank}.json").read_text()) for rank in ranks]
                found[run] = done
            except BaseException as error:
                found[run] = error
                launcher.all_there.abort()

        threads = [threading.Thread(target=one, args=item) for item in configurations.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        errors = [done for done in found.values() if isinstance(done, BaseException)]
        # One of them ran the processes and says what happened; the others only waited for it.
        for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error
        return found

    return train


@pytest.fixture
def losses() -> Callable[[Any], list[float]]:
    """Return a function from an outcome to its losses by step."""
    return lambda done: [record["loss"] for record in done.history if record["kind"] == "step"]
