"""Modules of one's own under strategies of several processes: statistics, weights without a gradient, averages."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from skytune.config import UserError
from skytune.data.batches import TokenTable
from skytune.models import load_saved
from skytune.training.outputs import read_predictions

pytestmark = pytest.mark.usefixtures("forked")

TWO = {"num_processes": 2, "threads": 1}


def words(**args: Any) -> dict[str, Any]:
    return {"_target_": "own_models.Words", "args": args}


def test_a_sharded_batch_normalization_predicts_as_it_is_exported(run_job: Any) -> None:
    """Every process has statistics of its own rows; those of rank 0 are exported, so all must predict with them."""
    done = run_job(
        name="normed",
        strategy={"name": "fsdp"},
        model=words(normed=True),
        launch=TWO,
        max_steps=6,
        eval={"batch_size": 4},
    )
    model, table = load_saved(done.job.model, "own_models.Words"), TokenTable.open(done.job.inputs / "test")
    rows, _, logits = read_predictions(done.job.predictions("test"))
    for row, found in zip(rows, logits, strict=True):
        tensors = {name: tensor for name, tensor in table.batch(np.array([row])).items() if name != "labels"}
        with torch.no_grad():
            assert np.abs(model(**tensors)["logits"][0].numpy() - found).max() < 1e-5


@pytest.mark.parametrize(("strategy", "extra"), [("ddp", "none"), ("optimizer_sharding", "odd")])
def test_weights_that_took_no_part_are_named(run_job: Any, strategy: str, extra: str) -> None:
    """On every process, or on one alone, whose peers then wait for its gradients."""
    with pytest.raises(UserError) as error:
        run_job(name="unused", strategy={"name": strategy}, model=words(extra=extra), launch=TWO, max_steps=6)
    message = str(error.value)
    assert "\n" not in message
    assert "extra.weight, extra.bias" in message
    assert "strategy.find_unused_parameters=true" in message


def test_fsdp_counts_what_only_some_processes_used(run_job: Any) -> None:
    """As DDP does when it looks for such weights; an exchange of unlike sizes would end both processes."""
    found = []
    for strategy, unused in (("ddp", True), ("fsdp", False)):
        groups = {"strategy": {"name": strategy, "find_unused_parameters": unused}, "launch": TWO, "max_steps": 6}
        done = run_job(name=f"odd-{strategy}", model=words(extra="odd"), optimizer={"weight_decay": 0.1}, **groups)
        found.append(weights(done))
    for name, weight in found[0].items():
        np.testing.assert_allclose(found[1][name], weight, atol=1e-6, err_msg=name)


def test_averages_and_unused_weights_when_the_strategy_changes(run_job: Any, tmp_path: Path) -> None:
    """The averaged weights of one process, from sharded strategies that go on from each other's checkpoints, of a model
    of which a part never takes part: with an optimizer that keeps nothing, and so has nothing in a checkpoint."""
    kept = {"store": str(tmp_path / "store"), "every_steps": 3, "keep": 9, "select": "last"}

    def train(run: str, strategy: str, processes: int = 2, **groups: Any) -> Any:
        unused = {"find_unused_parameters": True} if strategy in ("ddp", "optimizer_sharding") else {}
        values = {"ema": {"decay": 0.9}, "launch": {"num_processes": processes, "threads": 1}, **groups}
        return run_job(
            name=run,
            strategy={"name": strategy, **unused},
            model=words(extra="none"),
            max_steps=9,
            checkpoint=kept,
            precision="fp32",
            optimizer={"name": "sgd", "lr": 0.5, "momentum": 0.0, "clip_norm": 0.2},
            **values,
        )

    alone, raw = weights(train("alone", "single", 1)), weights(train("raw", "single", 1, ema={"decay": None}))
    assert float(np.abs(alone["head.weight"] - raw["head.weight"]).max()) > 1e-3
    assert np.array_equal(alone["extra.weight"], raw["extra.weight"])
    for first, second in (("fsdp", "optimizer_sharding"), ("optimizer_sharding", "ddp"), ("ddp", "fsdp")):
        whole = train(first, first)
        (place,) = (tmp_path / "store").glob(f"{first}-*/step-00000006")
        after = train(f"on-{second}", second, resume=str(place))
        assert after.result["resumed_from"] == 6
        for done in (whole, after):
            found = weights(done)
            assert found.keys() == alone.keys()
            assert max(float(np.abs(found[name] - alone[name]).max()) for name in alone) < 1e-6


def weights(done: Any) -> dict[str, np.ndarray]:
    return load_file(done.job.model / "model.safetensors")
