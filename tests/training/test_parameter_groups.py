"""Which parameters decay, at which rate they learn, and from when on."""

from pathlib import Path
from typing import Any

import pytest
import torch
from job_dirs import history, result, same, weights
from tiny_architectures import ARCHITECTURES
from transformers import AutoConfig, AutoModelForSequenceClassification

from skytune.config import ConfigError, OptimizerConfig, RunConfig, from_dict
from skytune.launch.run_dir import identity_config
from skytune.training.parameter_groups import Unfreezing, layer_depths, parameter_groups
from skytune.training.schedule import build_optimizer, set_rate


def tiny(kind: str) -> Any:
    _, family, options = ARCHITECTURES[kind]
    options = {"vocab_size": 80, "pad_token_id": 0} | options
    if options["pad_token_id"] in (None, -1):
        options["pad_token_id"] = 0
    return AutoModelForSequenceClassification.from_config(AutoConfig.for_model(family, num_labels=2, **options))


def rates(model: Any, groups: list[dict[str, Any]], lr: float = 5e-5) -> dict[str, float]:
    names = {id(p): name for name, p in model.named_parameters()}
    return {names[id(p)]: group.get("lr", lr) for group in groups for p in group["params"]}


LAYERS = {"t5": 4, "bart": 4, "albert": 0}
FIRST = ("embed", "wte", "wpe", "shared", "mask_emb")
HEAD = ("classifier", "score", "classification_head", "logits_proj", "pooler", "head", "sequence_summary")


@pytest.mark.parametrize("kind", ["bert", "distilbert", "deberta-v2", "gpt2", "llama", "modernbert", "t5", "xlnet"])
def test_layers_are_counted_from_the_embeddings_to_the_head(kind: str) -> None:
    model = tiny(kind)
    depths, top = layer_depths(model, "optimizer.layer_decay")
    assert top == LAYERS.get(kind, 2) + 1
    assert depths.keys() == dict(model.named_parameters()).keys()
    assert set(depths.values()) == set(range(top + 1))
    for name, depth in depths.items():
        parts = name.split(".")
        if any(part.startswith(HEAD) for part in parts) and ".layer" not in name:
            assert depth == top, name
        if any(part.startswith(FIRST) for part in parts) and "decoder" not in name:
            assert depth == 0, name
        for number in (0, 1):
            parts = (".block.",) if ".block." in name else (".layer.", ".layers.", ".h.")  # a block of T5 has layers
            above = "decoder.block." in name  # of the encoder's
            if not above and any(f"{part}{number}." in name for part in parts):
                assert depth == number + 1, name


def test_every_layer_learns_slower_than_the_one_above_it() -> None:
    model = tiny("bert")
    found = rates(model, parameter_groups(model, OptimizerConfig(layer_decay=0.5, lr=8e-5)), 8e-5)
    assert found["classifier.weight"] == found["bert.pooler.dense.bias"] == 8e-5
    assert found["bert.encoder.layer.1.output.dense.weight"] == 4e-5
    assert found["bert.encoder.layer.0.output.dense.bias"] == 2e-5
    assert found["bert.embeddings.word_embeddings.weight"] == 1e-5
    optimizer = build_optimizer(OptimizerConfig(layer_decay=0.5, lr=8e-5), model)
    for rate in (1e-6, 4e-5):
        set_rate(optimizer, rate)
        now = rates(model, optimizer.param_groups)
        assert now["classifier.weight"] == pytest.approx(rate)
        assert now["bert.embeddings.word_embeddings.weight"] == pytest.approx(rate / 8)


def test_the_first_group_need_not_have_the_full_rate() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    config = OptimizerConfig(lr=1e-3, groups={"low": {"match": "^0.weight", "lr": 1e-4}})
    optimizer = build_optimizer(config, model)
    set_rate(optimizer, 5e-4)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([5e-5, 5e-4, 5e-4])


def test_own_groups() -> None:
    model = tiny("bert")
    own = {
        "head": {"match": "classifier", "lr": 1e-3, "weight_decay": 0.5},
        "rest": {"match": "classifier|word_embeddings", "weight_decay": 0.2},
    }
    groups = parameter_groups(model, OptimizerConfig(layer_decay=0.5, lr=8e-5, weight_decay=0.1, groups=own))
    names = {id(p): name for name, p in model.named_parameters()}
    of = {names[id(p)]: group for group in groups for p in group["params"]}
    assert of["classifier.weight"]["weight_decay"] == 0.5 and of["classifier.weight"]["lr"] == 1e-3
    assert of["classifier.bias"]["weight_decay"] == 0.0 and of["classifier.bias"]["lr"] == 1e-3
    words = of["bert.embeddings.word_embeddings.weight"]
    assert words["weight_decay"] == 0.2 and "lr" not in words  # the group counts, not the layer
    assert of["bert.embeddings.position_embeddings.weight"]["lr"] == 1e-5
    assert sum(len(group["params"]) for group in groups) == len(names)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_what_decays_is_what_decays_in_the_trainer(kind: str) -> None:
    from transformers import Trainer

    model = tiny(kind)
    groups = parameter_groups(model, OptimizerConfig(weight_decay=0.1))
    names = {id(p): name for name, p in model.named_parameters()}
    decaying = {names[id(p)] for group in groups if group["weight_decay"] for p in group["params"]}
    expected = {name for name in Trainer.get_decay_parameter_names(None, model) if model.get_parameter(name).ndim > 1}
    assert decaying == expected & set(names.values()) and decaying


def test_no_decay_is_the_list_that_people_know() -> None:
    model = tiny("bert")
    for patterns in (["bias", "LayerNorm.weight"], [], ["."]):
        groups = parameter_groups(model, OptimizerConfig(no_decay=patterns, weight_decay=0.1))
        names = {id(p): name for name, p in model.named_parameters()}
        free = {names[id(p)] for group in groups if not group["weight_decay"] for p in group["params"]}
        if patterns == ["."]:
            assert free == set(names.values())
        else:
            assert free == {name for name in names.values() if any(part in name for part in patterns)}
        assert not patterns or groups[-1]["weight_decay"] == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"no_decay": ["beta"]}, r"optimizer.no_decay=beta: matches no parameter that learns; they are 0.weight"),
        ({"groups": {"a": {"match": "x", "lr": 1}}}, r"optimizer.groups.a.match=x: matches no parameter"),
        ({"layer_decay": 0.9}, r"optimizer.layer_decay: .* has no repeated layers to tell apart; use optimizer.groups"),
    ],
)
def test_what_matches_nothing_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parameter_groups(torch.nn.Sequential(torch.nn.Linear(2, 2)), OptimizerConfig(**settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"no_decay": ["("]}, "is no regular expression"),
        ({"layer_decay": 0.0}, "must be above 0 and at most 1"),
        ({"layer_decay": 1.5}, "must be above 0 and at most 1"),
        ({"groups": {"a": "head"}}, "must be {match:PATTERN} with lr or weight_decay"),
        ({"groups": {"a": {"match": "x"}}}, "must be {match:PATTERN} with lr or weight_decay"),
        ({"groups": {"a": {"match": "x", "rate": 1}}}, "must be {match:PATTERN} with lr or weight_decay"),
        ({"groups": {"a": {"match": "x", "lr": -1}}}, "optimizer.groups.a.lr=-1: must be a number"),
        ({"groups": {"a": {"match": "x", "lr": "big"}}}, "optimizer.groups.a.lr=big: must be a number"),
        ({"groups": {"a": {"match": 3, "lr": 1}}}, "is no regular expression"),
    ],
)
def test_groups_are_checked_before_anything_runs(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        OptimizerConfig(**settings)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_keys_of_runs_that_use_none_of_this_stay_what_they_were() -> None:
    plain = identity_config(RunConfig())
    assert "on_nan" not in plain and plain["optimizer"].keys() == {
        *("name", "lr", "weight_decay", "betas", "eps", "momentum", "clip_norm", "_target_", "args")
    }
    assert not {"cycles", "unfreeze_epochs"} & plain["schedule"].keys()
    used = from_dict(RunConfig, {"optimizer": {"layer_decay": 0.9}, "on_nan": "skip"})
    assert identity_config(used)["optimizer"]["layer_decay"] == 0.9 and identity_config(used)["on_nan"] == "skip"


def test_unfreezing_is_a_function_of_the_step() -> None:
    model = tiny("bert")
    unfreezing = Unfreezing(model, 0.5, steps_per_epoch=10)
    depths, _ = layer_depths(model, "")
    for step in range(20):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        unfreezing.forget_frozen(step)
        learning = {depths[name] for name, p in model.named_parameters() if p.grad is not None}
        assert learning == set(range(max(0, 3 - step // 5), 4)), step


@pytest.mark.parametrize(("strategy", "processes"), [("single", 1), ("ddp", 2), ("fsdp", 2)])
def test_a_run_with_all_of_it_goes_on_to_the_bit(lives: Any, place: Any, strategy: str, processes: int) -> None:
    """Killed while the embeddings are still frozen, and taken up: the same losses and weights."""
    settings = {
        "epochs": 2,
        "strategy": {"name": strategy},
        "optimizer": {
            "layer_decay": 0.8,
            "no_decay": ["bias"],
            "groups": {"head": {"match": "^classifier", "lr": 5e-3}},
        },
        "schedule": {"name": "cosine", "cycles": 2, "unfreeze_epochs": 0.5},
        "checkpoint": {"every_steps": 4, "async_save": False},
    }
    calm = place.lay(f"calm-{strategy}", **settings)
    life = lives.live(calm, processes)
    assert life.code == 0, life.output
    job = place.lay(f"cut-{strategy}", **settings)
    assert lives.live(job, processes, SKYTUNE_TEST_END="10 kill").code != 0
    life = lives.live(job, processes)
    assert life.code == 0 and "resuming from step 8 " in life.output, life.output
    assert history(job) == history(calm) and same(weights(job), weights(calm))
    lr = {step: record["lr"] for step, record in history(job).items()}
    assert lr[13] == pytest.approx(lr[1]) and lr[12] < lr[2] / 10  # the second cycle begins at the peak


def test_frozen_layers_stay_what_they_were(lives: Any, place: Any) -> None:
    job: Path = place.lay("frozen", epochs=1, schedule={"unfreeze_epochs": 0.75}, model={"dropout": 0.0})
    life = lives.live(job)
    assert life.code == 0, life.output
    before = AutoModelForSequenceClassification.from_pretrained(place.model).state_dict()
    after = weights(job)
    moved = {name for name in after if name in before and abs(after[name] - before[name].numpy()).max() > 0}
    assert any("classifier" in name for name in after) and result(job)["steps"] == 12
    assert moved and not any("embeddings" in name for name in moved)
