"""What language models share: rows of tokens of which some count, the loss over all, and what is said of a split."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import DataConfig, UserError
from ..data.batches import IGNORED, Ragged, TokenTable
from ..data.rows import Rows
from ..models.head import Head
from .chat import last_turn
from .metrics import Answers, measure
from .perplexity import perplexity
from .task import Collected, Scored, Scoring, Section, Shown

if TYPE_CHECKING:
    import torch

TASK_KEY = "skytune_task"
"""Setting of a model's configuration that says what it was trained for."""

TRIED, LONGEST_TRIED = 8, 512
"""Rows that are tried before they are packed, and the tokens of the longest."""

SHOWN = 20
"""Answers that the report shows."""


def head(task: str) -> Head:
    """Return the head of a language model, which answers with losses."""
    return Head(auto="AutoModelForCausalLM", settings={TASK_KEY: task}, ready=ready, stream=stream)


def ready(model: Any, tables: Mapping[str, TokenTable]) -> None:
    """Have a model take labels and give losses; rows are filled up on the right, where a causal model sees nothing of
    it, so that no mask is needed."""
    from ..models.language import learn_tokens, looks_ahead

    learn_tokens(model, max((int(table.lengths.max(initial=1)) for table in tables.values()), default=1))
    if looks_ahead(model):
        raise UserError(
            f"{type(model).__name__} sees the tokens that come after a token, so it is no model of text to come: take "
            "one that is (model=smollm2-135m)"
        )
    for table in tables.values():
        table.padding = replace(table.padding, left=False)


def stream(model: Any, table: TokenTable, autocast: Callable[[], AbstractContextManager[None]]) -> str:
    """Return why rows may not be laid out one after the other, as the end of a sentence; empty if they may: a few are
    tried both ways."""
    import torch

    order = np.argsort(table.lengths, kind="stable")
    order = order[: max(2, int(np.searchsorted(table.lengths[order], LONGEST_TRIED, "right")))]
    rows = order[np.unique(np.linspace(0, len(order) - 1, TRIED).astype(int))]
    device, training = next(model.parameters()).device, model.training
    model.eval()
    try:
        with torch.no_grad(), autocast():
            apart, together = (
                float(model(**{name: tensor.to(device) for name, tensor in lay_out(rows).items()})["loss"])
                for lay_out in (table.batch, table.stream)
            )
    except Exception as error:  # whatever a model makes of positions and borders
        return f"trying it failed with {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    finally:
        model.train(training)
    within = 1e-4 if device.type == "cpu" else 2e-2  # half precision on a GPU
    return "" if abs(apart - together) <= within * abs(apart) else "the model's losses change (it may ignore positions)"


def lacks_nothing(rows: Rows, config: DataConfig) -> np.ndarray:
    """Return that no row lacks a label: what is learned are its tokens."""
    return np.zeros(len(rows), dtype=bool)


def as_lists(rows: list[Any], kind: str = "int32") -> Any:
    """Return rows of numbers as an Arrow column of lists."""
    import pyarrow as pa

    values = np.concatenate([np.zeros(0, kind), *rows]).astype(kind)
    ends = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(values))


def as_split(columns: dict[str, list[Any]]) -> Any:
    """Return rows of tokens by column, `labels` among them, as a `datasets.Dataset` in torch format."""
    import datasets
    import pyarrow as pa

    features = datasets.Features({name: datasets.List(datasets.Value("int32")) for name in columns})
    table = pa.table({name: as_lists(rows) for name, rows in columns.items()}).cast(features.arrow_schema)
    return datasets.Dataset(table, info=datasets.DatasetInfo(features=features)).with_format("torch")


def is_tokens(features: Mapping[str, Any]) -> bool:
    """Whether labels are lists of tokens."""
    return getattr(getattr(features.get("labels"), "feature", None), "dtype", "") == "int32"


def weigh(table: TokenTable) -> np.ndarray:
    """Return how many tokens of each row count, int64 [rows]."""
    assert isinstance(table.targets, Ragged)
    return table.targets.count(table.targets.values != IGNORED)


def collect(output: Any, batch: Mapping[str, "torch.Tensor"], head: Head) -> np.ndarray:
    """Return the summed negative log-likelihood of the tokens of each row that count, and their number: float32
    [rows, 2]."""
    from ..models.language import row_losses

    return np.asarray(row_losses(output, batch["labels"]).cpu().numpy())


def score(collected: Collected, targets: np.ndarray | Ragged, scoring: Scoring) -> Scored:
    """Return the perplexity over all tokens, and, of answers that were generated, how many are the true ones.

    Args:
        collected: of each row what `collect` keeps; where answers were generated also the number of their tokens, and
            these.

    Raises:
        UserError: no rows; losses that are not finite.
    """
    assert isinstance(targets, Ragged)
    starts, rows = collected.offsets[:-1], len(collected)
    if not rows:
        raise UserError("nothing to score: the split has 0 rows")
    sums, counts = collected.values[starts], collected.values[starts + 1]
    if not np.isfinite(sums).all():
        raise UserError("the model's losses are not finite: it diverged, try a smaller optimizer.lr or precision=fp32")
    found = perplexity(sums, counts)
    answers = _answers(collected, targets, scoring)
    if answers is not None:
        told, true = answers.predictions, answers.labels
        found["exact_match"] = sum(a == b for a, b in zip(told, true, strict=True)) / rows
    numbers = measure(
        scoring.metrics,
        scoring.extra if answers is not None else {},
        answers,
        lambda name: {name: found[name]} if name in found else {},
    )
    if scoring.shown is None:
        return Scored(dict(numbers), rows)
    low, high = found["perplexity_low"], found["perplexity_high"]
    interval = "" if math.isnan(low) else f"95% interval {low:.4g} to {high:.4g}, "
    headline = {"exact_match": "share"} if answers is not None else {}
    headline["perplexity"] = f"{interval}{int(found['tokens']):,} tokens"
    sections = _example(scoring.shown) if isinstance(scoring.shown, Shown) else []
    if answers is not None:
        sections.append(_shown_answers(scoring.shown, answers))
    results = {name: found[name] for name in ("perplexity_low", "perplexity_high", "tokens")}
    return Scored(dict(numbers), rows, headline=headline, results=results, sections=sections)


def _answers(collected: Collected, targets: Ragged, scoring: Scoring) -> Answers | None:
    """Return generated and true answers as texts; None where none were generated, or nobody can read them."""
    tokenizer = getattr(scoring.shown, "tokenizer", None)
    generated = len(collected.values) > 2 * len(collected)
    if tokenizer is None or not generated:
        return None

    def text(ids: Any) -> str:
        return str(tokenizer.decode([int(number) for number in ids], skip_special_tokens=True)).strip()

    told, true = [], []
    for row in range(len(collected)):
        own = slice(targets.offsets[row], targets.offsets[row + 1])
        told.append(text(collected.values[collected.offsets[row] + 3 : collected.offsets[row + 1]]))
        true.append(text(last_turn(targets.values[own], targets.values[own])[1]))
    return Answers(told, true, None)


def _example(shown: Shown) -> list[Section]:
    """Return the first row as the model sees it, what is learned told apart."""
    if not len(shown) or shown.tokenizer is None:
        return []
    row = shown.row(0)
    parts = parts_of(shown.tokenizer, row["input_ids"], row["labels"])
    values = {"parts": [{"text": text, "learned": learned} for text, learned in parts]}
    return [Section("example", values, "One row as the model sees it")]


def parts_of(tokenizer: Any, ids: Any, labels: Any) -> list[tuple[str, bool]]:
    """Return a row as texts, each with whether it is learned."""
    learned = np.asarray(labels) != IGNORED
    cuts = [0, *(np.flatnonzero(np.diff(learned)) + 1).tolist(), len(learned)]
    return [(str(tokenizer.decode(ids[a:b])), bool(learned[a])) for a, b in pairwise(cuts) if a < b]


def _shown_answers(shown: Any, answers: Answers) -> Section:
    """Return some answers, wrong ones first."""
    pairs = list(zip(answers.predictions, answers.labels, strict=True))
    order = sorted(range(len(pairs)), key=lambda row: pairs[row][0] == pairs[row][1])[:SHOWN]
    rows = []
    for row in order:
        whole = shown.row(row)
        prompt = last_turn(np.asarray(whole["input_ids"]), np.asarray(whole["labels"]))[0]
        text = shown.tokenizer.decode(prompt, skip_special_tokens=True)
        rows.append({"prompt": text, "told": pairs[row][0], "true": pairs[row][1]})
    wrong = sum(told != true for told, true in pairs)
    return Section("answers", {"rows": rows, "note": f"{wrong:,} of {len(pairs):,} are not the true one"}, "Answers")
