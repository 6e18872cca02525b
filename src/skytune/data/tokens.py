"""Texts to tokens: columns that a trainer takes as they are, unpadded; truncation is counted, never silent."""

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..config import ConfigError, DataConfig, ModelConfig, UserError
from ..models import (
    agree_on_padding,
    check_vocabulary,
    fetch,
    load_config,
    load_tokenizer,
    max_length,
    read_specials_as,
)
from ..models.quiet import quiet
from .rows import Rows

BATCH = 1000
"""Texts that are tokenized at once."""


def tokenizer_of(config: DataConfig, model: ModelConfig) -> tuple[Any, int | None]:
    """Return the tokenizer and the number of tokens at which texts are cut."""
    tokenizer = load_tokenizer(model)
    values = None if model._target_ else load_config(model, fetch(model.name, model.revision, weights=False))
    check_vocabulary(tokenizer, values)
    if values is not None:
        agree_on_padding(tokenizer, values)
    read_specials_as(tokenizer, config.special_tokens)
    limit = max_length(tokenizer, values)
    if config.max_length is not None and limit is not None and config.max_length > limit:
        raise ConfigError(f"data.max_length={config.max_length}: {model.name} takes {limit} tokens at most")
    return tokenizer, config.max_length or limit


def tokenize(rows: Rows, tokenizer: Any, limit: int | None) -> tuple[pa.Table, dict[str, Any], int]:
    """Return the tokens of one split as a table with its features, and how many texts were truncated.

    Columns: `input_ids` (list of int32), `attention_mask` (list of int8), and `token_type_ids` (list of int8) where the
    tokenizer makes them (for single texts only where they are not all 0, as XLNet's and Funnel's). Nothing is padded;
    nothing is written to disk.

    Args:
        rows: texts.
        tokenizer: a transformers tokenizer.
        limit: longest row in tokens; None is no limit.

    Raises:
        UserError: the tokenizer cannot take a special token that is written out in a text for text.
    """
    _check_special_tokens(rows, tokenizer)
    wanted = ["input_ids", "attention_mask"]
    # Of single texts they are the same for every text.
    typed = "token_type_ids" in tokenizer.model_input_names
    if typed and (rows.pair is not None or any(tokenizer("a", return_token_type_ids=True)["token_type_ids"])):
        wanted.append("token_type_ids")
    chunks: dict[str, list[pa.Array]] = {name: [] for name in wanted}
    truncated = 0
    with quiet("transformers"):
        for start in range(0, len(rows), BATCH):
            encoded, cut = _encode(rows, start, tokenizer, limit, wanted)
            truncated += cut
            for name in wanted:
                chunks[name].append(pa.array(encoded[name], _type(name)))
    table, features = as_table({name: pa.chunked_array(chunks[name], _type(name)) for name in wanted})
    return table, features, truncated


def as_table(columns: dict[str, Any]) -> tuple[pa.Table, dict[str, Any]]:
    """Return columns of tokens (lists, or Arrow's) as a table with its features."""
    import datasets

    table = pa.table({name: pa.array(c, _type(name)) if isinstance(c, list) else c for name, c in columns.items()})
    kinds = {name: "int32" if name == "input_ids" else "int8" for name in columns}
    return table, {name: datasets.List(datasets.Value(kind)) for name, kind in kinds.items()}


def _type(name: str) -> pa.DataType:
    return pa.list_(pa.int32() if name == "input_ids" else pa.int8())


def with_labels(table: pa.Table, features: dict[str, Any], labels: pa.Array, feature: Any) -> Any:
    """Return an Arrow table and its labels, of this feature, as a `datasets.Dataset` in torch format."""
    import datasets

    table = table.append_column("labels", pa.chunked_array([labels]))
    all_features = datasets.Features({**features, "labels": feature})
    table = table.cast(all_features.arrow_schema)
    return datasets.Dataset(table, info=datasets.DatasetInfo(features=all_features)).with_format("torch")


def _check_special_tokens(rows: Rows, tokenizer: Any) -> None:
    """Refuse a text in which the tokenizer finds a special token although it is to take it for text: those whose
    vocabulary has them as words (Unigram) do.

    Raises:
        UserError: with the row.
    """
    if not tokenizer.split_special_tokens:
        return
    others = [token for name, token in tokenizer.special_tokens_map.items() if name != "unk_token"]
    special = {token: tokenizer.convert_tokens_to_ids(token) for token in others if isinstance(token, str)}
    pattern = "|".join(map(re.escape, special))
    for column in (rows.text, rows.pair):
        if column is None or not pattern:
            continue
        for row in np.flatnonzero(pc.match_substring_regex(column, pattern, ignore_case=True)).tolist():
            ids = tokenizer(column[row].as_py(), add_special_tokens=False, verbose=False)["input_ids"]
            for token, number in special.items():
                if number in ids:
                    raise UserError(
                        f"{rows.where(row)}: the text contains {token}, which this tokenizer takes for its own special "
                        "token wherever it stands: take it out of the text, or use data.special_tokens=control"
                    )


def _encode(rows: Rows, start: int, tokenizer: Any, limit: int | None, wanted: list[str]) -> tuple[dict[str, Any], int]:
    """Tokenize one batch; rows that are too long are tokenized again, since only the tokenizer knows what must stay."""
    assert rows.text is not None
    columns = [column.slice(start, BATCH).to_pylist() for column in (rows.text, rows.pair) if column is not None]
    options: dict[str, Any] = {
        "padding": False,
        "return_attention_mask": True,
        "return_token_type_ids": "token_type_ids" in wanted,
        "verbose": False,  # no warning about texts that are too long: they are counted
    }
    encoded = tokenizer(*columns, truncation=False, **options)
    long = [row for row, ids in enumerate(encoded["input_ids"]) if limit is not None and len(ids) > limit]
    if long:
        again = tokenizer(
            *[[column[row] for row in long] for column in columns], truncation=True, max_length=limit, **options
        )
        for name in wanted:
            for place, row in enumerate(long):
                encoded[name][row] = again[name][place]
    return encoded, len(long)
