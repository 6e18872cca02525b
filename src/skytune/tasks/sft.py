"""Answers to prompts (instruction tuning): a prompt and its completion, or conversations by the model's chat template.
What the assistant says, and the end of its turn, is learned; the rest is only read."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from ..config import BadRows, DataConfig, RunConfig, UserError
from ..data.batches import TokenTable
from ..data.columns import Column, Columns
from ..data.rows import Rows
from ..data.targets import Encoded
from ..models import takes_specials_as_text
from ..models.head import Head
from ..models.quiet import quiet
from . import language
from .chat import Chat, ChatPiece, Tokens
from .task import Task

log = logging.getLogger(__name__)

ANSWER, TURNS = "completion", "messages"
"""Roles of columns (`Rows.more`)."""

AT_ONCE = 1000


def columns(config: DataConfig) -> Columns:
    """Return the column of conversations, or those of prompts and completions."""
    if config.messages:
        return (Column(TURNS, config.messages, "data.messages", kind="values"),)
    return (
        Column("text", config.prompt or "prompt", "data.prompt"),
        Column(ANSWER, config.completion or "completion", "data.completion"),
    )


def arrange(rows: Rows, config: DataConfig) -> Rows:
    """Return rows whose conversations are JSON in `Rows.more`, and name those that cannot be learned from."""
    odd = dict(rows.odd)
    if not config.messages:
        answers = [config.label_map.get(a, a) if config.label_map and a else a for a in rows.more[ANSWER].to_pylist()]
        odd |= {row: "the completion is empty" for row, answer in enumerate(answers) if not (answer or "").strip()}
        column = pa.chunked_array([pa.array(answers, pa.large_string())])
        return replace(rows, more={**rows.more, ANSWER: column}, odd=odd)
    texts, kept = [], []
    for row, value in enumerate(rows.more[TURNS].to_pylist()):
        try:
            turns = _turns(value)
        except ValueError as error:
            turns, odd[row] = [], str(error)
        kept.append(json.dumps(turns, ensure_ascii=False))
        texts.append("\n".join(turn["content"] for turn in turns) or "?")
    text, turned = (pa.chunked_array([pa.array(values, pa.large_string())]) for values in (texts, kept))
    return replace(rows, text=text, more={**rows.more, TURNS: turned}, odd=odd)


def _turns(value: Any) -> list[dict[str, str]]:
    """Return a conversation as it is rendered.

    Raises:
        ValueError: it is none; with the reason.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, list) or not value:
        raise ValueError("there is no list of messages")
    turns = []
    for number, turn in enumerate(value, 1):
        role, content = (turn.get(key) for key in ("role", "content")) if isinstance(turn, dict) else (None, None)
        if not isinstance(role, str) or not isinstance(content, str):
            raise ValueError(f"message {number} has no role and content of text")
        turns.append({"role": role, "content": content})
    if not any(turn["role"] == "assistant" and turn["content"].strip() for turn in turns):
        raise ValueError("no message is the assistant's, so there is nothing to learn")
    return turns


class Dialogues:
    """What the assistant says."""

    def __init__(self, config: DataConfig) -> None:
        self.config = config
        self.names: list[str] = []
        self.told = False

    @classmethod
    def find(cls, rows: Rows, config: DataConfig, known: list[str] | None) -> "Dialogues":
        """Return what is learned from any conversations."""
        return cls(config)

    def encode(self, rows: Rows) -> Encoded:
        """See `data.targets.Targets`."""
        return Encoded(None, np.zeros(len(rows), np.int64), np.zeros(len(rows), dtype=bool))

    def about(self, encoded: Encoded) -> str:
        """See `data.targets.Targets`."""
        what = "conversations" if self.config.messages else "prompts with their completions"
        return f"{len(encoded.strata):,} {what}"

    def lay_out(self, rows: Rows, encoded: Encoded, tokenizer: Any, limit: int | None) -> tuple[Any, int]:
        """See `data.targets.Targets`: rows are cut off at the limit; those of which nothing that is learned is left are
        an error, or left out with `data.bad_rows=drop`."""
        chat = Chat(tokenizer, plain=self.config.plain_prompts, control=not takes_specials_as_text(tokenizer))
        waiting, found = iter(range(len(rows))), list[Tokens]()
        with quiet("transformers"):
            while numbers := list(islice(waiting, AT_ONCE)):
                found += chat.encode([self._pieces(chat, rows, row) for row in numbers])
        long = [len(tokens.ids) > limit for tokens in found] if limit is not None else [False] * len(found)
        cut = [Tokens(tokens.ids[:limit], tokens.learned[:limit]) for tokens in found]
        blank = [row for row, tokens in enumerate(cut) if not any(tokens.learned[1:])]
        if blank and (self.config.bad_rows is BadRows.error or len(blank) == len(cut)):
            more = f" (and {len(blank) - 1:,} more)" if len(blank) > 1 else ""
            raise UserError(
                f"{rows.where(blank[0])}: its prompt alone has {limit} tokens or more, so that nothing of its answer "
                f"is left{more}: data.max_length= takes longer rows, data.bad_rows=drop leaves such rows out"
            )
        if blank:
            count, place = len(blank), rows.name
            log.info("data: %s: %d rows are left out, whose prompts alone have %s tokens or more", place, count, limit)
        kept = [tokens for tokens in cut if any(tokens.learned[1:])]
        self._log_example(tokenizer, kept[0])
        return language.as_split({"input_ids": [t.ids for t in kept], "labels": [t.labels for t in kept]}), sum(long)

    def _pieces(self, chat: Chat, rows: Rows, row: int) -> list[ChatPiece]:
        if self.config.messages:
            return chat.turns(json.loads(rows.more[TURNS][row].as_py()), rows.where(row))
        assert rows.text is not None
        return chat.pair(rows.text[row].as_py(), rows.more[ANSWER][row].as_py(), rows.where(row))

    def _log_example(self, tokenizer: Any, tokens: Tokens) -> None:
        """Show one row, once: what a template makes of it is where most mistakes are."""
        if not self.told:
            parts = language.parts_of(tokenizer, tokens.ids, tokens.labels)
            shown = "".join(f">>>{text}<<<" if learned else text for text, learned in parts)
            log.info("example (what is learned stands in >>> <<<): %s", json.dumps(shown, ensure_ascii=False))
        self.told = True


def fits(features: Mapping[str, Any]) -> bool:
    """Whether labels are tokens of one conversation a row."""
    return language.is_tokens(features) and "position_ids" not in features


def model(config: RunConfig, names: list[str], train: TokenTable | None) -> Head:
    """Return the head of a language model."""
    return language.head("sft")


def ends(tokenizer: Any, config: RunConfig) -> list[int]:
    """Return the tokens that end an answer."""
    return Chat(tokenizer, plain=config.data.plain_prompts).end_tokens()


TASK = Task(
    name="sft",
    pipeline="text-generation",
    metrics=("perplexity", "exact_match"),
    fits=fits,
    columns=columns,
    arrange=arrange,
    lacking=language.lacks_nothing,
    targets=Dialogues.find,
    model=model,
    weigh=language.weigh,
    collect=language.collect,
    score=language.score,
    ends=ends,
)
