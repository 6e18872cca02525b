"""DDP's buckets are laid out before the first step."""

import torch

from skytune.training.strategy.ddp import _lay_out


class Wrapped(torch.nn.Module):
    """DDP's outside, with one GPU a process: it moves inputs to the device, and fails where there are none."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.module(*(inputs[0], *inputs[1:]))


def test_every_weight_has_its_gradient_once_the_last_first_and_nothing_is_left() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2).bfloat16())
    model[0].bias.requires_grad = False
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    came: list[str] = []
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            weight.register_post_accumulate_grad_hook(lambda _, name=name: came.append(name))
    ddp = Wrapped(model)
    _lay_out(ddp)  # type: ignore[arg-type]
    assert came == ["1.bias", "1.weight", "0.weight"]
    assert ddp.module is model and all(weight.grad is None for weight in model.parameters())
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
