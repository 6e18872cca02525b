"""Modules of one's own under strategies of several processes: statistics, weights without a gradient, averages."""

from typing import Any

import numpy as np
import pytest
import torch

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
        name="normed", strategy={"name": "fsdp"}, model=words(normed=True), launch=TWO, max_steps=6,
        eval={"batch_size": 4},
    )  # fmt: skip
    model, table = load_saved(done.job.model), TokenTable.open(done.job.inputs / "test")
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
    said = str(error.value)
    assert "\n" not in said
    assert "extra.weight, extra.bias" in said
    assert "strategy.find_unused_parameters=true" in said
