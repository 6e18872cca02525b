"""Blocks that compute without padding, on a CPU: torch's kernel, for GPUs, is stood in for, all else is real."""

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as some

from skytune.config import ModelConfig, Precision, RunConfig, from_dict
from skytune.data.batches import Padding, TokenTable
from skytune.data.order import SampleOrder
from skytune.distributed.context import DistContext
from skytune.job import JobDir
from skytune.models.head import Head
from skytune.models.lora import attach
from skytune.models.unpadded import KEYS, Reordered, difference, places, unpadded
from skytune.training import captured_step, select_step
from skytune.training.callbacks.base import Run
from skytune.training.captured_step import CapturedSteps
from skytune.training.strategy import Strategy
from skytune.training.strategy.blocks import find_blocks
from skytune.training.train_step import EagerStep

SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
BART = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 2), ("attention_heads", 4))}
MODELS = {
    "Bert": SMALL,
    "Roberta": SMALL,
    "Electra": {**SMALL, "embedding_size": 16},
    "DistilBert": {"vocab_size": 50, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    "ModernBert": {**SMALL, "local_attention": 8, "global_attn_every_n_layers": 2, "pad_token_id": 0},
    "GPT2": {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4},
    "Bart": {"vocab_size": 50, "d_model": 32, **BART, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "eos_token_id": 2},
    "Llama": {**SMALL, "num_key_value_heads": 2},
    "Mistral": {**SMALL, "num_key_value_heads": 2, "sliding_window": 8},
    "Mixtral": {**SMALL, "num_key_value_heads": 2},
    "Gemma3Text": {**SMALL, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8},
    "MBart": {"vocab_size": 50, "d_model": 32, **BART, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "eos_token_id": 2},
}
T5 = {"vocab_size": 50, "d_model": 32, "num_layers": 2, "num_heads": 4, "d_kv": 8, "d_ff": 64}
T5 |= {"decoder_start_token_id": 0, "eos_token_id": 2}
ASIDE = {
    "DebertaV2": (SMALL, "does not take its attention"),
    "MPNet": (SMALL, "does not take its attention"),
    "FNet": (SMALL, "does not take its attention"),
    "T5": (T5, "does not take its attention"),
}


def stand_in(q, k, v, ends, _, longest, __, *, scale, window_size, enable_gqa=False):
    """What torch's `varlen_attn` computes, with a mask."""
    assert int(ends.diff().max()) <= longest
    at = torch.arange(len(q))
    row = torch.bucketize(at, ends[1:].long(), right=True)
    apart = at[None] - at[:, None]
    seen = row[:, None] == row[None]
    for side, far in zip((-1, 1), window_size, strict=True):
        if far >= 0:
            seen &= apart * side <= far
    k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
    q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
    found = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)
    return found[0].transpose(0, 1)


@pytest.fixture(autouse=True)
def kernel(monkeypatch):
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", stand_in)
    monkeypatch.setattr(captured_step, "has_kernel", lambda device: True)


def model(kind, options, task="SequenceClassification"):
    torch.manual_seed(0)
    none = {"attention_dropout": 0.0, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    none |= {"dropout": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "dropout_rate": 0.0}
    config = getattr(transformers, f"{kind}Config")(**{"num_labels": 3, "pad_token_id": 0, **none, **options})
    found = getattr(transformers, f"{kind}For{task}")(config).train()
    with torch.no_grad():  # so that attention has something to say
        for p in found.parameters():
            p.mul_(3) if p.ndim > 1 else None
    return found


def table(rows=40, longest=30, left=False, labels=None):
    draw = np.random.default_rng(0)
    ids = [np.append(draw.integers(3, 50, n), 2).astype(np.int32) for n in draw.integers(2, longest, rows)]
    columns = {
        "input_ids": ids,
        "attention_mask": [np.ones(len(row), np.int8) for row in ids],
        "labels": draw.integers(0, 3, rows) if labels is None else [draw.integers(0, 3, len(row)) for row in ids],
    }
    return TokenTable(pa.table(columns), Padding(0, left=left))


def parts(network, data, micro=8, **groups):
    config = from_dict(RunConfig, {"seed": 3, "compute": {"packed": "on"}, **groups})
    order = SampleOrder(data.lengths, seed=3, global_size=8, bucket_batches=1)
    world = DistContext(0, 1, torch.device("cpu"), Precision.fp32)
    strategy = Strategy(config, world)
    strategy.prepare(network)
    strategy.make_optimizer(config.optimizer)
    run = Run(config, JobDir("/nonexistent"), world, network, 20, order.steps_per_epoch, micro_batch=micro)
    return run, strategy, strategy.optimizer, order, data, lambda: False


def take(steps, count=6):
    losses = []
    while len(losses) < count:
        losses += steps.take([1e-3] * min(steps.most, count - len(losses))).losses
        steps.run.step = len(losses)
    return losses


@pytest.mark.parametrize(("kind", "micro"), [("GPT2", 3), *((kind, 8) for kind in MODELS)])
def test_losses_and_weights_are_those_of_padded_rows(kind, micro):
    """First token, last, mean, end of text; both directions, one, windows, shared keys; decoders over encoders."""
    one, other = (model(kind, MODELS[kind]) for _ in range(2))
    expected = take(EagerStep(*parts(one, table(), micro)))
    steps = CapturedSteps(*parts(other, table(), micro))
    assert steps.unpad() == "" and steps.prepare() == ""
    np.testing.assert_allclose(take(steps), expected, atol=1e-5, rtol=1e-4)
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(q, p, atol=1e-4, rtol=1e-3)  # AdamW makes much of a key's bias, which learns nothing
    assert steps.padding_share < 0.35
    assert all(block._compiled_call_impl is None for block in steps.blocks)


@pytest.mark.parametrize("kind", ["Llama", "Bart"])
def test_adapters_and_a_loss_of_ones_own(kind):
    def loss(logits, labels):
        weights = torch.tensor([1.0, 2.0, 0.5])
        return torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.2, weight=weights)

    pair = []
    for _ in range(2):
        network = model(kind, MODELS[kind])
        settings = {"name": "random", "pretrained": False, "lora": {"rank": 4}}
        attach(network, from_dict(ModelConfig, settings), "random", set())
        pair.append(network)
    expected = take(EagerStep(*parts(pair[0], table()), Head(loss=loss)))
    steps = CapturedSteps(*parts(pair[1], table()), Head(loss=loss))
    assert steps.unpad() == "" and steps.prepare() == ""
    np.testing.assert_allclose(take(steps), expected, atol=1e-5, rtol=1e-4)


def test_every_token_has_its_own_answer():
    one, other = (model("Electra", MODELS["Electra"], "TokenClassification") for _ in range(2))
    data = table(labels="tokens")
    expected = take(EagerStep(*parts(one, data)))
    steps = CapturedSteps(*parts(other, data))
    assert steps.unpad() == "" and steps.prepare() == ""
    np.testing.assert_allclose(take(steps), expected, atol=1e-5, rtol=1e-4)


def test_rows_may_be_padded_on_the_left():
    one, other = (model("Llama", MODELS["Llama"]) for _ in range(2))
    expected = take(EagerStep(*parts(one, table(left=True))))
    steps = CapturedSteps(*parts(other, table(left=True)))
    assert steps.unpad() == "" and steps.prepare() == ""
    np.testing.assert_allclose(take(steps), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ASIDE)
def test_others_step_aside(kind):
    options, why = ASIDE[kind]
    network = model(kind, options)
    steps = CapturedSteps(*parts(network, table()))
    before = [p.clone() for p in network.parameters()]
    assert why in (reason := steps.unpad()), reason
    assert not steps.table.unpadded and network.training
    assert all(map(torch.equal, before, network.parameters())) and all(p.grad is None for p in network.parameters())
    assert steps.prepare() == "" and take(steps, 2)


@pytest.mark.parametrize(("share", "why"), [(1.0, "without padding"), (0.01, "depends on other rows")])
def test_a_model_that_looks_across_rows_steps_aside(share, why):
    """A block that mixes neighbours sees other rows where there is no padding between them, however little."""

    class Mixing(torch.nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, hidden, *args, **more):
            return self.layer(hidden + share * hidden.roll(1, 1).detach(), *args, **more)

    network = model("Electra", MODELS["Electra"])
    layers = network.electra.encoder.layer
    for at, layer in enumerate(layers):
        layers[at] = Mixing(layer)
    type(network)._no_split_modules, kept = ["Mixing"], type(network)._no_split_modules
    try:
        steps = CapturedSteps(*parts(network, table()))
        assert why in (reason := steps.unpad()), reason
    finally:
        type(network)._no_split_modules = kept


def test_where_there_is_no_padding_nothing_is_done():
    data = TokenTable(pa.table({"input_ids": [np.full(9, 7, np.int32)] * 20, "labels": np.zeros(20, int)}), Padding())
    assert "hardly any padding" in CapturedSteps(*parts(model("Bert", SMALL), data)).unpad()


def test_a_run_says_that_its_rows_are_packed(caplog):
    caplog.set_level("INFO")
    steps = select_step.open_steps(*parts(model("GPT2", MODELS["GPT2"]), table()))
    assert isinstance(steps, CapturedSteps) and steps.table.unpadded
    assert steps.run.report["steps_taken"] == "captured, rows packed" and "captured packed" in caplog.text


def test_a_form_that_cannot_be_captured_is_padded_again(monkeypatch, caplog):
    caplog.set_level("INFO")

    def prepare(self):
        return "it is packed" if self.table.unpadded else whole(self)

    whole = CapturedSteps.prepare
    monkeypatch.setattr(CapturedSteps, "prepare", prepare)
    steps = select_step.open_steps(*parts(model("GPT2", MODELS["GPT2"]), table()))
    assert isinstance(steps, CapturedSteps) and not steps.table.unpadded
    assert "blocks are not packed: it is packed" in caplog.text and take(steps, 2)
    assert "with padding" in caplog.text and caplog.text.rstrip().endswith("not packed: it is packed")


@settings(max_examples=60, deadline=None)
@given(some.data())
def test_tokens_find_their_way_and_back(draw):
    width = draw.draw(some.integers(1, 40))
    lengths = np.array(draw.draw(some.lists(some.integers(1, width), min_size=1, max_size=9)))
    tokens = int(lengths.sum()) + draw.draw(some.integers(0, 90))
    there, back, borders = places(lengths, width, tokens, draw.draw(some.booleans())).values()
    assert len(there) == tokens and len(back) == len(lengths) * width
    assert len(borders) == len(lengths) + -(-tokens // width) + 1
    cuts = np.diff(borders)
    assert borders[0] == 0 and borders[-1] == tokens and cuts.min() >= 0 and cuts.max() <= width
    np.testing.assert_array_equal(cuts[: len(lengths)], lengths)
    values = torch.randn(len(back), 2, dtype=torch.float64, requires_grad=True)
    packed = Reordered.apply(values, there, back)
    again = Reordered.apply(packed, back, there)
    real = (back >= 0)[:, None]
    assert torch.equal(again, values * real) and torch.equal(
        packed[int(lengths.sum()) :].count_nonzero(), torch.tensor(0)
    )
    slope = torch.randn_like(again)
    again.backward(slope)
    assert torch.equal(values.grad, slope * real)


def test_the_trial_sees_a_loss_and_a_gradient_that_differ(monkeypatch):
    network, data = model("Electra", MODELS["Electra"]), table()
    batch = data.batch(np.arange(6), 30) | places(data.lengths[:6], data.columns["input_ids"].longest, 160)
    blocks, given_keys = find_blocks(network), set(batch)

    def loss(way):
        return network(**way).loss

    assert difference(network, blocks, batch, loss) == "" and set(batch) == given_keys >= set(KEYS)
    calls = []

    def raised(way):
        calls.append(loss(way))
        return calls[-1] * len(calls)

    assert "its loss is" in difference(network, blocks, batch, raised)

    def bent(way):
        calls.append(value := loss(way))
        return value if len(calls) % 2 else value.detach() + 2 * (value - value.detach())

    assert "its gradient of" in difference(network, blocks, batch, bent)
    with unpadded(network, blocks, plain := data.batch(np.arange(6))):
        assert set(plain) == {"input_ids", "attention_mask", "labels"}, "a batch without places is left as it is"
