"""The learning rate is a function of the optimizer step; its shapes are those people know from transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch

from skytune.config import ConfigError, OptimizerConfig, ScaleLr, ScheduleConfig, ScheduleName
from skytune.training.schedule import build_optimizer, factor, parameter_groups, set_rate


@pytest.mark.parametrize("name", list(ScheduleName))
@pytest.mark.parametrize("warmup", [{}, {"warmup_steps": 10}, {"warmup_ratio": 0.06}, {"warmup_ratio": 0.1}])
@pytest.mark.parametrize("steps", [21, 33, 100])
def test_rates_are_those_of_transformers_trainer(
    name: ScheduleName, warmup: dict[str, Any], steps: int, tmp_path: Path
) -> None:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        use_cpu=True,
        learning_rate=1.0,
        lr_scheduler_type={"constant": "constant_with_warmup"}.get(name.value, name.value),
        warmup_steps=warmup.get("warmup_steps") or warmup.get("warmup_ratio", 0),
    )
    trainer = Trainer(torch.nn.Linear(2, 2), arguments)
    trainer.create_optimizer_and_scheduler(steps)
    ours = factor(ScheduleConfig(name=name, **warmup), steps)
    for step in range(steps):
        assert ours(step) == trainer.lr_scheduler.get_last_lr()[0], step
        trainer.optimizer.step()
        trainer.lr_scheduler.step()


SMALL = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 20, "hidden_size": 8}
OTHER_NAMES: dict[str, dict[str, Any]] = {
    "squeezebert": {"embedding_size": 8},
    "xlnet": {"d_model": 8, "n_layer": 1, "n_head": 2, "d_inner": 8},
    "funnel": {"d_model": 8, "n_head": 2, "d_head": 4, "d_inner": 8, "block_sizes": [1], "num_decoder_layers": 1},
    "t5": {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2},
    "gpt2": {"n_embd": 8, "n_layer": 1, "n_head": 2},
    "distilbert": {"dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 8},
    "bart": {
        "d_model": 8,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
    },
}
KINDS = ["bert", "llama", "modernbert", "mpnet", "convbert", "deberta-v2", "albert", *OTHER_NAMES]


@pytest.mark.parametrize("kind", KINDS)
def test_groups_and_constants_are_those_of_transformers_trainer(kind: str, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForSequenceClassification, Trainer, TrainingArguments

    sizes = OTHER_NAMES.get(kind, {})
    small = (
        {"vocab_size": 20, "pad_token_id": 0, **sizes} if "d_model" in sizes else {**SMALL, "pad_token_id": 0, **sizes}
    )
    config = AutoConfig.for_model(kind, **small)
    model = AutoModelForSequenceClassification.from_config(config)
    trainer = Trainer(model, TrainingArguments(output_dir=str(tmp_path), use_cpu=True, weight_decay=0.1))
    trainer.create_optimizer()
    ours = build_optimizer(OptimizerConfig(weight_decay=0.1), model)

    def decays(groups: list[dict[str, Any]]) -> dict[int, float]:
        return {id(p): group["weight_decay"] for group in groups for p in group["params"]}

    found, wanted = decays(ours.param_groups), decays(trainer.optimizer.param_groups)
    names = {id(p): name for name, p in model.named_parameters()}
    assert {names[p]: found[p] for p in names} == {names[p]: wanted[p] for p in names}
    for key in ("betas", "eps", "amsgrad", "maximize"):
        assert ours.defaults[key] == trainer.optimizer.defaults[key], key


def test_loss_and_clipping_are_those_of_transformers_trainer(tmp_path: Path, tiny_model: Path) -> None:
    from transformers import Trainer, TrainingArguments

    from skytune.config import ModelConfig, Precision, RunConfig
    from skytune.distributed.context import DistContext
    from skytune.models import build_model
    from skytune.models.outputs import loss_of
    from skytune.training.strategy import build_strategy

    model = build_model(ModelConfig(name=str(tiny_model), dropout=0.0), None, ["a", "b", "c"], 0)
    batch = {"input_ids": torch.randint(5, 19, (6, 9)), "labels": torch.tensor([0, 1, 2, 2, 1, 0])}
    trainer = Trainer(model, TrainingArguments(output_dir=str(tmp_path), use_cpu=True))
    wanted = trainer.compute_loss(model, dict(batch))
    strategy = build_strategy(RunConfig(), DistContext(0, 1, torch.device("cpu"), Precision.fp32))
    strategy.prepare(model)
    found = loss_of(strategy.module(**batch))
    assert found.item() == wanted.item()
    (1000 * found).backward()
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    norm = strategy.clip(1.0)
    clipped = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    for p, grad in zip((p for p in model.parameters() if p.grad is not None), grads, strict=True):
        p.grad.copy_(grad)
    assert norm == trainer.accelerator.clip_grad_norm_(model.parameters(), 1.0)
    assert norm is not None and norm > 1
    for p, grad in zip((p for p in model.parameters() if p.grad is not None), clipped, strict=True):
        assert torch.equal(p.grad, grad)


def test_a_ratio_of_a_step_or_two_leaves_one_to_learn_in() -> None:
    assert factor(ScheduleConfig(warmup_ratio=0.1), 1)(0) == 1.0
    assert factor(ScheduleConfig(warmup_ratio=0.9), 2)(1) == 1.0


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
    decayed, rest = parameter_groups(model, OptimizerConfig(weight_decay=0.1))
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


def test_the_presets_warm_up_unless_a_person_says_how() -> None:
    from skytune.config.compose import compose_run

    configs = Path(__file__).parents[2] / "configs"

    def warmup(*words: str) -> tuple[int, float]:
        schedule = compose_run(configs, list(words)).schedule
        return schedule.warmup_steps, schedule.warmup_ratio

    assert warmup() == warmup("schedule=cosine") == warmup("schedule=constant") == (0, 0.1)
    assert warmup("schedule.warmup_steps=7") == (7, 0.0)
    assert warmup("schedule.warmup_ratio=0.06") == (0, 0.06) and warmup("schedule.warmup_ratio=0") == (0, 0.0)
