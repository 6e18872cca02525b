"""FSDP's blocks where they are compiled, in one process; several processes: test_equivalence.py."""

import functools

import pytest
import torch
import transformers

from skytune.config import Precision, RunConfig, from_dict
from skytune.distributed.context import DistContext
from skytune.training.strategy import build_strategy, fsdp


@pytest.mark.filterwarnings("ignore")
def test_compiled_blocks_take_the_same_steps():
    """Weights are gathered and let go around what is compiled; rows of several lengths are one program."""
    found = []
    for compiled in (False, True):
        config = from_dict(RunConfig, {"strategy": {"name": "fsdp"}, "precision": "fp32"})
        torch.manual_seed(0)
        small = {"hidden_size": 32, "num_hidden_layers": 12, "num_attention_heads": 4, "intermediate_size": 64}
        settings = transformers.LlamaConfig(**small, vocab_size=50, num_key_value_heads=2, pad_token_id=0, num_labels=2)
        strategy = build_strategy(config, DistContext(0, 1, torch.device("cpu"), Precision.fp32))
        strategy.prepare(transformers.LlamaForSequenceClassification(settings).train())
        strategy.make_optimizer(config.optimizer)
        losses, programs = [], []
        if compiled:
            torch._dynamo.reset()
            compiler = functools.partial(torch.compile, backend=_counted(programs))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(torch, "compile", compiler)
                assert strategy.compile_blocks()
        for step in range(4):
            rows = torch.randint(1, 50, (4, 5 + 3 * step), generator=torch.Generator().manual_seed(step))
            with strategy.micro_step(True):
                loss = strategy.module(input_ids=rows, labels=rows[:, 0] % 2).loss
                strategy.backward(loss)
            strategy.clip(1.0)
            assert strategy.step()
            losses.append(float(loss))
        strategy.close()
        found.append((losses, len(programs)))
    (expected, none), (losses, several) = found
    assert none == 0 < several <= 4, "not one for every block"
    assert losses == pytest.approx(expected, abs=1e-5)


def test_a_pass_without_gradients_leaves_no_gathered_weights_to_the_next():
    """Torch keeps those outside the blocks until a backward pass, whatever becomes of the weights before it."""
    config = from_dict(RunConfig, {"strategy": {"name": "fsdp", "sharding": "grad_op"}, "precision": "fp32"})
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**small, vocab_size=50)).eval()
    strategy = build_strategy(config, DistContext(0, 1, torch.device("cpu"), Precision.fp32))
    rows = torch.randint(1, 50, (4, 7))
    with torch.no_grad():
        strategy.prepare(model)
        shards = list(strategy.model.parameters())  # whole ones take their places while they are gathered
        before = strategy.module(input_ids=rows).logits
        for weight in shards:
            weight.to_local().mul_(0)
        assert before.any() and not strategy.module(input_ids=rows).logits.any()
    strategy.close()


def test_replayed_steps_find_shards_after_a_validation():
    """A graph calls no hooks; weights that were still gathered would be left out of the norm, and of clipping."""
    from torch.distributed.tensor import DTensor

    from skytune.training.captured_step import CapturedSteps

    config = from_dict(RunConfig, {"strategy": {"name": "fsdp"}, "precision": "fp32", "optimizer": {"name": "sgd"}})
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    strategy = build_strategy(config, DistContext(0, 1, torch.device("cpu"), Precision.fp32))
    strategy.prepare(transformers.BertForSequenceClassification(transformers.BertConfig(**small, vocab_size=50)))
    with torch.no_grad():
        strategy.module(input_ids=torch.randint(1, 50, (4, 7)))
    assert not all(isinstance(weight, DTensor) for weight in strategy.model.parameters())
    steps = CapturedSteps.__new__(CapturedSteps)
    steps.strategy, steps.model, steps.sharded, steps.loss = strategy, strategy.model, True, torch.zeros(())
    steps.by_hand = False
    steps._waited = lambda batches: batches  # none: as if all was in graphs
    steps._gradients(iter(()))
    assert all(isinstance(weight, DTensor) for weight in strategy.model.parameters())
    strategy.close()


def _counted(programs):
    def backend(graph, _inputs):
        programs.append(graph)
        return graph.forward

    return backend


@pytest.mark.parametrize("groups", [{"compile": {"mode": "on"}}, {"strategy": {"activation_checkpointing": True}}])
def test_what_is_compiled_or_computed_twice_already_is_left_alone(groups):
    config = from_dict(RunConfig, {**groups, "strategy": {"name": "fsdp", **groups.get("strategy", {})}})
    strategy = fsdp.FullyShard(config, DistContext(0, 1, torch.device("cpu"), Precision.fp32))
    assert not strategy.compile_blocks()
    strategy.close()
