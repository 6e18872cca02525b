"""Every next token of plain texts, which are laid end to end and cut into rows of `data.max_length`."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..config import DataConfig, RunConfig
from ..data.batches import TokenTable
from ..data.columns import Column, Columns
from ..data.rows import Rows
from ..data.targets import Encoded
from ..models import takes_specials_as_text
from ..models.head import Head
from ..models.quiet import quiet
from . import language
from .blocks import blocks, learned
from .task import Task

log = logging.getLogger(__name__)

LENGTH = 1024
"""Tokens of a row where `data.max_length` is empty and the model takes so many."""


def columns(config: DataConfig) -> Columns:
    """Return the column of texts."""
    return (Column("text", config.text, "data.text"),)


@dataclass(frozen=True)
class Texts:
    """All tokens of a text but the first."""

    length: int | None
    names: list[str]

    @classmethod
    def find(cls, rows: Rows, config: DataConfig, known: list[str] | None) -> "Texts":
        """Return what is learned from any texts."""
        return cls(config.max_length, [])

    def encode(self, rows: Rows) -> Encoded:
        """See `data.targets.Targets`."""
        return Encoded(None, np.zeros(len(rows), np.int64), np.zeros(len(rows), dtype=bool))

    def about(self, encoded: Encoded) -> str:
        """See `data.targets.Targets`."""
        return f"{len(encoded.strata):,} texts"

    def lay_out(self, rows: Rows, encoded: Encoded, tokenizer: Any, limit: int | None) -> tuple[Any, int]:
        """See `data.targets.Targets`: rows are not those of the table; `position_ids` begin anew with every text."""
        assert rows.text is not None
        length = self.length or min(limit or LENGTH, LENGTH)
        as_text = takes_specials_as_text(tokenizer)
        with quiet("transformers"):
            found = tokenizer(rows.text.to_pylist(), split_special_tokens=as_text, verbose=False)["input_ids"]
        eos = int(tokenizer.eos_token_id)
        texts = [ids[:-1] if ids and ids[-1] == eos else ids for ids in found]
        made, positions = blocks(texts, eos, length)
        log.info("data: %s: %d texts are %d rows of %d tokens", rows.name, len(texts), len(made), length)
        labels = [learned(row, own) for row, own in zip(made, positions, strict=True)]
        return language.as_split({"input_ids": made, "position_ids": positions, "labels": labels}), 0


def fits(features: Mapping[str, Any]) -> bool:
    """Whether labels are tokens, and positions begin anew inside a row."""
    return language.is_tokens(features) and "position_ids" in features


def model(config: RunConfig, names: list[str], train: TokenTable | None) -> Head:
    """Return the head of a language model."""
    return language.head("causal-lm")


TASK = Task(
    name="causal-lm",
    pipeline="text-generation",
    metrics=("perplexity",),
    fits=fits,
    columns=columns,
    lacking=language.lacks_nothing,
    targets=Texts.find,
    model=model,
    weigh=language.weigh,
    collect=language.collect,
    score=language.score,
)
