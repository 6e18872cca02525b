"""Prompts and answers to tokens: which of them a model is to learn, and where an answer ends.

A conversation becomes text by the tokenizer's chat template. What is learned is what stands between "now the assistant
speaks" and the end of its turn, the token that ends it included: else the model would never stop. Both are found by
rendering the conversation up to a turn, with and without it, so any template does that adds turns at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..config import UserError

IGNORED = -100

Turn = dict[str, str]


@dataclass(frozen=True)
class ChatPiece:
    """Text that is tokenized by itself."""

    text: str
    learned: bool
    control: bool = True
    """Whether special tokens in it are the template's own; else they are text that somebody has written."""


@dataclass(frozen=True)
class Tokens:
    """One row."""

    ids: list[int]
    learned: list[bool]

    @property
    def labels(self) -> list[int]:
        """The ids that are learned, -100 elsewhere; a row's first token comes after nothing."""
        found = [number if learned else IGNORED for number, learned in zip(self.ids, self.learned, strict=True)]
        return [IGNORED, *found[1:]]


class Chat:
    """Conversations to tokens.

    Args:
        tokenizer: of transformers.
        plain: leave the chat template out: prompt, answer and the end token, one after the other.
        control: special tokens that are written out in a text are what they stand for.

    Raises:
        UserError: there is no end token, which an answer must end with.
    """

    def __init__(self, tokenizer: Any, *, plain: bool = False, control: bool = False) -> None:
        self.tokenizer, self.control = tokenizer, control
        self.plain = plain or not tokenizer.chat_template
        if tokenizer.eos_token_id is None:
            raise UserError(
                "the tokenizer has no end token (eos_token), so that no answer could ever end: take a language model's "
                "(model=smollm2-135m)"
            )
        self.specials = sorted(filter(None, map(str, tokenizer.all_special_tokens)), key=len, reverse=True)

    def pair(self, prompt: str, answer: str, where: str) -> list[ChatPiece]:
        """Return the pieces of a prompt and its answer."""
        if not self.plain:
            return self.turns([{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}], where)
        eos = str(self.tokenizer.eos_token)
        return [ChatPiece(prompt, False, self.control), ChatPiece(answer, True, self.control), ChatPiece(eos, True)]

    def turns(self, turns: Sequence[Turn], where: str) -> list[ChatPiece]:
        """Return the pieces of a conversation.

        Args:
            turns: `role` and `content` of every turn.
            where: names the row, for messages.

        Raises:
            UserError: no template, or one that leaves an answer out or changes what came before it.
        """
        if self.plain:
            raise UserError(
                f"{where}: conversations need a chat template, which this model's tokenizer does not have: take a "
                "model with one (often called instruct or chat), or data.prompt and data.completion"
            )
        pieces: list[ChatPiece] = []
        done = ""
        for number, turn in enumerate(turns):
            if turn["role"] != "assistant":
                continue
            whole = self._render(turns[: number + 1], where, False)
            before = self._render(turns[:number], where, True) if number else self._opening(whole, where)
            if not before.startswith(done) or not whole.startswith(before):
                raise UserError(
                    f"{where}: the chat template writes what came before turn {number + 1} anew once that turn is "
                    "there, so that it cannot be told what the model would see: split the conversation, or take "
                    "another template"
                )
            text, content = whole[len(before) :], turn["content"].strip()
            if content not in text:
                raise UserError(
                    f"{where}: the chat template leaves out the answer of turn {number + 1} ({content[:40]!r}), so "
                    "that there is nothing to learn: take a model whose template has assistant turns"
                )
            answer, rest = self._split(text, content)
            pieces += self._pieces(before[len(done) :], turns[: number + 1], False)
            pieces += self._pieces(answer, [turn], True)
            done = before + text[: len(text) - len(rest)]
        return pieces

    def encode(self, rows: Sequence[list[ChatPiece]]) -> list[Tokens]:
        """Tokenize rows of pieces; a beginning token is put first where the tokenizer does so for texts, and the
        template has none."""
        flat = [piece for row in rows for piece in row]
        ids: list[list[int]] = [[] for _ in flat]
        for control in (True, False):
            chosen = [number for number, piece in enumerate(flat) if piece.control is control and piece.text]
            if chosen:
                found = self.tokenizer(
                    [flat[number].text for number in chosen],
                    add_special_tokens=False,
                    split_special_tokens=not control,
                    return_attention_mask=False,
                    verbose=False,
                )["input_ids"]
                for number, tokens in zip(chosen, found, strict=True):
                    ids[number] = tokens
        first = self._first()
        made, at = [], 0
        for row in rows:
            tokens = Tokens([*first], [False] * len(first))
            for piece, own in zip(row, ids[at : at + len(row)], strict=True):
                tokens.ids.extend(own)
                tokens.learned.extend([piece.learned] * len(own))
            made.append(tokens)
            at += len(row)
        return made

    def end_tokens(self) -> list[int]:
        """Return the tokens that end an answer: the tokenizer's end token, and what the template ends a turn with."""
        found = {int(self.tokenizer.eos_token_id)}
        if not self.plain:
            pieces = self.turns([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "a trial")
            found.add(self.encode([pieces])[0].ids[-1])
        return sorted(found)

    def _first(self) -> list[int]:
        """Return the beginning token where rows have one and the template does not write it."""
        bos = self.tokenizer.bos_token_id
        if not self.plain or bos is None:
            return []
        return [bos] if self.tokenizer("a")["input_ids"][:1] == [bos] else []

    def _render(self, turns: Sequence[Turn], where: str, prompt: bool) -> str:
        try:
            return str(self.tokenizer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=prompt))
        except Exception as error:  # whatever a template raises: they are programs
            raise UserError(
                f"{where}: the chat template refuses it: {str(error).strip() or type(error).__name__}"
            ) from error

    def _opening(self, whole: str, where: str) -> str:
        """Return what a template writes before a conversation that the assistant opens: templates render no empty
        conversation, but what announces the assistant is the same after any turn."""
        trial = [{"role": "user", "content": "a"}]
        announced = self._render(trial, where, True)[len(self._render(trial, where, False)) :]
        return whole[: whole.find(announced) + len(announced)] if announced in whole else ""

    def _split(self, text: str, content: str) -> tuple[str, str]:
        """Return what the model is to say, up to the end of its turn, and what the template writes after that."""
        end = text.index(content) + len(content)
        ends = [(text.index(token, end), token) for token in self.specials if token in text[end:]]
        if not ends:  # a template without an end of turns: the tokenizer's end token ends them
            return text[:end] + str(self.tokenizer.eos_token), text[end:]
        place, token = min(ends)
        return text[: place + len(token)], text[place + len(token) :]

    def _pieces(self, text: str, turns: Sequence[Turn], learned: bool) -> list[ChatPiece]:
        """Cut contents that special tokens are written out in from the template's own text."""
        if self.control or not any(token in turn["content"] for turn in turns for token in self.specials):
            return [ChatPiece(text, learned)]
        pieces, at = [], 0
        for turn in turns:
            content = turn["content"].strip()
            place = text.find(content, at) if content else -1
            if place >= 0:
                pieces += [ChatPiece(text[at:place], learned), ChatPiece(content, learned, False)]
                at = place + len(content)
        return [*pieces, ChatPiece(text[at:], learned)]


def last_turn(ids: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the prompt of a row's last answer, and that answer with its end token: what comes before the last run of
    tokens that are learned, and that run."""
    learned = np.flatnonzero(labels != -100)
    breaks = np.flatnonzero(np.diff(learned) > 1)
    start = int(learned[breaks[-1] + 1] if len(breaks) else learned[0])
    return ids[:start], ids[start : learned[-1] + 1]
