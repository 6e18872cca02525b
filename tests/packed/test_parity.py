"""A packed form that is wrong is not used."""

import numpy as np
import pytest
import torch

from skytune.config import OptimizerConfig
from skytune.packed.architectures import PackedModel
from skytune.packed.graph_step import GraphStep
from skytune.packed.packing import DeviceTable
from skytune.training.schedule import build_optimizer
from skytune.training.select_step import disagreement


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def tried(request, tiny, rows_of):
    """Return (model, step, table) with dropout on."""
    model, data = tiny(dropout=0.3).train(), rows_of(12)
    packed = PackedModel(model, build_optimizer(OptimizerConfig(lr=1e-3), model), request.param)
    return model, GraphStep(packed, DeviceTable(data, torch.device("cpu")), rows=12, clip_norm=1.0), data


def test_a_right_form_agrees_and_nothing_is_touched(tried):
    model, step, data = tried
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    assert disagreement(model, step, data, np.arange(12)) == ""
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state()) and model.training
    assert all(p.grad is None for p in model.parameters()) and step.model.shapes[0].attention.rate == 0.3


@pytest.mark.parametrize("fault", ["a wrong gradient", "a wrong forward pass"])
def test_a_wrong_form_is_named(tried, fault, monkeypatch):
    model, step, data = tried
    if fault == "a wrong gradient":
        from skytune.packed import ops

        right = ops.gelu_backward
        monkeypatch.setattr(ops, "gelu_backward", lambda df, h, partial: right(df, h, partial) * 0)
        assert "gradient of" in disagreement(model, step, data, np.arange(12))
    else:
        step.model.arena.low_of(model.classifier.bias).add_(5 * torch.arange(3))
        found = disagreement(model, step, data, np.arange(12))
        # In fp32 model and packed form share their weights: a changed one changes both.
        assert ("loss is" in found) == (step.model.arena.low is not step.model.arena.weights)
