"""T5's bias of positions, laid out otherwise, against transformers' own."""

import copy
from typing import Any

import pytest
import torch
import transformers

from skytune.models.position_bias import lay_out

SMALL = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 50, "dropout_rate": 0.0}


def model_of(name: str) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SMALL, decoder_start_token_id=0, num_labels=2)
    return getattr(transformers, f"{name}ForSequenceClassification")(config)


def rows(padded: bool) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 50, (3, 11), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(3, 11, dtype=torch.long)
    if padded:
        mask[1, 7:] = mask[2, 4:] = 0
    ids[mask.cumsum(1).argmax(1, keepdim=True) == torch.arange(11)] = 1  # the end of a text
    ids[mask == 0] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([0, 1, 1])}


@pytest.mark.parametrize("name", ["T5", "UMT5", "MT5"])
@pytest.mark.parametrize("padded", [True, False])
def test_loss_and_gradients_are_those_of_transformers(name: str, padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, batch = model_of(name).train(), rows(padded)
    changed = copy.deepcopy(plain)
    lay_out(changed)
    seen: list[torch.Tensor] = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def watched(*args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(kwargs["attn_mask"])
        return attend(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    found, steps = [], []
    for model in (plain, changed):
        seen.clear()
        loss = model(**batch).loss
        loss.backward()
        found.append((loss.detach(), {key: p.grad for key, p in model.named_parameters()}))
        steps.append([mask.stride(-1) for mask in seen if mask is not None and mask.requires_grad])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)
    assert len(steps[1]) >= 4
    assert set(steps[1]) == {1}, "the keys are not innermost"
    assert set(steps[0]) != {1}, "transformers lays it out so by itself now: position_bias.py can go"


def test_other_models_stay_as_they_are() -> None:
    model = transformers.BertModel(transformers.BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4))
    before = [dict(vars(part)) for part in model.modules()]
    lay_out(model)
    assert [dict(vars(part)) for part in model.modules()] == before
