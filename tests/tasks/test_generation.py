"""Answers: each up to its end, the same alone and beside others; and a model that has learned to stop stops."""

from typing import Any

import numpy as np
import pytest
import torch
from language_models import WORDS, tokenizer

from skytune.models.language import learn_tokens
from skytune.tasks.chat import Chat, last_turn
from skytune.tasks.generation import generate


def llama(**more: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    own = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), **own, **more))
    learn_tokens(model, 64)
    return model


def test_an_answer_does_not_depend_on_its_neighbours() -> None:
    model = llama()
    draw = np.random.default_rng(0)
    prompts = [draw.integers(4, len(WORDS), size) for size in (3, 11, 1, 7)]
    options: dict[str, Any] = {"ends": [3], "padding": 3, "most": 6}
    together = generate(model, prompts, batch_size=3, **options)
    assert together == [generate(model, [prompt], batch_size=1, **options)[0] for prompt in prompts]
    assert model.training and all(len(answer) <= 6 and 3 not in answer for answer in together)


@pytest.mark.parametrize("padding", ["<pad>", "<|end|>"])
def test_what_learned_to_stop_stops(padding: str) -> None:
    """Padding with the end token must not teach a model that the end token does not count."""
    made = tokenizer(pad_token=padding)
    chat = Chat(made)
    pairs = [("good film ?", "yes ."), ("bad film ?", "no"), ("is it fine ?", "yes yes ."), ("dull ?", "no no no")]
    rows = chat.encode([chat.pair(*pair, "x") for pair in pairs])
    width = max(len(row.ids) for row in rows)
    ids = torch.tensor([row.ids + [made.pad_token_id] * (width - len(row.ids)) for row in rows])
    labels = torch.tensor([row.labels + [-100] * (width - len(row.ids)) for row in rows])
    model = llama(pad_token_id=made.pad_token_id)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        model(input_ids=ids, labels=labels)["loss"].backward()
        optimizer.step()
    turns = [last_turn(np.array(row.ids), np.array(row.labels)) for row in rows]
    answers = generate(
        model, [prompt for prompt, _ in turns], ends=chat.end_tokens(), padding=made.pad_token_id, most=20, batch_size=2
    )
    assert answers == [gold[:-1].tolist() for _, gold in turns]
    assert [made.decode(answer) for answer in answers] == [answer for _, answer in pairs]


def test_the_last_turn() -> None:
    ids, labels = np.arange(8), np.array([-100, 1, 2, -100, -100, 5, 6, -100])
    prompt, answer = last_turn(ids, labels)
    assert prompt.tolist() == [0, 1, 2, 3, 4] and answer.tolist() == [5, 6]
