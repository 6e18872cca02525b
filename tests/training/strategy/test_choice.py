"""Which strategy a run gets, what is refused before anything is read, and what a model's blocks are."""

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertConfig, GPT2Config

from skytune.config import ConfigError, Precision, RunConfig, StrategyName, UserError, from_dict
from skytune.distributed.capabilities import check_strategy, chosen
from skytune.distributed.context import DistContext
from skytune.launch.gpus import check_machine
from skytune.training.strategy import Strategy, build_strategy
from skytune.training.strategy.blocks import checkpoint_activations, find_blocks
from skytune.training.strategy.ddp import Counted, joined
from skytune.training.strategy.fsdp import filled, hollow


def config(processes: int | str = "auto", device: str = "cpu", **strategy: Any) -> RunConfig:
    values = {"strategy": strategy, "launch": {"num_processes": processes}, "compute": {"device": device}}
    return from_dict(RunConfig, values)


@contextlib.contextmanager
def built(found: RunConfig, processes: int = 1) -> Iterator[Strategy]:
    """A strategy on this process, of so many that it hears of, in a process group of its own."""
    world = DistContext(0, processes, torch.device("cpu"), Precision.fp32, Precision.fp32)
    strategy = build_strategy(found, world)
    try:
        yield strategy
    finally:
        strategy.close()


def test_auto() -> None:
    assert chosen(config(), 1) is StrategyName.single
    assert chosen(config(), 4) is StrategyName.ddp
    assert chosen(config(name="fsdp"), 1) is StrategyName.fsdp


@pytest.mark.parametrize(
    ("strategy", "processes", "device", "message"),
    [
        ({"name": "single"}, 2, "cpu", "strategy=single is one process, 2 were asked for: use strategy=ddp"),
        ({"name": "dp"}, 3, "cuda", "strategy=dp is one process, 3 were asked for"),
        ({"name": "fsdp"}, 1, "mps", "strategy=fsdp: an MPS device cannot"),
        ({"name": "zero2"}, 2, "cpu", "strategy=zero2: DeepSpeed needs CUDA GPUs, this is cpu; use strategy=fsdp"),
        ({"name": "fsdp", "sharding": "hybrid", "shard_processes": 3}, 4, "cpu", "does not divide the 4 processes"),
    ],
)
def test_refused(
    strategy: dict[str, Any], processes: int, device: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    with pytest.raises(UserError) as error:
        check_strategy(config(processes, **strategy), processes, device)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_refused_where_deepspeed_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"strategy=zero3: DeepSpeed is not installed: pip install .*-e '\.\[deepspeed\]'"
    ):
        check_strategy(config(2, name="zero3"), 2, "cuda")


def test_refused_before_any_data_is_read() -> None:
    with pytest.raises(UserError, match="strategy=single is one process, 2"):
        check_machine(config(2, name="single"))
    check_machine(config(2, name="fsdp"))


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ({"name": "ddp", "wrap": "BertLayer"}, "strategy.wrap has an effect only with"),
        ({"name": "ddp", "sharding": "grad_op"}, "strategy.sharding=grad_op has an effect only with strategy=fsdp"),
        ({"name": "fsdp", "shard_processes": 2}, "only with strategy.sharding=hybrid"),
        ({"name": "fsdp", "sharding": "hybrid", "shard_processes": 0}, "shard_processes=0: must be at least 1"),
        ({"name": "fsdp", "offload": "optimizer"}, "strategy=fsdp cannot; zero1, zero2 and zero3 can"),
        ({"name": "zero1", "offload": "parameters"}, "strategy=zero1 cannot; fsdp and zero3 can"),
        ({"name": "fsdp", "find_unused_parameters": True}, "has no effect with strategy=fsdp"),
        ({"name": "best"}, "must be one of auto, single"),
    ],
)
def test_combinations_without_effect(strategy: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(**strategy)
    assert message in str(error.value)


SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}


def bert() -> torch.nn.Module:
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(BertConfig(vocab_size=20, **SMALL))


def test_blocks() -> None:
    model = bert()
    assert [type(block).__name__ for block in find_blocks(model)] == ["BertLayer"] * 3
    assert [type(block).__name__ for block in find_blocks(model, "BertAttention")] == ["BertAttention"] * 3
    gpt = AutoModelForSequenceClassification.from_config(GPT2Config(vocab_size=20, n_embd=32, n_layer=2, n_head=2))
    assert [type(block).__name__ for block in find_blocks(gpt)] == ["GPT2Block"] * 2
    own = torch.nn.Sequential(torch.nn.ModuleList(torch.nn.TransformerEncoderLayer(8, 2) for _ in range(4)))
    assert len(find_blocks(own)) == 4
    assert find_blocks(torch.nn.Linear(2, 2)) == []


def test_a_wrong_block_is_named_with_those_that_repeat() -> None:
    with pytest.raises(ConfigError, match=r"strategy.wrap=Nope: the model has no such block; .*BertLayer"):
        find_blocks(bert(), "Nope")
    with pytest.raises(ConfigError, match="no repeated block"):
        checkpoint_activations(find_blocks(torch.nn.Linear(2, 2)))


def test_activation_checkpointing_computes_blocks_twice_and_only_in_training() -> None:
    model, calls = bert(), []
    blocks = find_blocks(model)
    blocks[0].attention.register_forward_hook(lambda *_: calls.append(1))
    names = list(model.state_dict())
    checkpoint_activations(blocks)
    assert list(model.state_dict()) == names
    tokens = torch.ones(2, 5, dtype=torch.long)
    model.train()(input_ids=tokens, labels=torch.zeros(2, dtype=torch.long)).loss.backward()
    assert len(calls) == 2
    with torch.no_grad():
        model.eval()(input_ids=tokens)
    assert len(calls) == 3


def test_a_hollow_model_has_no_memory_and_can_be_filled() -> None:
    model = bert()
    empty = hollow(model)
    assert all(parameter.is_meta for parameter in empty.parameters())
    assert not any(parameter.is_meta for parameter in model.parameters())
    whole = filled(empty, {name: tensor.clone() for name, tensor in model.state_dict().items()})
    tokens = torch.ones(2, 5, dtype=torch.long)
    with torch.no_grad():
        assert torch.equal(whole.eval()(input_ids=tokens).logits, model.eval()(input_ids=tokens).logits)
    assert all(parameter.is_meta for parameter in empty.parameters())


def test_tied_weights_stay_tied() -> None:
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3, bias=False), "b": torch.nn.Linear(3, 3, bias=False)})
    model["b"].weight = model["a"].weight
    whole = filled(hollow(model), {name: tensor.clone() for name, tensor in model.state_dict().items()})
    assert whole["a"].weight is whole["b"].weight


def test_an_exchange_under_fsdp_that_fails_says_what_fsdp_needs() -> None:
    with built(config(name="fsdp"), 2) as strategy:
        for message, notes in (("gloo: Received data size doesn't match", 1), ("index out of range", 0)):
            with pytest.raises(RuntimeError) as error, strategy.micro_step(True):
                raise RuntimeError(message)
            found = getattr(error.value, "__notes__", [])
            assert len(found) == notes
            assert all("all processes to use the same blocks in every pass" in note for note in found)


def test_what_fsdp_cannot_cut_up_is_one_line() -> None:
    scalar = torch.nn.ModuleDict({"head": torch.nn.Linear(3, 3)})
    scalar["head"].warmth = torch.nn.Parameter(torch.tensor(1.0))
    message = r"^strategy=fsdp: head.warmth is a single number .*give it the shape \[1\], or use strategy=ddp$"
    with built(config(name="fsdp")) as strategy, pytest.raises(UserError, match=message):
        strategy.prepare(scalar)
    adafactor = from_dict(
        RunConfig,
        {
            "strategy": {"name": "fsdp"},
            "optimizer": {"_target_": "torch.optim.Adafactor", "lr": 1e-3},
        },
    )
    with built(adafactor) as strategy:
        model = strategy.prepare(torch.nn.Linear(4, 4))
        strategy.make_optimizer(adafactor.optimizer)
        strategy.backward(model(torch.ones(3, 4)).sum())
        with pytest.raises(UserError, match=r"^strategy=fsdp: Adafactor cannot work on weights that .*strategy=ddp.*$"):
            strategy.step()


def test_dp_on_one_device_says_that_it_is_single(caplog: pytest.LogCaptureFixture) -> None:
    with built(config(name="dp")) as strategy, caplog.at_level("WARNING"):
        strategy.prepare(torch.nn.Linear(2, 2))
        assert strategy.name == "single"
    assert "strategy=dp: there are no several GPUs to spread over; this is strategy=single" in caplog.text


def test_batch_normalization_on_several_processes_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Its statistics are those of a process's own rows; of no other layer does a row depend on others."""
    for processes, norm, told in (
        (1, "BatchNorm1d", 0),
        (2, "SyncBatchNorm", 0),
        (2, "LayerNorm", 0),
        (2, "BatchNorm1d", 1),
    ):
        with built(config(name="fsdp"), processes) as strategy:
            strategy.transform_model(torch.nn.Sequential(torch.nn.Linear(2, 2), getattr(torch.nn, norm)(2)))  # type: ignore[attr-defined]
        assert caplog.text.count("batch normalization: in training each of the 2 processes") == told, norm


def test_the_loss_of_uneven_shares_is_that_of_the_whole_batch() -> None:
    """What `dp` does with what each GPU returned; the GPUs' parts are computed one after the other here."""
    model = bert().eval()
    counted = Counted(model)
    tokens, labels = torch.randint(0, 20, (5, 6)), torch.tensor([0, 1, 1, 0, 1])
    parts = [counted(input_ids=tokens[cut], labels=labels[cut]) for cut in (slice(0, 3), slice(3, 5))]
    whole = joined({key: torch.cat([part[key] for part in parts]) for key in parts[0]})
    assert torch.allclose(whole["loss"], model(input_ids=tokens, labels=labels).loss, atol=1e-6)
    assert whole["logits"].shape == (5, 2)
    assert set(joined(counted(input_ids=tokens))) == {"logits"}


@pytest.mark.parametrize("kind", ["funnel", "squeezebert"])
def test_fsdp_shards_lists_of_lists_and_names_a_model_that_calls_past_its_blocks(kind: str, tmp_path: Path) -> None:
    from tiny_architectures import make_model

    from skytune.config import ModelConfig
    from skytune.models import build_model

    folder = make_model(kind, tmp_path / kind, ["the film was good", "a dull plot"] * 9)
    config = from_dict(RunConfig, {"model": {"name": str(folder)}, "strategy": {"name": "fsdp"}})
    strategy = build_strategy(config, DistContext(0, 1, torch.device("cpu"), Precision.fp32, Precision.fp32))
    model = build_model(ModelConfig(name=str(folder)), None, ["a", "b"], 0)
    assert len(find_blocks(model)) == 2
    try:
        strategy.prepare(model)
        batch = {"input_ids": torch.tensor([[2, 5, 6, 3]] * 2), "labels": torch.tensor([0, 1])}
        with strategy.micro_step(True):
            with strategy.autocast():
                loss = strategy.module(**batch).loss
            strategy.backward(loss)
        assert kind == "funnel" and loss.isfinite()
        assert all(hasattr(p.grad, "to_local") for p in strategy.model.parameters() if p.grad is not None)
    except UserError as error:
        assert kind == "squeezebert" and "\n" not in str(error)
        assert str(error).startswith("strategy=fsdp: SqueezeBert") and "strategy=ddp" in str(error)
    finally:
        strategy.close()
