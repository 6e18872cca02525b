"""The learning rate is a function of the optimizer step; its shapes are those people know from transformers."""

from typing import Any

import pytest
import torch

from skytune.config import ConfigError, OptimizerConfig, ScaleLr, ScheduleConfig, ScheduleName
from skytune.training.schedule import build_optimizer, factor, parameter_groups, set_rate


@pytest.mark.parametrize("name", list(ScheduleName))
@pytest.mark.parametrize("warmup", [0, 10])
def test_shapes_are_those_of_transformers(name: ScheduleName, warmup: int) -> None:
    from transformers import get_scheduler

    reference = {"constant": "constant_with_warmup"}.get(name.value, name.value)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = get_scheduler(reference, optimizer, num_warmup_steps=warmup, num_training_steps=100)
    ours = factor(ScheduleConfig(name=name, warmup_steps=warmup), 100)
    for step in range(100):
        assert ours(step) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12), step
        optimizer.step()
        theirs.step()


def test_half_way_down_at_step_50_of_100() -> None:
    assert factor(ScheduleConfig(), 100)(50) == 0.5


def test_warmup_ratio_counts_optimizer_steps() -> None:
    rate = factor(ScheduleConfig(warmup_ratio=0.1), 100)
    assert [rate(step) for step in (0, 5, 10)] == [0.0, 0.5, 1.0]


def test_a_warmup_that_never_ends_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^schedule: the warmup of 20 steps leaves nothing of the run's 20 steps$"):
        factor(ScheduleConfig(warmup_steps=20), 20)


def test_biases_and_norms_do_not_decay() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    decayed, rest = parameter_groups(model, 0.1)
    assert [p.shape for p in decayed["params"]] == [(4, 3)]
    assert decayed["weight_decay"] == 0.1
    assert len(rest["params"]) == 3 and rest["weight_decay"] == 0.0


def test_frozen_model_is_refused() -> None:
    model = torch.nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(ConfigError, match="no parameter is trainable"):
        build_optimizer(OptimizerConfig(), model)


def test_own_optimizer_gets_its_arguments() -> None:
    config = OptimizerConfig(_target_="torch.optim.Adagrad", args={"lr_decay": 0.5}, lr=0.25)
    optimizer = build_optimizer(config, torch.nn.Linear(2, 2))
    assert type(optimizer) is torch.optim.Adagrad
    assert optimizer.defaults["lr_decay"] == 0.5 and optimizer.defaults["lr"] == 0.25


def test_rates_of_groups_keep_their_proportion() -> None:
    weights: list[Any] = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": weights[:1], "lr": 0.1}, {"params": weights[1:], "lr": 0.2}])
    set_rate(optimizer, 0.05)
    set_rate(optimizer, 0.01)
    assert [group["lr"] for group in optimizer.param_groups] == [pytest.approx(0.01), pytest.approx(0.02)]


@pytest.mark.parametrize(
    ("rule", "wanted"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)], ids=["none", "linear", "sqrt"]
)
def test_the_rate_follows_the_global_batch(rule: str, wanted: float) -> None:
    config = ScheduleConfig(scale_lr=ScaleLr(rule), scale_reference=16)
    assert config.lr_scale(64) == wanted
    assert config.lr_scale(16) == 1.0


def test_a_reference_batch_has_a_row() -> None:
    with pytest.raises(ConfigError, match=r"^schedule\.scale_reference=0: must be at least 1$"):
        ScheduleConfig(scale_reference=0)
