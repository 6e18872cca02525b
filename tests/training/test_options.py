"""The options people expect, each seen to do what it says, on the tiny model.

The workers' session runs in this process, one job after the other: starting a process takes ten times as long as such a
job. So a run must not depend on what ran before it, random numbers included.
"""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from skytune.config import ComputeConfig, UserError
from skytune.config.folders import home
from skytune.job import JobDir

OWN = '''
import json
from pathlib import Path

import torch


def jump(step, total_steps, at, high):
    """A gentle rate that explodes."""
    return high if step >= at else 1.0


def high(predictions, references):
    return {"high": max(predictions)}


class KeepEvery:
    """Keeps the weights after every step."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def on_step_end(self, run):
        from safetensors.torch import save_file

        weights = {name: tensor.detach().clone() for name, tensor in run.model.state_dict().items()}
        save_file(weights, self.folder / f"step-{run.step}.safetensors")


class Raises:
    """Fails when training starts."""

    def on_run_start(self, run):
        raise KeyError(run.extra["my_key"])


class Broken(torch.nn.Module):
    """Its loss is no number in one forward pass of training."""

    def __init__(self, num_labels, vocab_size, bad_call):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocab_size, num_labels)
        self.bad_call = bad_call

    def forward(self, input_ids, attention_mask, labels=None):
        logits = (self.embedding(input_ids) * attention_mask[..., None]).sum(1)
        if labels is None:
            return {"logits": logits}
        loss = torch.nn.functional.cross_entropy(logits, labels)
        self.bad_call -= 1
        return {"loss": loss * float("nan") if self.bad_call == 0 else loss, "logits": logits}
'''

Run = Callable[..., Any]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The module above, where workers find it."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "options_own.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    return "options_own"


class Here:
    """A launcher that needs no process."""

    def run(self, job: JobDir, compute: ComputeConfig) -> None:
        from accelerate.state import AcceleratorState

        from skytune.training.trainer import run_job

        AcceleratorState._reset_state(reset_partial_state=True)
        run_job(job, job.job, started=time.time(), asked=1)


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import torch
    from accelerate.state import AcceleratorState

    monkeypatch.setattr("skytune.launch.run_job.LocalLauncher", Here)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def runs(run_job: Run) -> Callable[..., list[Any]]:
    """Return a function that trains several configurations, one after the other."""

    def train(*configurations: dict[str, Any]) -> list[Any]:
        return [run_job(**{"name": f"run-{i}", "log": {"every_steps": 1}, **c}) for i, c in enumerate(configurations)]

    return train


def steps(done: Any) -> list[dict[str, Any]]:
    return [record for record in done.history if record["kind"] == "step"]


def losses(done: Any) -> list[float]:
    return [record["loss"] for record in steps(done)]


def validations(done: Any) -> list[int]:
    return [record["step"] for record in done.history if record["kind"] == "validation"]


def weights(done: Any) -> dict[str, np.ndarray]:
    return load_file(done.job.model / "model.safetensors")


def moved(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    """Euclidean distance between two sets of weights."""
    assert a.keys() == b.keys()
    return float(np.sqrt(sum(((a[key].astype(np.float64) - b[key]) ** 2).sum() for key in a)))


def test_seed_loader_and_bucketing(runs: Any) -> None:
    """64 rows in batches of 8, two epochs. The same seed gives the same bits, also with loader processes."""
    first, loaded, other, unsorted = runs(
        {"epochs": 2, "eval": {"every_epochs": 2}},
        {"epochs": 2, "eval": {"every_epochs": 2}, "loader": {"num_workers": 2}},
        {"epochs": 2, "seed": 43, "eval": {"every_epochs": 1}, "log": {"every_steps": 5}},
        {"epochs": 1, "batch": {"bucket_batches": 1}, "eval": {"every_epochs": 0, "every_steps": 3}},
    )
    assert (first.result["steps"], first.result["epochs"]) == (16, 2.0)
    assert losses(first) == losses(loaded)
    assert moved(weights(first), weights(loaded)) == 0
    assert [record["step"] for record in steps(other)] == [5, 10, 15, 16]  # log.every_steps, and the last one
    assert steps(other)[0]["loss"] != steps(first)[4]["loss"]
    assert validations(first) == [16]  # every second epoch
    assert validations(other) == [8, 16]  # every epoch
    assert validations(unsorted) == [3, 6, 8]  # every three steps, and at the end
    assert unsorted.result["padding_share"] > 1.5 * first.result["padding_share"] > 0


def test_limits(runs: Any) -> None:
    """`max_steps`, `limit_train_batches`, `limit_eval_batches`, `eval.batch_size`; the rows scored are reported."""
    short, limited = runs(
        {
            "max_steps": 3,
            "epochs": 50,
            "limit_eval_batches": 2,
            "eval": {"batch_size": 3},
            "test": 5,
            "schedule": {"name": "constant", "warmup_ratio": 0.5},
        },
        {
            "epochs": 3,
            "limit_train_batches": 2,
            "eval": {"every_epochs": 0},
            "optimizer": {"lr": 1e-3},
            "schedule": {"name": "cosine", "warmup_steps": 2},
        },
    )
    from skytune.training.outputs import read_predictions

    assert (short.result["steps"], short.result["train_rows"]) == (3, 24)
    assert [record["metrics"]["n_rows"] for record in short.history if record["kind"] == "validation"] == [6]
    assert read_predictions(short.job.predictions("validation"))[0].tolist() == [0, 1, 2, 3, 4, 5]
    assert read_predictions(short.job.predictions("test"))[0].tolist() == [0, 1, 2, 3, 4]  # it has no more
    assert [record["lr"] for record in steps(short)] == pytest.approx([0.0, 2.5e-5, 5e-5])  # a warmup of two steps

    assert (limited.result["steps"], limited.result["steps_per_epoch"], limited.result["train_rows"]) == (6, 2, 48)
    assert validations(limited) == [6]  # only at the end
    cosine = [0.5 * (1 + np.cos(np.pi * k / 4)) for k in range(4)]
    assert [record["lr"] for record in steps(limited)] == pytest.approx([1e-3 * f for f in [0, 0.5, *cosine]], rel=1e-9)


def test_clipping_and_momentum(runs: Any) -> None:
    """One SGD step moves the weights by the rate times the gradient's norm, or times the norm it is clipped to."""
    sgd = {"name": "sgd", "lr": 0.1, "weight_decay": 0.0, "momentum": 0.0, "clip_norm": None}
    common = {"model": {"dropout": 0.0}, "schedule": {"name": "constant"}, "checkpoint": {"select": "last"}}
    start, clipped, free, heavy = runs(
        {**common, "max_steps": 1, "optimizer": {**sgd, "lr": 1e-9}},
        {**common, "max_steps": 1, "optimizer": {**sgd, "clip_norm": 0.01}},
        {**common, "max_steps": 3, "optimizer": sgd},
        {**common, "max_steps": 3, "optimizer": {**sgd, "momentum": 0.9}},
    )
    norm = steps(clipped)[0]["grad_norm"]
    assert norm > 0.1  # before clipping
    assert moved(weights(clipped), weights(start)) == pytest.approx(0.1 * 0.01, rel=1e-3)
    assert [record["grad_norm"] for record in steps(free)] == [None] * 3
    assert losses(free)[:2] == losses(heavy)[:2]  # momentum shows from the second update on
    assert losses(free)[2] != losses(heavy)[2]
    assert moved(weights(heavy), weights(start)) > 1.2 * moved(weights(free), weights(start)) > 0.12 * norm


def test_what_learns_and_from_where(runs: Any, tiny_model: Path) -> None:
    """`model.freeze_backbone` and `model.pretrained=false`."""
    frozen, new, again, other = runs(
        {"model": {"freeze_backbone": True}, "max_steps": 4, "optimizer": {"lr": 1e-2}},
        {"model": {"pretrained": False}, "max_steps": 2},
        {"model": {"pretrained": False}, "max_steps": 2},
        {"model": {"pretrained": False}, "max_steps": 2, "seed": 1},
    )
    published = {f"bert.{name}": value for name, value in load_file(tiny_model / "model.safetensors").items()}
    after = weights(frozen)
    assert {name for name, value in published.items() if not np.array_equal(value, after[name])} == set()
    assert set(after) - set(published) == {"classifier.weight", "classifier.bias"}
    assert np.abs(after["classifier.bias"]).max() > 1e-3  # it started at 0
    assert frozen.result["trainable_parameters"] == 2 * 32 + 2 < frozen.result["parameters"]

    embedding = "bert.embeddings.word_embeddings.weight"
    assert np.abs(weights(new)[embedding] - published[embedding]).mean() > 1e-2
    assert losses(new) == losses(again)
    assert moved(weights(new), weights(again)) == 0
    assert losses(new)[0] != losses(other)[0]


def test_best_and_last_weights(runs: Any, own: str, tmp_path: Path) -> None:
    """The rate explodes after four steps, so that the last weights are not the best; every step's weights are kept."""
    kept = tmp_path / "kept"
    kept.mkdir()
    common = {
        "max_steps": 8,
        "eval": {"every_steps": 1},
        "optimizer": {"lr": 1e-3, "clip_norm": None},
        "schedule": {"_target_": f"{own}.jump", "args": {"at": 4, "high": 300.0}},
    }
    best, last, most = runs(
        {
            **common,
            "checkpoint": {"metric": "loss"},
            "callbacks": {"keep": {"_target_": f"{own}.KeepEvery", "folder": str(kept)}},
        },
        {**common, "checkpoint": {"metric": "loss", "select": "last"}},
        {**common, "checkpoint": {"metric": "loss", "mode": "max"}},
    )
    assert [record["lr"] for record in steps(best)] == pytest.approx([1e-3] * 4 + [0.3] * 4)
    measured = {r["step"]: r["metrics"]["loss"] for r in best.history if r["kind"] == "validation"}
    lowest, highest = (int(f(measured, key=measured.__getitem__)) for f in (min, max))
    assert 1 <= lowest <= 4 < highest
    assert best.result["best"] == {"step": lowest, "metric": "loss", "value": measured[lowest]}
    assert moved(weights(best), load_file(kept / f"step-{lowest}.safetensors")) == 0
    assert moved(weights(last), load_file(kept / "step-8.safetensors")) == 0
    assert moved(weights(best), weights(last)) > 1
    assert most.result["best"]["step"] == highest
    assert moved(weights(most), load_file(kept / f"step-{highest}.safetensors")) == 0
    # Predictions are the selected weights': their loss is the one that was measured then.
    from skytune.tasks.metrics import compute
    from skytune.training.outputs import read_predictions

    _, labels, logits = read_predictions(best.job.predictions("validation"))
    assert compute([], {}, logits, labels)["loss"] == pytest.approx(measured[lowest], abs=1e-9)
    assert not list(best.job.outputs.glob("best*"))


def test_overfit_profile_and_bf16(runs: Any) -> None:
    """The debug switches: validation on the train rows themselves, a trace; and bf16, which a CPU has too."""
    overfit, half = runs(
        {"rows": 8, "epochs": 60, "debug": {"overfit": True}, "optimizer": {"lr": 5e-3}, "eval": {"every_epochs": 0}},
        {"precision": "bf16", "debug": {"profile_steps": 2}, "max_steps": 5},
    )
    (record,) = (record for record in overfit.history if record["kind"] == "validation")
    assert record["metrics"]["n_rows"] == 8
    assert record["metrics"]["accuracy"] == 1.0  # learned by heart
    assert half.result["precision"] == "bf16"
    assert np.isfinite(losses(half)).all()
    assert {value.dtype for value in weights(half).values()} == {np.dtype("float32")}
    trace = json.loads((half.job.outputs / "profile" / "trace.json").read_text())
    names = {str(event.get("name")) for event in trace["traceEvents"]}
    assert len([event for event in trace["traceEvents"] if str(event.get("name")).startswith("ProfilerStep#")]) >= 2
    assert "aten::addmm" in names or "aten::linear" in names
    assert "Self CPU" in (half.job.outputs / "profile" / "operations.txt").read_text()


def test_a_loss_that_is_no_number_stops_the_run(run_job: Run, own: str) -> None:
    says = r"^the loss is nan at step 3 of 8 \(rows [\d, ]+ of the train split\)"
    with pytest.raises(UserError, match=says) as caught:
        run_job(model={"_target_": f"{own}.Broken", "args": {"bad_call": 3}})
    rows = [int(row) for row in str(caught.value).split("(rows ")[1].split(" of ")[0].split(", ")]
    assert len(set(rows)) == 8
    assert all(0 <= row < 64 for row in rows)


def test_a_callback_that_raises_is_named(run_job: Run, own: str) -> None:
    with pytest.raises(UserError, match=r"^callbacks\.mine failed in on_run_start: KeyError: 'told'$"):
        run_job(callbacks={"mine": {"_target_": f"{own}.Raises"}}, extra={"my_key": "told"})


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ({"callbacks": {"mine": {"_target_": "options_own.Nothing"}}}, "callbacks.mine._target_=options_own.Nothing"),
        ({"eval": {"extra_metrics": {"mine": {"_target_": "nowhere.f"}}}}, "extra_metrics.mine._target_=nowhere.f"),
        ({"schedule": {"_target_": "options_own.jump", "args": {"at": 1}}}, "schedule._target_=options_own.jump"),
        ({"schedule": {"warmup_steps": 8}}, "the warmup of 8 steps leaves nothing of the run's 8 steps"),
        ({"schedule": {"_target_": "options_own.Raises"}}, "schedule._target_=options_own.Raises"),
        ({"eval": {"metrics": ["accuracy", "./no/metric"]}}, "eval.metrics: ./no/metric: no such metric"),
    ],
)
def test_what_does_not_fit_is_said_before_training(run_job: Run, own: str, groups: dict[str, Any], says: str) -> None:
    """An hour of training must not end at a name that was wrong from the start."""
    with pytest.raises(UserError, match=re.escape(says)):
        run_job(**groups)
    assert not [path for path in home().glob("runs/*/outputs/history.jsonl") if path.read_text()]


def test_a_metric_to_choose_by_that_nobody_computes(run_job: Run, own: str) -> None:
    with pytest.raises(UserError, match=r"^checkpoint.metric=mine_low: the validation gave only .*, mine_high, n_r"):
        run_job(checkpoint={"metric": "mine_low"}, eval={"extra_metrics": {"mine": {"_target_": f"{own}.high"}}})


def test_a_rate_that_follows_the_batch_trains_as_that_rate_does(runs: Callable[..., list[Any]]) -> None:
    common = {"checkpoint": {"select": "last"}, "eval": {"every_epochs": 0}}
    scaled, plain, other = runs(
        {**common, "optimizer": {"lr": 1e-3}, "schedule": {"scale_lr": "linear", "scale_reference": 4}},
        {**common, "optimizer": {"lr": 2e-3}},
        {**common, "optimizer": {"lr": 1e-3}},
    )
    assert [r["lr"] for r in steps(scaled)] == [r["lr"] for r in steps(plain)] and steps(scaled)[0]["lr"] == 2e-3
    assert losses(scaled) == losses(plain) != losses(other)
