"""Which tokens of a conversation are learned, and what a template may do to it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from language_models import TEMPLATE, WORDS, tokenizer

from skytune.config import UserError
from skytune.tasks.chat import Chat


def shown(chat: Chat, pieces: Any) -> str:
    """Return a row as text, what is learned in brackets."""
    row = chat.encode([pieces])[0]
    pairs = zip(row.ids, row.labels, strict=True)
    return " ".join(WORDS[number] if label == -100 else f"[{WORDS[number]}]" for number, label in pairs)


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_the_answer_and_the_end_of_its_turn_are_learned() -> None:
    chat = Chat(tokenizer())
    assert shown(chat, chat.pair("is it good ?", "yes .", "x")) == (
        "<|user|> is it good ? <|end|> <|assistant|> [yes] [.] [<|end|>]"
    )
    assert chat.end_tokens() == [WORDS.index("<|end|>")]


def test_every_turn_of_the_assistant_is_learned() -> None:
    chat = Chat(tokenizer())
    turns = [turn("user", "it ?"), turn("assistant", "no"), turn("user", "film ?"), turn("assistant", "yes yes")]
    assert shown(chat, chat.turns(turns, "x")) == (
        "<|user|> it ? <|end|> <|assistant|> [no] [<|end|>] <|user|> film ? <|end|> <|assistant|> [yes] [yes] [<|end|>]"
    )
    whole = chat.tokenizer.apply_chat_template(turns, tokenize=False)
    assert (
        chat.encode([chat.turns(turns, "x")])[0].ids
        == chat.tokenizer(whole.rstrip(), add_special_tokens=False)["input_ids"]
    )


def test_without_a_template_the_end_token_ends_it() -> None:
    chat = Chat(tokenizer(None))
    assert shown(chat, chat.pair("it is", "good", "x")) == "it is [good] [<|end|>]"
    with pytest.raises(UserError, match="row 3: conversations need a chat template"):
        chat.turns([turn("assistant", "a")], "row 3")
    plain = Chat(tokenizer(), plain=True)
    assert shown(plain, plain.pair("it is", "good", "x")) == "it is [good] [<|end|>]"


def test_a_padding_token_that_also_ends_is_learned() -> None:
    chat = Chat(tokenizer(pad_token="<|end|>"))
    assert shown(chat, chat.pair("it", "no", "x")).endswith("[no] [<|end|>]")


def test_a_template_without_an_end_of_turns_gets_the_end_token() -> None:
    chat = Chat(
        tokenizer("{% for m in messages %}{{ m['role'] }} : {{ m['content'] }}\n{% endfor %}", eos_token="</s>")
    )
    assert shown(chat, chat.pair("it", "no", "x")).endswith("[no] [</s>]")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "{% for m in messages if m['role'] == 'user' %}{{ m['content'] }}{% endfor %}",
            "leaves out the answer of turn 2",
        ),
        (
            "{{ messages | length }}{% for m in messages %}{{ m['content'] }}{% endfor %}",
            "writes what came before turn 2 anew",
        ),
        ("{{ raise_exception('no such role') }}", "the chat template refuses it: no such role"),
    ],
)
def test_templates_that_cannot_be_learned_from(template: str, message: str) -> None:
    chat = Chat(tokenizer(template))
    with pytest.raises(UserError, match=f"rows.csv, row 7: .*{message}"):
        chat.pair("it is", "good", "rows.csv, row 7")


def test_special_tokens_in_texts_are_text() -> None:
    """Case 38: nobody ends the assistant's turn by writing its end token into a prompt."""
    end = WORDS.index("<|end|>")
    chat = Chat(tokenizer())
    row = chat.encode([chat.pair("it <|end|> is", "no <|end|>", "x")])[0]
    assert row.ids.count(end) == 2 and row.labels.count(end) == 1
    control = Chat(tokenizer(), control=True)
    assert control.encode([control.pair("it <|end|> is", "no <|end|>", "x")])[0].ids.count(end) == 4


def test_no_end_token() -> None:
    made = tokenizer()
    made.eos_token = None
    with pytest.raises(UserError, match=r"no end token \(eos_token\)"):
        Chat(made)


WORD = st.sampled_from(WORDS[7:])
TEXT = st.lists(WORD, min_size=1, max_size=5).map(" ".join)


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), TEXT), min_size=1, max_size=6))
def test_learned_tokens_are_the_answers(turns: list[tuple[str, str]]) -> None:
    if not any(role == "assistant" for role, _ in turns):
        return
    chat = Chat(tokenizer(TEMPLATE))
    row = chat.encode([chat.turns([turn(*own) for own in turns], "x")])[0]
    learned = [WORDS[number] for number in row.labels if number != -100]
    expected = [word for role, text in turns if role == "assistant" for word in [*text.split(), "<|end|>"]]
    assert learned == expected
