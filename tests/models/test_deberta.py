"""DeBERTa's scores by distance against those that transformers gathers."""

from typing import Any

import pytest
import torch
import transformers
from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention, build_relative_position

from skytune.models.deberta import by_distance, by_pair, by_pair_backward

SMALL = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 50}
KIND = {"relative_attention": True, "norm_rel_ebd": "layer_norm", "position_biased_input": False, "type_vocab_size": 0}


def config(shared: bool, buckets: int, kinds: list[str], positions: int = 64) -> Any:
    options = {"share_att_key": shared, "position_buckets": buckets, "pos_att_type": kinds}
    options |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": positions}
    return transformers.DebertaV2Config(**SMALL, **KIND, **options, num_labels=2)


@pytest.mark.parametrize("turned", [False, True])
def test_columns_move_on_by_one_with_every_row(turned: bool) -> None:
    tokens = 5
    scores = torch.arange(1.0, 1 + 2 * tokens * 2 * tokens).view(2, tokens, -1)
    found = by_pair(scores, turned)
    assert found.is_contiguous()
    for i in range(tokens):
        for j in range(tokens):
            assert torch.equal(found[:, j, i] if turned else found[:, i, j], scores[:, i, j - i + tokens - 1])
    part = torch.cat([scores, scores], -1)[..., 2 * tokens :]  # of a larger tensor
    torch.testing.assert_close(by_pair(part, turned), found)


def test_the_operations_keep_to_what_torch_asks_of_them() -> None:
    scores = torch.randn(2, 3, 4, 8, dtype=torch.float64, requires_grad=True)
    for turned in (False, True):
        torch.library.opcheck(by_pair, (scores, turned))
        assert torch.autograd.gradcheck(lambda given, turned=turned: by_pair(given, turned), (scores,))
    torch.library.opcheck(by_pair_backward, (torch.randn(2, 3, 4, 4), True))


@pytest.mark.parametrize("kinds", [["c2p"], ["p2c"], ["p2c", "c2p"], []])
@pytest.mark.parametrize(("shared", "buckets", "tokens"), [(True, 8, 37), (False, 16, 50), (True, -1, 9), (True, 8, 1)])
def test_scores_and_gradients_are_those_of_transformers(
    kinds: list[str], shared: bool, buckets: int, tokens: int
) -> None:
    """Rows that reach beyond the distances that have an embedding, too."""
    torch.manual_seed(0)
    attention = DisentangledSelfAttention(config(shared, buckets, kinds, 40 if buckets > 0 else 64)).double()
    states = torch.randn(3, tokens, 32, dtype=torch.float64, requires_grad=True)
    embeddings = torch.randn(2 * attention.pos_ebd_size, 32, dtype=torch.float64, requires_grad=True)
    weight, mask = torch.randn(3, tokens, 32, dtype=torch.float64), torch.ones(3, 1, tokens, tokens)
    settings = {"bucket_size": attention.position_buckets, "max_position": attention.max_relative_positions}

    def run() -> list[torch.Tensor]:
        wanted = [states, embeddings, *attention.parameters()]
        found = attention(
            states, mask, relative_pos=build_relative_position(states, states, **settings), rel_embeddings=embeddings
        )[0]
        slopes = torch.autograd.grad((found * weight).sum(), wanted, allow_unused=True)
        return [found.detach(), *(torch.zeros_like(w) if s is None else s for w, s in zip(wanted, slopes, strict=True))]

    expected, own = run(), attention.disentangled_attention_bias
    with by_distance(attention):
        assert attention.disentangled_attention_bias != own
        for found, right in zip(run(), expected, strict=True):
            torch.testing.assert_close(found, right, atol=1e-6, rtol=1e-6)
    assert attention.disentangled_attention_bias == own


def test_a_whole_model_with_padding_answers_as_ever() -> None:
    torch.manual_seed(0)
    model = transformers.DebertaV2ForSequenceClassification(config(True, 8, ["p2c", "c2p"])).eval()
    ids, mask = torch.randint(1, 50, (4, 21)), torch.ones(4, 21, dtype=torch.int64)
    mask[1, 9:] = mask[2, 1:] = 0
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask).logits
        with by_distance(model):
            torch.testing.assert_close(model(input_ids=ids, attention_mask=mask).logits, expected)


def test_it_is_one_program_for_all_lengths_without_a_gather() -> None:
    programs: list[str] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        programs.append(graph.code)
        return graph.forward

    model = transformers.DebertaV2ForSequenceClassification(config(True, 8, ["p2c", "c2p"])).train()
    torch._dynamo.reset()
    for block in model.deberta.encoder.layer:
        block._compiled_call_impl = torch.compile(block._call_impl, backend=backend, dynamic=True)
    with by_distance(model):
        for tokens in (21, 13, 34):
            ids = torch.randint(1, 50, (3, tokens))
            model(input_ids=ids, labels=torch.tensor([0, 1, 0])).loss.backward()
    assert len(programs) == 1 and "gather" not in programs[0]
