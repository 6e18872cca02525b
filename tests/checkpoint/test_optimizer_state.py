"""Optimizers continue to the bit after their state went through safetensors and JSON."""

import json

import pytest
import torch
from safetensors.torch import load, save

from skytune.checkpoint.optimizer_state import flatten_optimizer, restore_optimizer
from skytune.config import UserError


class Averages(torch.optim.Optimizer):
    """Keeps float32 averages of any parameter, and things that torch's own optimizers do not have."""

    def __init__(self, params, lr):
        scale = torch.tensor(2.0, dtype=torch.float64)
        super().__init__(params, {"lr": lr, "names": ("a", ["b", None]), "scale": scale})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state.update(mean=torch.zeros_like(parameter, dtype=torch.float32), seen=0, nested={"k": [1, 2.5]})
                state["seen"] += 1
                state["mean"].lerp_(parameter.grad.float(), 0.1)
                parameter.sub_((state["mean"] * group["lr"] / state["seen"]).to(parameter.dtype))


MAKERS = {
    "adamw": lambda g: torch.optim.AdamW(g, lr=1e-2, betas=(0.8, 0.95), foreach=False),
    "adamw-fused": lambda g: torch.optim.AdamW(g, lr=1e-2, fused=True),
    "adamw-amsgrad": lambda g: torch.optim.AdamW(g, lr=1e-2, amsgrad=True),
    "adamw-tensor-lr": lambda g: torch.optim.AdamW(g, lr=torch.tensor(1e-2), fused=True),
    "sgd": lambda g: torch.optim.SGD(g, lr=1e-2),
    "sgd-momentum": lambda g: torch.optim.SGD(g, lr=1e-2, momentum=0.9, nesterov=True),
    "adagrad": lambda g: torch.optim.Adagrad(g, lr=1e-2, lr_decay=0.1),
    "own": lambda g: Averages(g, lr=1e-2),
}


def build(make, dtype=torch.float32):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1)).to(dtype)
    weights = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim == 1]
    return model, make([{"params": weights, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}])


def train(model, optimizer, first, last):
    for step in range(first, last):
        torch.manual_seed(100 + step)
        for group in optimizer.param_groups:
            if not torch.is_tensor(group["lr"]):
                group["lr"] = 1e-2 / (1 + step)
        optimizer.zero_grad()
        model(torch.randn(8, 5).to(model[0].weight.dtype)).float().square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MAKERS)
def test_training_goes_on_to_the_bit(name, dtype):
    model, optimizer = build(MAKERS[name], dtype)
    train(model, optimizer, 0, 5)
    tensors, values = flatten_optimizer(optimizer)
    # what a file does: one safetensors file, one JSON file, nothing else
    stored, values = load(save({k: v.clone().contiguous() for k, v in tensors.items()})), json.loads(json.dumps(values))
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    train(model, optimizer, 5, 12)

    other, fresh = build(MAKERS[name], dtype)
    other.load_state_dict(weights)
    restore_optimizer(fresh, stored, values)
    train(other, fresh, 5, 12)
    for (key, expected), found in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(expected, found), key
    again, _ = flatten_optimizer(fresh)
    now, _ = flatten_optimizer(optimizer)
    assert again.keys() == now.keys() and all(torch.equal(again[key], now[key]) for key in now)
    assert all(again[key].dtype == now[key].dtype for key in now)
    groups = [{k: v for k, v in g.items() if k != "params"} for g in fresh.param_groups]
    assert groups == [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]


def test_before_the_first_step_there_is_no_state():
    model, optimizer = build(MAKERS["adamw"])
    tensors, values = flatten_optimizer(optimizer)
    assert tensors == {}
    restore_optimizer(optimizer, tensors, values)
    train(model, optimizer, 0, 1)


def test_restored_tensors_are_copies():
    model, optimizer = build(MAKERS["adamw"])
    train(model, optimizer, 0, 2)
    tensors, values = flatten_optimizer(optimizer)
    kept = {name: tensor.clone() for name, tensor in tensors.items()}
    other, fresh = build(MAKERS["adamw"])
    restore_optimizer(fresh, kept, values)
    train(other, fresh, 2, 3)
    assert all(torch.equal(kept[name], tensors[name]) for name in kept)


def test_what_does_not_fit_is_refused():
    model, optimizer = build(MAKERS["adamw"])
    train(model, optimizer, 0, 1)
    tensors, values = flatten_optimizer(optimizer)
    with pytest.raises(UserError, match="of the optimizer AdamW, this run has SGD"):
        restore_optimizer(build(MAKERS["sgd"])[1], tensors, values)
    other = torch.optim.AdamW([{"params": [torch.nn.Parameter(torch.zeros(7, 4))]}])
    with pytest.raises(UserError, match=r"parameter 0 is \[7, 5\] there, \[7, 4\] here"):
        restore_optimizer(other, tensors, values)
    with pytest.raises(UserError, match=r"parameter 0 is \[7, 5\] there, None here"):
        restore_optimizer(torch.optim.AdamW([{"params": []}]), tensors, values)
    same = torch.optim.AdamW([p for group in optimizer.param_groups for p in group["params"]])
    with pytest.raises(UserError, match="parameter group"):
        restore_optimizer(same, tensors, values)
    optimizer.param_groups[0]["function"] = print
    with pytest.raises(UserError, match=r"AdamW.group.0.function: a checkpoint cannot hold a builtin"):
        flatten_optimizer(optimizer)
