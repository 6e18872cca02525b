"""Losses of language models: transformers' own, to the last digits, and never all logits at once."""

import inspect
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from skytune.data.batches import TokenTable
from skytune.models import language

VOCABULARY = 500
LENGTHS = [3, 17, 1, 9, 30, 2]


def llama(**more: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    own = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, intermediate_size=64, **{**own, **more}))


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, **off))


def gemma2() -> Any:
    """It squeezes its logits, and half of its layers see only what is near."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    own = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = Gemma2Config(vocab_size=VOCABULARY, intermediate_size=64, head_dim=16, sliding_window=8, **own)
    config._attn_implementation = "eager"
    return Gemma2ForCausalLM(config)


def tied() -> Any:
    return llama(tie_word_embeddings=True)


KINDS = [llama, tied, gpt2, gemma2]


@pytest.fixture
def table() -> TokenTable:
    """Rows of very different lengths; about half of the tokens count, of some rows only the last."""
    draw = np.random.default_rng(0)
    ids = [draw.integers(1, VOCABULARY, length + 1) for length in LENGTHS]
    labels = [np.where(draw.random(len(row)) < 0.5, row, -100) for row in ids]
    for row, own in zip(labels, ids, strict=True):
        row[0], row[-1] = -100, own[-1]
    kind = pa.list_(pa.int32())
    columns = {"input_ids": ids, "labels": labels}
    return TokenTable(pa.table({n: pa.array([r.tolist() for r in rows], kind) for n, rows in columns.items()}))


def gradients(model: Any) -> list[torch.Tensor]:
    return [weight.grad.clone() for weight in model.parameters()]


def worst(ours: list[torch.Tensor], reference: list[torch.Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(ours, reference, strict=True))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_loss_is_transformers_own(table: TokenTable, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "AT_ONCE", 7 * VOCABULARY)
    model = kind()
    batch = table.batch(np.arange(len(table)))
    reference = model(input_ids=batch["input_ids"], labels=batch["labels"]).loss
    reference.backward()
    expected = gradients(model)
    model.zero_grad()
    language.learn_tokens(model, 64)
    ours = model(**batch)["loss"]
    ours.backward()
    assert float(ours - reference) == pytest.approx(0, abs=2e-6) and worst(gradients(model), expected) <= 1e-6


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_rows_in_one_stream_do_not_see_each_other(table: TokenTable, kind: Any) -> None:
    """Case 48: packed equals unpacked, for every row, with its gradient."""
    model = kind()
    language.learn_tokens(model, 64)
    model.eval()
    rows = np.array([4, 0, 2, 5, 1])
    stream = table.stream(rows, multiple=16)
    assert stream["input_ids"].shape[1] % 16 == 0
    whole = {"input_ids": stream["input_ids"], "position_ids": stream["position_ids"]}
    _, losses = language._losses(
        model(**whole), stream["kept"], stream["labels"].flatten()[stream["kept"] + 1], language.Slopes()
    )
    alone = [
        language.row_losses(model(input_ids=b["input_ids"]), b["labels"])[0] for b in map(table.batch, rows[:, None])
    ]
    counts = [int(count) for _, count in alone]
    found = [part.sum() for part in losses.split(counts)]
    assert max(abs(float(a - b)) for a, (b, _) in zip(found, alone, strict=True)) <= 1e-5

    model.zero_grad()
    model(**stream)["loss"].backward()
    packed = gradients(model)
    model.zero_grad()
    model(**table.batch(rows))["loss"].backward()
    assert worst(packed, gradients(model)) <= 1e-6


def test_documents_of_one_row_do_not_see_each_other(table: TokenTable) -> None:
    """Positions that begin anew are enough, in a padded batch too."""
    model = llama()
    language.learn_tokens(model, 64)
    a, b = table.batch(np.array([4]))["input_ids"], table.batch(np.array([1]))["input_ids"]
    row = torch.cat([a, b], 1)
    positions = torch.cat([torch.arange(a.shape[1]), torch.arange(b.shape[1])])[None]
    labels = torch.where(positions == 0, -100, row)
    both = language.row_losses(model(input_ids=row, position_ids=positions), labels)[0]
    parts = [language.row_losses(model(input_ids=part), part.clone())[0] for part in (a, b)]
    assert torch.allclose(both, parts[0] + parts[1], atol=1e-5)
    padded = {"input_ids": torch.cat([row, row[:, :3]], 1), "position_ids": torch.nn.functional.pad(positions, (0, 3))}
    more = torch.nn.functional.pad(labels, (0, 3), value=-100)
    assert torch.allclose(language.row_losses(model(**padded), more)[0], both, atol=1e-5)


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that anything makes."""

    size = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, torch.Tensor):
                self.size = max(self.size, tensor.numel())
        return made


def test_the_logits_of_all_tokens_are_never_held(table: TokenTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "AT_ONCE", 4 * VOCABULARY)
    model = llama()
    language.learn_tokens(model, 64)
    batch = table.batch(np.arange(len(table)))
    counted = int((batch["labels"] != -100).sum())
    with Largest() as seen:
        model(**batch)["loss"].backward()
    assert seen.size < counted * VOCABULARY and seen.size <= VOCABULARY * 32


def test_a_frozen_head_gets_no_gradient_and_half_precision_keeps_its_digits(table: TokenTable) -> None:
    model = llama()
    model.lm_head.requires_grad_(False)
    language.learn_tokens(model, 64)
    batch = table.batch(np.arange(len(table)))
    exact = model(**batch)["loss"]
    exact.backward()
    assert model.lm_head.weight.grad is None and model.model.norm.weight.grad is not None
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(**batch)["loss"]
    assert rough.dtype == torch.float32 and float(rough) == pytest.approx(float(exact), rel=2e-3)
    assert float(rough) != float(rough.bfloat16())


def test_its_own_forward_comes_back(table: TokenTable) -> None:
    model = llama()
    language.learn_tokens(model, 64)
    with language.plainly(model):
        assert model(input_ids=torch.tensor([[1, 2]])).logits.shape == (1, 2, VOCABULARY)
        assert model.generate(torch.tensor([[1, 2]]), max_new_tokens=2, do_sample=False, pad_token_id=0).shape == (1, 4)
    assert "loss" in model(**table.batch(np.array([0, 1])))


def test_an_encoder_is_found_out() -> None:
    from transformers import BertConfig, BertLMHeadModel

    own = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    found = {}
    for causal in (False, True):
        torch.manual_seed(0)
        model = BertLMHeadModel(BertConfig(vocab_size=VOCABULARY, is_decoder=causal, **own))
        language.learn_tokens(model, 64)
        found[causal] = language.looks_ahead(model)
    assert found == {False: True, True: False}
    for kind in KINDS:
        model = kind()
        language.learn_tokens(model, 64)
        assert not language.looks_ahead(model)


def by_segments(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: torch.Tensor, _: Any, longest: int, *__: Any, **how: Any
) -> torch.Tensor:
    """Stand in for torch's `varlen_attn`, which needs a GPU: each sequence alone. Those longer than it was told of get
    NaN, as a kernel would leave what it did not compute."""
    found = torch.full_like(q, float("nan"))
    for begin, end in pairwise(ends.tolist()):
        if 0 < end - begin <= longest:
            own = [part[begin:end].transpose(0, 1)[None] for part in (q, k, v)]
            grouped = q.shape[1] != k.shape[1]
            assert how["window_size"] == (-1, 0) and bool(how.get("enable_gqa")) == grouped
            made = torch.nn.functional.scaled_dot_product_attention(*own, is_causal=True, enable_gqa=grouped)
            found[begin:end] = made[0].transpose(0, 1)
    return found


@pytest.mark.parametrize("kind", [llama, tied, gpt2], ids=lambda kind: kind.__name__)
def test_the_kernel_gets_borders_and_nothing_is_asked_of_the_device(
    table: TokenTable, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filled up to a width, with borders and places to spare: the padded rows' loss and gradients, and no mask made."""
    import torch.nn.attention.varlen as varlen
    from transformers import masking_utils

    model = kind()
    language.learn_tokens(model, int(table.lengths.max()))
    rows = np.array([4, 0, 2, 5, 1])
    expected = model(**table.batch(rows))["loss"]
    expected.backward()
    plain = gradients(model)
    model.zero_grad()
    monkeypatch.setattr(language, "has_kernel", lambda device: True)
    signature = by_segments
    signature.__signature__ = inspect.signature(varlen.varlen_attn)  # type: ignore[attr-defined]
    monkeypatch.setattr(varlen, "varlen_attn", signature)
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", lambda _: pytest.fail("positions are looked at"))
    width = int(table.lengths[rows].sum()) + 3 * int(table.lengths.max())
    found = model(**table.stream(rows, width, (32, 3 * len(table.lengths) + width)))["loss"]
    found.backward()
    assert float(found) == pytest.approx(float(expected), abs=2e-6) and worst(gradients(model), plain) <= 1e-6
