"""Averaged weights: the numbers, that training does not notice them, and that they go on exactly after a resume."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file

from skytune.checkpoint.shards import Stored
from skytune.config import ConfigError, RunConfig, from_dict
from skytune.tasks.metrics import compute
from skytune.training.callbacks.ema import Ema
from skytune.training.outputs import read_predictions

DECAY = 0.6
COMMON = {
    "log": {"every_steps": 1},
    "optimizer": {"lr": 1e-2},
    "eval": {"every_steps": 4},
    "max_steps": 14,
    "epochs": 2,
}

OWN = '''
from pathlib import Path


class KeepEvery:
    """Keeps the weights that train, before the first step and after every one."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def on_run_start(self, run):
        from safetensors.torch import save_file

        weights = {name: tensor.detach().clone() for name, tensor in run.model.state_dict().items()}
        save_file(weights, self.folder / f"step-{run.step}.safetensors")

    on_step_end = on_run_start
'''


def losses(done: Any) -> list[float]:
    return [record["loss"] for record in done.history if record["kind"] == "step"]


def weights(done: Any) -> dict[str, np.ndarray]:
    return load_file(done.job.model / "model.safetensors")


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_the_average_is_validated_selected_and_handed_on(
    run_job: Any, here: None, kept: Any, cut_back: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "ema_own.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    every = tmp_path / "every"
    every.mkdir()
    keep = {"keep": {"_target_": "ema_own.KeepEvery", "folder": str(every)}}
    raw = run_job(name="raw", checkpoint=kept("raw"), **COMMON)
    done = run_job(name="ema", checkpoint=kept("ema"), ema={"decay": DECAY}, callbacks=keep, **COMMON)

    assert losses(done) == losses(raw)  # training does not notice, dropout included
    trained = [load_file(every / f"step-{step}.safetensors") for step in range(15)]
    assert same(trained[14], weights(raw))
    average = {name: value.astype(np.float64) for name, value in trained[0].items()}
    averages = [average]
    for step in range(1, 15):
        decay = min(DECAY, (1 + step) / (10 + step))
        average = {name: decay * value + (1 - decay) * trained[step][name] for name, value in average.items()}
        averages.append(average)
    final = weights(done)
    assert max(float(np.abs(final[name] - average[name]).max()) for name in final) < 1e-6
    assert max(float(np.abs(final[name] - trained[14][name]).max()) for name in final) > 1e-3

    measured = {r["step"]: r["metrics"]["loss"] for r in done.history if r["kind"] == "validation"}
    others = {r["step"]: r["metrics"]["loss"] for r in raw.history if r["kind"] == "validation"}
    assert measured.keys() == others.keys() == {4, 8, 12, 14}
    assert all(abs(measured[step] - others[step]) > 1e-4 for step in measured)
    _, labels, logits = read_predictions(done.job.predictions("validation"))
    assert compute([], {}, logits, labels)["loss"] == pytest.approx(measured[14], abs=1e-9)

    run = cut_back(14, "ema")
    for step in (2, 8, 14):  # what a checkpoint holds: the weights that train, and the average beside them
        stored = load_file(run / f"step-{step:08d}" / "ema.safetensors")
        assert same(load_file(run / f"step-{step:08d}" / "model.safetensors"), trained[step])
        assert max(float(np.abs(stored[name] - averages[step][name]).max()) for name in stored) < 1e-6

    cut_back(6, "ema")
    again = run_job(name="ema", checkpoint=kept("ema"), ema={"decay": DECAY}, callbacks=keep, **COMMON)
    assert again.result["resumed_from"] == 6
    assert losses(again) == losses(done)
    assert same(weights(again), final)


def test_the_best_average_comes_from_its_checkpoint(run_job: Any, here: None, kept: Any, cut_back: Any) -> None:
    """The "best" is the one with the highest loss here, which is not the last one."""
    worse = {"max_steps": 12, "epochs": 2, "eval": {"every_steps": 2}, "optimizer": {"lr": 0.3}}
    chosen = kept(select="best", metric="loss", mode="max")
    done = run_job(checkpoint=chosen, ema={"decay": DECAY}, schedule={"name": "constant"}, **worse)
    best = done.result["best"]
    assert best["step"] < 12
    stored = cut_back(12) / f"step-{best['step']:08d}"
    averaged = load_file(stored / "ema.safetensors")
    assert same({name: value for name, value in weights(done).items() if name in averaged}, averaged)
    assert not same(weights(done), load_file(stored / "model.safetensors"))
    _, labels, logits = read_predictions(done.job.predictions("validation"))
    assert compute([], {}, logits, labels)["loss"] == pytest.approx(best["value"], abs=1e-9)


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.second = torch.nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.frozen = torch.nn.Linear(3, 3).requires_grad_(False)


def test_tied_and_frozen_weights_and_addresses(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Tied()
    ema = Ema(0.5, model)
    assert set(ema.tensors()) == {"first.weight", "first.bias", "second.weight", "second.bias"}
    assert len(ema.averages) == 3  # the tied one once
    before = model.first.weight.detach().clone()
    with torch.no_grad():
        model.first.weight += 1
    run: Any = SimpleNamespace(step=90)
    ema.on_step_end(run)
    address = model.first.weight.data_ptr()
    with pytest.raises(RuntimeError, match="in between"), ema.in_place():
        assert torch.allclose(model.second.weight, before + 0.5)
        raise RuntimeError("in between")
    assert torch.equal(model.first.weight, before + 1)
    assert model.first.weight.data_ptr() == address == model.second.weight.data_ptr()
    other = Ema(0.5, Tied())
    save_file({name: tensor.clone() for name, tensor in ema.tensors().items()}, tmp_path / "ema.safetensors")
    other.restore(Stored.whole(tmp_path / "ema.safetensors"))
    assert all(torch.equal(value, ema.tensors()[name]) for name, value in other.tensors().items())
    ema.hand_on()
    assert torch.allclose(model.second.weight, before + 0.5)


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.5, 1.5])
def test_a_decay_that_is_none_is_refused(decay: float) -> None:
    with pytest.raises(ConfigError, match=r"^ema\.decay="):
        from_dict(RunConfig, {"ema": {"decay": decay}})
