"""What is told of memory before training: counted where it can be, and of use where it does not fit."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from skytune.config import Precision, RunConfig, from_dict
from skytune.training.memory_plan import MemoryPlan, plan_memory

WORLD: Any = SimpleNamespace(size=2, precision=Precision.fp32, device=torch.device("cpu"))


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    own = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return LlamaForCausalLM(LlamaConfig(vocab_size=100, **own))


def plan(model: Any, **groups: Any) -> MemoryPlan:
    found = plan_memory(model, from_dict(RunConfig, groups), WORLD, 2, 10)
    assert found is not None
    return found


def test_weights_gradients_and_state_are_counted() -> None:
    model = llama()
    size = 4 * sum(p.numel() for p in model.parameters())
    found = plan(model)
    assert (found.weights, found.gradients, found.optimizer) == (size, size, 2 * size)
    assert plan(model, optimizer={"name": "sgd"}).optimizer == 0
    assert plan(model, strategy={"name": "fsdp"}).total < found.total / 1.5
    assert plan(model, strategy={"name": "optimizer_sharding"}).optimizer == size
    assert plan(model, strategy={"activation_checkpointing": True}).activations < found.activations
    model.model.requires_grad_(False)
    assert plan(model).gradients == 4 * model.lm_head.weight.numel() and plan(model).weights == size


def test_a_line_with_a_way_out() -> None:
    large = MemoryPlan(4e9, 4e9, 8e9, 1e9)
    assert large.line(None) == (
        "memory: about 17.00 GB a device (weights 4.00, gradients 4.00, optimizer 8.00, activations 1.00)"
    )
    assert large.line(24_000_000_000).endswith(" of 24.0 GB")
    assert large.line(16_000_000_000).endswith(
        "it will hardly fit; model.lora.rank=16, or strategy=fsdp on several devices needs less"
    )
    assert "micro_size=1" in MemoryPlan(1e9, 1e9, 2e9, 20e9).line(16_000_000_000)


def test_nothing_is_said_of_what_is_not_known() -> None:
    import torch

    assert plan_memory(torch.nn.Linear(2, 2), RunConfig(), WORLD, 1, 1) is None


def test_the_estimate_is_of_the_size_of_what_a_step_keeps() -> None:
    """Within a factor of two of what autograd saves."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    own = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 384}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, **own))
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model.model(input_ids=torch.randint(0, 50, (4, 64)))[0]
    found = sum(size for place, size in kept.items() if place not in weights)
    told = plan_memory(model, RunConfig(), WORLD, 4, 64)
    assert output.requires_grad and told is not None
    assert told.activations == pytest.approx(found, rel=1.0) and found == pytest.approx(told.activations, rel=1.0)
