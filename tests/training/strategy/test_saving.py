"""Sharded checkpoints and exports: pieces from every process, whole again on any number of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from skytune.config import UserError
from skytune.models import load_saved
from skytune.training.outputs import read_predictions
from skytune.training.results import check_whole_model, shapes_of

TrainResult = Callable[[int, dict[str, dict[str, Any]]], dict[str, Any]]


def strategy(name: str, **groups: Any) -> dict[str, Any]:
    return {"strategy": {"name": name}, "callbacks": {}, **groups}


@pytest.mark.slow
def test_saved_on_two_goes_on_on_one_and_on_four(
    trained: TrainResult, losses: Callable[[Any], list[float]], tmp_path: Path, tokenized: Callable[..., Any]
) -> None:
    kept = {"store": str(tmp_path / "store"), "every_steps": 10, "keep": 9, "select": "last"}
    names = {"fsdp": "fsdp", "optimizer": "optimizer_sharding", "ddp": "ddp"}
    two = trained(2, {run: strategy(name, checkpoint=kept) for run, name in names.items()})
    place = {run: next((tmp_path / "store").glob(f"{run}-*")) / "step-00000010" for run in two}
    first, second = "-rank-00000-of-00002", "-rank-00001-of-00002"
    files(place["fsdp"], [f"model{first}", f"model{second}"], [f"optimizer{first}", f"optimizer{second}"])
    files(place["optimizer"], [f"model{first}"], [f"optimizer{first}", f"optimizer{second}"])
    files(place["ddp"], ["model"], ["optimizer"])

    def again(name: str, source: str) -> dict[str, Any]:
        return strategy(name, resume=str(place[source]))

    one = trained(
        1,
        {
            "single-fsdp": again("single", "fsdp"),
            "single-optimizer": again("single", "optimizer"),
            "fsdp-fsdp": again("fsdp", "fsdp"),
        },
    )
    four = trained(
        4,
        {
            "fsdp-fsdp": again("fsdp", "fsdp"),
            "optimizer-fsdp": again("optimizer_sharding", "fsdp"),
            "fsdp-ddp": again("fsdp", "ddp"),
            "optimizer-optimizer": again("optimizer_sharding", "optimizer"),
        },
    )
    expected, weights = losses(two["ddp"]), load_file(two["ddp"].job.model / "model.safetensors")
    for runs in (two, one, four):
        for run, done in runs.items():
            assert done.result["resumed_from"] == (None if runs is two else 10), run
            assert done.result["save_failed"] == "", run
            assert np.abs(np.array(losses(done)) - np.array(expected)).max() <= 1e-5, run
            found = load_file(done.job.model / "model.safetensors")
            assert max(float(np.abs(found[key] - weights[key]).max()) for key in weights) <= 5e-5, run
    exported(two["fsdp"], tokenized)


def files(folder: Path, model: list[str], optimizer: list[str]) -> None:
    """Every process wrote what it alone held, as safetensors, and nothing there is a pickle."""
    tensors = {f"{name}.safetensors" for name in (*model, *optimizer)}
    documents = {"optimizer.json", "history.json", "manifest.json", *(["shards.json"] if len(optimizer) > 1 else [])}
    assert {path.name for path in folder.iterdir()} == tensors | documents
    for names in (model, optimizer):
        sizes = [(folder / f"{name}.safetensors").stat().st_size for name in names]
        assert max(sizes) < sum(sizes) * 0.75 or len(names) == 1


def exported(done: Any, tokenized: Callable[..., Any]) -> None:
    """Case 22: the names and shapes of the base model, nothing empty, and the logits that training had."""
    model = load_saved(done.job.model)
    found = load_file(done.job.model / "model.safetensors")
    assert {name: list(value.shape) for name, value in found.items()} == {
        name: list(value.shape) for name, value in model.state_dict().items()
    }
    assert all(value.size for value in found.values())
    rows, _, logits = read_predictions(done.job.predictions("test"))
    split = tokenized(16, 2)
    with torch.no_grad():
        for row in rows[:4]:
            alone = model(input_ids=split[int(row)]["input_ids"].long()[None]).logits[0].numpy()
            assert np.abs(alone - logits[int(row)]).max() < 1e-5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.__delattr__("bias"), "bias is missing"),
        (lambda m: setattr(m, "bias", torch.nn.Parameter(torch.empty(0))), r"bias is empty: \[0\] instead of \[3\]"),
        (lambda m: setattr(m, "weight", torch.nn.Parameter(torch.zeros(2, 4))), r"weight is a shard: \[2, 4\]"),
        (lambda m: m.to("meta"), "bias has no memory"),
        (lambda m: m.register_buffer("more", torch.zeros(1)), "more is not in the model"),
    ],
    ids=["missing", "empty", "shard", "meta", "more"],
)
def test_an_export_that_is_not_whole_is_refused(change: Callable[[Any], None], message: str) -> None:
    model = torch.nn.Linear(4, 3)
    shapes = shapes_of(model)
    check_whole_model(model, shapes)
    change(model)
    with pytest.raises(UserError, match=f"not whole, so nothing was written: {message}"):
        check_whole_model(model, shapes)


@pytest.mark.slow
def test_one_seed_on_two_processes(trained: TrainResult) -> None:
    """Case 23: equal initial weights, different dropout, and the same hash at the end when it is done again."""
    settings = {"model": {"dropout": 0.1}, "max_steps": 6}
    runs = {
        f"{name}-{time}": {"strategy": {"name": name}, **settings} for name in ("ddp", "fsdp") for time in ("a", "b")
    }
    done = trained(2, runs)
    starts = {seen["first"] for found in done.values() for seen in found.job.seen}
    assert len(starts) == 1
    for name in ("ddp", "fsdp"):
        first, second = done[f"{name}-a"].job.seen, done[f"{name}-b"].job.seen
        assert first[0]["masks"] != first[1]["masks"]
        assert first[0]["masks"][0] != first[0]["masks"][1]
        assert [seen["masks"] for seen in first] == [seen["masks"] for seen in second]
        assert len({seen["last"] for seen in (*first, *second)}) == 1
        assert first[0]["last"] != first[0]["first"]


def test_processes_skip_a_save_together_while_one_still_writes(forked: None, run_job: Any, tmp_path: Path) -> None:
    """A process that skipped alone would keep the others waiting for its part; none that skipped would hold all up."""
    kept = {"store": str(tmp_path / "store"), "every_steps": 2, "keep": 9, "stall_seconds": 0.0, "select": "last"}
    done = run_job(
        name="clogged",
        strategy={"name": "fsdp"},
        launch={"num_processes": 2},
        max_steps=8,
        checkpoint=kept,
        eval={"every_epochs": 0},
        callbacks={"clog": {"_target_": "faults.Clogged", "rank": 1, "seconds": 10.0}},
    )
    (run,) = (tmp_path / "store").glob("clogged-*")
    assert sorted(path.parent.name for path in run.glob("*/manifest.json")) == ["step-00000002", "step-00000008"]
    assert done.result["save_failed"] == ""
    log = (done.job.logs / "rank-0.log").read_text()
    assert "step 4 skipped" in log and "step 6 skipped" in log
