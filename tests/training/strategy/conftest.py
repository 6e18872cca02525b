"""Jobs under every strategy, and a callback that looks at what each process really holds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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

    def on_run_start(self, run):
        self.seen = {"first": digest(run.model), "masks": []}

    def on_step_end(self, run):
        if run.step <= 3:
            state = torch.get_rng_state()
            self.seen["masks"].append(torch.rand(4).tolist())
            torch.set_rng_state(state)
        if run.step != run.total_steps:
            return
        inner = [o for o in gc.get_objects() if isinstance(o, torch.optim.Optimizer)]
        held = 0
        tensors = set()
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

Run = Callable[..., Any]


@pytest.fixture
def witnessed(run_job: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that trains for 20 steps; `seen` of what it returns is what every process wrote down."""
    modules, name = tmp_path / "modules", f"witness_{tmp_path.name.replace('-', '_')}"
    modules.mkdir()
    (modules / f"{name}.py").write_text(WITNESS)
    monkeypatch.syspath_prepend(str(modules))

    def train(name_of_run: str, strategy: dict[str, Any] | str, processes: int = 2, **groups: Any) -> Any:
        folder = tmp_path / f"seen-{name_of_run}"
        folder.mkdir()
        values: dict[str, Any] = {
            "rows": 150, "name": name_of_run, "epochs": 2, "max_steps": 20, "model": {"dropout": 0.0},
            "precision": "fp32",
            "optimizer": {"lr": 1e-3}, "log": {"every_steps": 1}, "batch": {"global_size": 8},
            "launch": {"num_processes": processes, "threads": 1}, "checkpoint": {"select": "last"},
            "strategy": {"name": strategy} if isinstance(strategy, str) else strategy,
            "callbacks": {"witness": {"_target_": f"{name}.Witness", "folder": str(folder)}},
        }  # fmt: skip
        for key, value in groups.items():
            values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
        done = run_job(**values)
        done.job.seen = [json.loads((folder / f"seen-{rank}.json").read_text()) for rank in range(processes)]
        return done

    return train


def losses(done: Any) -> list[float]:
    """Return the losses by step."""
    return [record["loss"] for record in done.history if record["kind"] == "step"]
