"""A class a word: entities by B- and I- tags, or any other tags. The first token of a word has its class; the others,
and special tokens, count for nothing (-100)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..config import DataConfig, RunConfig, UserError
from ..data.answers import absent, as_lists, lacks_label
from ..data.batches import IGNORED, Ragged, TokenTable
from ..data.columns import Column, Columns
from ..data.rows import Rows
from ..data.targets import Encoded
from ..data.tokens import BATCH, as_table, with_labels
from ..models.head import Head
from ..models.outputs import logits_of
from ..models.tokenizer import see_blanks
from .metrics import Answers, measure
from .packaged_metrics import compute_packaged, entities
from .task import Collected, Scored, Scoring, Section, Shown, Task, check_scorable

if TYPE_CHECKING:
    import torch

WORDS = "words"
OUTSIDE = "O"
EXAMPLES = 20
METRICS = ("entity_f1", "entity_precision", "entity_recall", "accuracy")


def columns(config: DataConfig) -> Columns:
    """Return the columns of words and of their tags."""
    label = Column("label", config.label, "data.label", kind="values", needed=False)
    return (Column(WORDS, config.text, "data.text", kind="values"), label)


def arrange(rows: Rows, config: DataConfig) -> Rows:
    """Return rows whose words (and tags) are lists, and name those in which they do not fit together."""
    words = as_lists(rows, rows.more[WORDS])
    tags = None if rows.label is None else as_lists(rows, rows.label)
    named, odd = rows.names or [], dict(rows.odd)
    for row, (found, told) in enumerate(zip(words, tags or [None] * len(words), strict=True)):
        if not found:
            odd[row] = "there are no words"
        elif told is not None and len(found) != len(told):
            odd[row] = f"there are {len(found)} words and {len(told)} tags"
        elif told is not None and (wrong := _misplaced([_name(tag, named) for tag in told])):
            odd[row] = wrong
    text = pa.chunked_array([pa.array([" ".join(map(str, found or [])) for found in words], pa.large_string())])
    return replace(rows, text=text, more={**rows.more, WORDS: _column(words)}, label=tags and _column(tags), odd=odd)


def _column(values: list[Any]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array([None if v is None else [str(item) for item in v] for v in values])])


def _name(tag: Any, names: list[str]) -> str:
    return names[int(tag)] if names and str(tag).isdecimal() and int(tag) < len(names) else str(tag)


def _misplaced(tags: list[str]) -> str | None:
    """Return what is wrong with B- and I- tags: an entity begins with B-, and I- goes on with the same type."""
    for place, (before, tag) in enumerate(pairwise([OUTSIDE, *tags]), 1):
        if tag.startswith("I-") and before[1:] != tag[1:]:
            return f"tag {place} is '{tag}' after '{before}': an entity begins with 'B{tag[1:]}'"
    return None


@dataclass(frozen=True)
class TagTargets:
    """A tag a word."""

    names: list[str]

    @classmethod
    def find(cls, rows: Rows, config: DataConfig, known: list[str] | None) -> "TagTargets":
        """Return the tags of the train split: `data.labels`, the data set's own, or those that stand there, O first."""
        if rows.label is None:
            raise absent(rows, config)
        present = {_name(tag, rows.names or []) for tags in rows.label.to_pylist() for tag in tags or ()}
        names = known or config.labels or rows.names or sorted(present, key=lambda tag: (tag != OUTSIDE, tag[2:], tag))
        if len(names) < 2:
            raise UserError(f"{rows.name}: all words have the tag '{', '.join(names)}': at least two are needed")
        return cls(list(names))

    def encode(self, rows: Rows) -> Encoded:
        """See `data.targets.Targets`."""
        place = {name: number for number, name in enumerate(self.names)}
        tags = [None] * len(rows) if rows.label is None else rows.label.to_pylist()
        numbers = []
        for row, (words, told) in enumerate(zip(rows.more[WORDS].to_pylist(), tags, strict=True)):
            names = [self.names[0]] * len(words or ()) if told is None else [_name(t, rows.names or []) for t in told]
            if odd := [name for name in names if name not in place]:
                has = ", ".join(self.names[:10])
                raise UserError(f"{rows.where(row)}: tag '{odd[0]}' is not one of the {len(self.names)}: {has}")
            numbers.append([place[name] for name in names])
        missing = np.array([told is None for told in tags], dtype=bool)
        return Encoded(pa.array(numbers, pa.list_(pa.int64())), np.zeros(len(rows), np.int64), missing)

    def about(self, encoded: Encoded) -> str:
        """See `data.targets.Targets`."""
        assert encoded.values is not None
        counts = np.bincount(encoded.values.flatten().to_numpy(), minlength=len(self.names))
        most = sorted(zip(counts.tolist(), self.names, strict=True), reverse=True)[:6]
        return f"{len(self.names)} tags: " + ", ".join(f"{name} ({count:,})" for count, name in most)

    def lay_out(self, rows: Rows, encoded: Encoded, tokenizer: Any, limit: int | None) -> tuple[Any, int]:
        """See `data.targets.Targets`: words beyond the limit are neither learned nor scored, and counted."""
        import datasets

        if not tokenizer.is_fast:
            raise UserError(f"task=token-classification needs a fast tokenizer; this is a {type(tokenizer).__name__}")
        see_blanks(tokenizer)
        options = {"is_split_into_words": True, "truncation": limit is not None, "max_length": limit, "verbose": False}
        words, tags = rows.more[WORDS].to_pylist(), encoded.values.to_pylist() if encoded.values is not None else []
        ids, labels, cut = [], [], 0
        for row in range(len(words)):
            if row % BATCH == 0:
                found = tokenizer(words[row : row + BATCH], **options)
            of_word = found.word_ids(row % BATCH)
            first = [word is not None and word != before for before, word in pairwise([None, *of_word])]
            labels.append([tags[row][w] if f else IGNORED for w, f in zip(of_word, first, strict=True)])
            if not any(first):
                raise UserError(
                    f"{rows.where(row)}: no word of it has a token; data.max_length={limit} may be too short"
                )
            cut += max(word for word in of_word if word is not None) < len(words[row]) - 1
            ids.append(found["input_ids"][row % BATCH])
        table, features = as_table({"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids]})
        feature = datasets.List(datasets.ClassLabel(names=self.names))
        return with_labels(table, features, pa.array(labels, pa.list_(pa.int64())), feature), cut


def fits(features: Mapping[str, Any]) -> bool:
    """Whether labels are lists of classes."""
    return type(getattr(features.get("labels"), "feature", None)).__name__ == "ClassLabel"


def model(config: RunConfig, names: list[str], train: TokenTable | None) -> Head:
    """Return a head with a class a token."""
    return Head(auto="AutoModelForTokenClassification", settings={})


def weigh(table: TokenTable) -> np.ndarray:
    """Return how many words of each row count, int64 [rows]."""
    assert isinstance(table.targets, Ragged)
    counted = np.concatenate([[0], np.cumsum(table.targets.values != IGNORED)])
    return np.asarray(counted[table.targets.offsets[1:]] - counted[table.targets.offsets[:-1]])


def collect(output: Any, batch: Mapping[str, "torch.Tensor"], head: Head) -> list[np.ndarray]:
    """Return the logits of the words that count, float32 [words * classes] a row."""
    found, counted = logits_of(output), batch["labels"] != IGNORED
    if found.ndim != 3 or found.shape[:2] != counted.shape:
        raise UserError(f"the model returned logits of shape {list(found.shape)} for tokens {list(counted.shape)}")
    return [np.ravel(row[there].float().cpu().numpy()) for row, there in zip(found, counted, strict=True)]


def unlabelled(rows: Rows, tokenizer: Any, limit: int | None) -> tuple[pa.Table, dict[str, Any], int]:
    """Return the tokens of words, of which the first of each word counts; and how many rows lost words."""
    some = TagTargets([OUTSIDE])
    split, cut = some.lay_out(rows, some.encode(replace(rows, label=None)), tokenizer, limit)
    return split.with_format("arrow")[:], dict(split.features), cut


def score(collected: Collected, targets: np.ndarray | Ragged, scoring: Scoring) -> Scored:
    """Return the F1 of whole entities (by seqeval; without B- tags, of tags) and the accuracy of words.

    Raises:
        UserError: no rows; logits that are not finite.
    """
    assert isinstance(targets, Ragged)
    names, rows = scoring.names, len(targets)
    logits = collected.values.reshape(-1, len(names)).astype(np.float64)
    counted = targets.values != IGNORED
    truth, ends = targets.values[counted], np.concatenate([[0], np.cumsum(counted)])[targets.offsets]
    if len(truth) != len(logits):
        raise UserError(f"cannot score {len(logits)} predictions against {len(truth)} words")
    check_scorable(logits, rows)
    found = logits.argmax(axis=1)

    def by_row(numbers: np.ndarray) -> list[list[str]]:
        words = [names[number] for number in numbers]
        return [words[start:end] for start, end in pairwise(ends)]

    predictions, references = by_row(found), by_row(truth)

    def number(name: str) -> dict[str, float]:
        given, true = {"loss": (logits, truth), "accuracy": (found, truth)}.get(name, (predictions, references))
        return dict(compute_packaged(name, predictions=given, references=true))

    metrics = measure(scoring.metrics, scoring.extra, Answers(predictions, references, logits), number)
    if scoring.shown is None:
        return Scored(dict(metrics), rows)
    assert isinstance(scoring.shown, Shown)
    columns = ["type", "precision", "recall", "F1", "entities"]
    table = {"columns": columns, "rows": entities(references, predictions)}
    wrong = [row for row in range(rows) if predictions[row] != references[row]]
    wrong.sort(key=lambda row: -sum(a != b for a, b in zip(predictions[row], references[row], strict=True)))
    parts = [
        {"where": scoring.shown.where(row), "parts": _parts(scoring.shown, row, references[row], predictions[row])}
        for row in wrong[:EXAMPLES]
    ]
    note = f"{len(parts)} of {len(wrong):,} rows with a mistake"
    return Scored(
        dict(metrics),
        rows,
        headline={"entity_f1": "of whole entities", "accuracy": f"{len(truth):,} words"},
        results={"types": table["rows"]},
        sections=[Section("table", table, "By type"), Section("spans", {"rows": parts, "note": note}, "Entities")],
    )


def _parts(shown: Shown, row: int, truth: list[str], found: list[str]) -> list[dict[str, str]]:
    """Return words with what is to be said of each: right, missed (not found), wrong (found and not there)."""
    parts = []
    for word, true, told in zip(shown.words(row, IGNORED), truth, found, strict=True):
        kind = "" if true == told == OUTSIDE else "right" if true == told else "missed" if told == OUTSIDE else "wrong"
        tag = told if true == told else f"{told} (true: {true})"
        parts.append({"text": word, "kind": kind, "tag": tag, "title": f"predicted {told}, true {true}"})
    return parts


def predicted(collected: Collected, scoring: Scoring) -> dict[str, list[Any]]:
    """Return the tags of the words, a list a row."""
    found = collected.values.reshape(-1, len(scoring.names)).argmax(axis=1)
    ends = collected.offsets // len(scoring.names)
    return {"prediction": [[scoring.names[number] for number in found[a:b]] for a, b in pairwise(ends)]}


TASK = Task(
    name="token-classification",
    pipeline="token-classification",
    metrics=METRICS,
    fits=fits,
    columns=columns,
    arrange=arrange,
    lacking=lacks_label,
    targets=TagTargets.find,
    model=model,
    weigh=weigh,
    collect=collect,
    score=score,
    inputs=unlabelled,
    predicted=predicted,
)
