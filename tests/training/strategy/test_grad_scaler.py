"""The state of loss scaling (fp16) goes from any strategy into any other, across a resume."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from skytune.config import Precision, RunConfig, UserError, from_dict
from skytune.distributed.context import DistContext
from skytune.training.strategy import Strategy
from skytune.training.strategy.deepspeed import DeepSpeed

INTERVAL = 4


class DeepSpeedScaler:
    """What DeepSpeed's `DynamicLossScaler` does in a step, with its names, without its hysteresis."""

    def __init__(self) -> None:
        self.cur_scale, self.cur_iter, self.last_overflow_iter = 2.0**16, 0, -1

    def step(self, overflow: bool) -> None:
        if overflow:
            self.cur_scale, self.last_overflow_iter = self.cur_scale / 2, self.cur_iter
        elif (self.cur_iter - self.last_overflow_iter) % INTERVAL == 0:
            self.cur_scale *= 2
        self.cur_iter += 1


def strategy(name: str) -> Strategy:
    config = from_dict(RunConfig, {"strategy": {"name": name}})
    world = DistContext(0, 1, torch.device("cpu"), Precision.fp16, Precision.fp16)
    if name == "single":
        made: Strategy = Strategy(config, world)
        assert made.scaler is not None
        made.scaler.set_growth_interval(INTERVAL)
        return made
    zero = DeepSpeed(config, world)
    zero.engine = SimpleNamespace(optimizer=SimpleNamespace(loss_scaler=DeepSpeedScaler()))
    return zero


def step(found: Strategy, overflow: bool) -> float:
    """Take a step of its scaler; return the scale after it."""
    if isinstance(found, DeepSpeed):
        scaler = found.engine.optimizer.loss_scaler
        scaler.step(overflow)
        return float(scaler.cur_scale)
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    assert found.scaler is not None
    found.scaler.scale(weight.sum() * (float("inf") if overflow else 1.0)).backward()
    found.scaler.step(optimizer)
    found.scaler.update()
    return found.scaler.get_scale()


STEPS = [False, True, False, False, False, False, False, True, False, False, False, False, False]


@pytest.mark.parametrize("after", ["single", "zero1"])
@pytest.mark.parametrize("before", ["single", "zero1"])
def test_it_goes_on_where_it_stood(before: str, after: str) -> None:
    whole = strategy(before)
    expected = [step(whole, overflow) for overflow in STEPS]
    assert len(set(expected)) == 2  # it fell and rose again
    for cut in range(len(STEPS) + 1):
        first, second = strategy(before), strategy(after)
        scales = [step(first, overflow) for overflow in STEPS[:cut]]
        second.load_scaling(first.scaling())
        assert scales + [step(second, overflow) for overflow in STEPS[cut:]] == expected, cut


@pytest.mark.parametrize("name", ["single", "zero1"])
@pytest.mark.parametrize(
    "earlier",
    [
        {"scale": 64.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 4, "_growth_tracker": 3},
        {"cur_scale": 64.0, "cur_iter": 9, "last_overflow_iter": 5},
    ],
    ids=["torch", "deepspeed"],
)
def test_what_earlier_versions_wrote_is_read(name: str, earlier: dict[str, Any]) -> None:
    found = strategy(name)
    found.load_scaling(earlier)
    assert found.scaling() == {"scale": 64.0, "steps": 3}
    assert step(found, False) == 128.0


def test_what_nobody_wrote_is_refused() -> None:
    with pytest.raises(UserError, match="loss scaling cannot be read"):
        strategy("single").load_scaling({"factor": 2.0})
