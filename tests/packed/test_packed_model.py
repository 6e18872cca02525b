"""The packed form of a model computes what the padded model computes: logits, gradients, and where training leads."""

import copy

import numpy as np
import pytest
import torch

from skytune.config import OptimizerConfig
from skytune.data.batches import TokenTable
from skytune.packed.architectures import PackedModel, why_not
from skytune.packed.graph_step import GraphStep
from skytune.packed.packing import DeviceTable
from skytune.training.schedule import build_optimizer

NONE = np.zeros(0, dtype=np.int32)


def padded_loss(model: torch.nn.Module, data: TokenTable, rows: np.ndarray) -> torch.Tensor:
    return model(**data.batch(rows)).loss


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "camembert", "distilbert"])
def test_packed_training_is_padded_training(kind, tiny, rows_of):
    """Ten AdamW steps with clipping: losses, norms and weights of the module loop with torch's own optimizer."""
    config = OptimizerConfig(lr=3e-3, weight_decay=0.1, clip_norm=0.5)
    plain, model = tiny(kind).train(), tiny(kind).train()
    assert why_not(model, NONE) == ""
    pad = int(model.config.pad_token_id)
    data = rows_of(40, pad, types=kind == "bert")
    reference = build_optimizer(config, plain)
    packed = PackedModel(model, build_optimizer(config, model), torch.float32)
    step = GraphStep(packed, DeviceTable(data, torch.device("cpu")), rows=8, clip_norm=0.5)
    random = np.random.default_rng(2)
    for number in range(10):
        rows = random.permutation(40)[: 8 if number % 3 else 5]
        expected = padded_loss(plain, data, rows)
        expected.backward()
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        reference.step()
        reference.zero_grad()
        step.rows.fill_(-1)
        step.rows[: len(rows)] = torch.from_numpy(rows)
        step.share.fill_(1 / len(rows))
        packed.arena.scalars[:3] = torch.tensor([3e-3, *packed.arena.corrections(number + 1)])
        step.run(256)
        assert step.loss.item() == pytest.approx(expected.item(), abs=1e-5)
        assert packed.arena.norm.item() == pytest.approx(norm.item(), rel=1e-4)
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-5, rtol=0, msg=name)


def test_the_optimizer_s_state_is_where_a_checkpoint_looks_for_it(tiny, rows_of):
    """Saved from the arena and loaded into torch's own AdamW over another model: the next step is the same."""
    config = OptimizerConfig(lr=3e-3)
    model, data = tiny().train(), rows_of(16)
    optimizer = build_optimizer(config, model)
    packed = PackedModel(model, optimizer, torch.float32)
    step = GraphStep(packed, DeviceTable(data, torch.device("cpu")), rows=16, clip_norm=None)
    step.rows.copy_(torch.arange(16))
    step.share.fill_(1 / 16)
    for number in range(3):
        packed.arena.scalars[:3] = torch.tensor([3e-3, *packed.arena.corrections(number + 1)])
        step.run(256)
    packed.arena.count(3)
    plain = tiny().train()
    plain.load_state_dict(model.state_dict())
    other = build_optimizer(config, plain)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    # And back: a new arena over what torch's optimizer holds.
    again = tiny().train()
    again.load_state_dict(model.state_dict())
    adopted = build_optimizer(config, again)
    adopted.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    fresh = PackedModel(again, adopted, torch.float32)
    assert fresh.arena.steps == 3
    fourth = GraphStep(fresh, DeviceTable(data, torch.device("cpu")), rows=16, clip_norm=None)
    fourth.rows.copy_(torch.arange(16))
    fourth.share.fill_(1 / 16)
    padded_loss(plain, data, np.arange(16)).backward()
    other.step()
    for one, arena in ((step, packed.arena), (fourth, fresh.arena)):
        arena.scalars[:3] = torch.tensor([3e-3, *arena.corrections(4)])
        one.run(256)
    for p, q, r in zip(model.parameters(), plain.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=0)
        assert torch.equal(p, r)


def test_half_precision_keeps_the_weights_whole(tiny, rows_of):
    """In bf16 the fp32 weights move by steps far below bf16's resolution, and the rounded copy follows them."""
    model, data = tiny().train(), rows_of(16)
    packed = PackedModel(model, build_optimizer(OptimizerConfig(lr=1e-6), model), torch.bfloat16)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    step = GraphStep(packed, DeviceTable(data, torch.device("cpu")), rows=16, clip_norm=1.0)
    step.rows.copy_(torch.arange(16))
    step.share.fill_(1 / 16)
    for number in range(5):
        packed.arena.scalars[:3] = torch.tensor([1e-6, *packed.arena.corrections(number + 1)])
        step.run(256)
    weight = model.base_model.encoder.layer[0].intermediate.dense.weight
    moved = (weight - before["bert.encoder.layer.0.intermediate.dense.weight"]).abs().max()
    assert 1e-7 < moved < 1e-5
    assert torch.equal(packed.arena.low, packed.arena.weights.to(torch.bfloat16))


def test_why_a_model_has_no_packed_form(tiny):
    assert why_not(tiny(), NONE) == ""
    frozen = tiny()
    frozen.base_model.embeddings.requires_grad_(False)
    assert "frozen" in why_not(frozen, NONE)
    relu = tiny()
    relu.config.hidden_act = "relu"
    assert "relu" in why_not(relu, NONE)
    assert "no packed form" in why_not(torch.nn.Linear(2, 2), NONE)
    padded = np.array([5, 1, 6], dtype=np.int32)
    assert why_not(tiny(), padded) == "" and "padding token" in why_not(tiny("roberta"), padded)
