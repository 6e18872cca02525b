"""What a data set holds, as a person looks at it before training: rows, classes, lengths, what is odd."""

import dataclasses
from typing import Any

import numpy as np

from ..config import BadRows, DataConfig, ModelConfig, NotReachable, UserError
from .prepare import Notes, Split, read_splits
from .quality import contradictions
from .rows import Rows
from .splits import collapse, normalize, text_keys
from .targets import CLASSES, Reading, odd_classes
from .tokens import tokenize, tokenizer_of

EXAMPLES = 10
"""Texts of a kind that are shown."""

LONGEST = 400
"""Letters of a text that are shown."""

SAMPLES = 5
"""Rows of a split that are shown."""

BINS = 20
"""Bars of a histogram of lengths, at most."""


def profile(
    config: DataConfig, model: ModelConfig, seed: int, sets: dict[str, str], task: Reading = CLASSES
) -> dict[str, Any]:
    """Return what the splits of a data set hold, as plain values; nothing is dropped but rows that cannot be read.

    Returns:
        `refused`: why training on it would end, or empty; `notes`: as `prepare`'s; `oddities`: lines; `names`;
        `splits` by name: `rows`, `from`, `classes` (rows by number), `samples`, and, where there are texts, `lengths`
        in tokens (min, median, p95, max, histogram) and `cut`, how many are longer than `limit`; `repeated`,
        `contradicting` and `leaks`: counts and examples.

    Raises:
        UserError: the data cannot be read at all.
    """
    seed = seed if config.seed is None else config.seed
    notes: Notes = {}
    refused = ""
    try:
        splits, targets = read_splits(config, seed, sets, notes, None, task)
    except UserError as error:
        if config.bad_rows is BadRows.drop:
            raise
        refused, notes = str(error), {}
        lenient = dataclasses.replace(config, bad_rows=BadRows.drop)
        splits, targets = read_splits(lenient, seed, sets, notes, None, task)
    tokenizer, limit, why = None, None, ""
    if splits["train"].rows.text is not None and task.opens is tokenizer_of:
        try:
            tokenizer, limit = tokenizer_of(config, model)
        except NotReachable as error:
            why = str(error)
    found: dict[str, Any] = {
        "refused": refused,
        "notes": {name: value for name, value in notes.items() if name not in ("oddities", "classes")},
        "oddities": notes["oddities"],
        "names": targets.names if task.odd is odd_classes else [],
        "about": notes["classes"],
        "limit": limit,
        "unknown_lengths": why,
    }
    names = found["names"]
    found["splits"] = {name: _split(split, names, tokenizer, limit) for name, split in splits.items()}
    for name in splits:
        found["splits"][name]["from"] = notes.get(f"{name}_from") or sets.get(name) or config.train
    everything = {name: split.rows for name, split in splits.items()}
    found["repeated"] = _repeated(everything["train"])
    train = splits["train"]
    found["contradicting"] = [
        [(_where(train.rows, row), names[train.encoded.strata[row]], _shown(train.rows, row)) for row in group[:3]]
        for group in (sorted(contradictions(train.rows, train.encoded.strata))[:EXAMPLES] if names else [])
    ]
    found["leaks"] = _leaks(everything)
    return found


def _split(split: Split, names: list[str], tokenizer: Any, limit: int | None) -> dict[str, Any]:
    rows, strata = split.rows, split.encoded.strata
    found: dict[str, Any] = {
        "rows": len(rows),
        "classes": np.bincount(strata[strata >= 0], minlength=len(names)).tolist() if names else [],
        "samples": [
            (_where(rows, row), names[strata[row]] if names else "", _shown(rows, row))
            for row in range(min(SAMPLES, len(rows)))
        ],
    }
    if tokenizer is not None and len(rows):
        offsets = tokenize(rows, tokenizer, None)[0]["input_ids"].combine_chunks().offsets.to_numpy()
        lengths = np.diff(offsets)
        counts, edges = np.histogram(lengths, bins=min(BINS, int(np.ptp(lengths)) + 1))
        low, middle, high, most = np.percentile(lengths, (0, 50, 95, 100), method="lower").tolist()
        found["lengths"] = {"min": low, "median": middle, "p95": high, "max": most}
        found["histogram"] = list(zip(edges[:-1].round().astype(int).tolist(), counts.tolist(), strict=True))
        found["cut"] = 0 if limit is None else int((lengths > limit).sum())
    return found


def _repeated(rows: Rows) -> dict[str, Any]:
    """Return how many rows have a text that stood there before (case and white space aside), and the most frequent."""
    keys = text_keys(rows, collapse)
    if keys is None:
        return {"count": 0, "examples": []}
    _, first, counts = np.unique(keys, return_index=True, return_counts=True)
    most = [place for place in np.argsort(-counts, kind="stable")[:EXAMPLES] if counts[place] > 1]
    examples = [(int(counts[place]), _where(rows, first[place]), _shown(rows, int(first[place]))) for place in most]
    return {"count": len(keys) - len(counts), "examples": examples}


def _leaks(splits: dict[str, Rows]) -> list[dict[str, Any]]:
    """Return, for every two splits, how many rows of the first have a text of the second, with the first few."""
    keys = {name: found for name, rows in splits.items() if (found := text_keys(rows, normalize)) is not None}
    pairs = [("train", other) for other in keys if other != "train"] + [("validation", "test")]
    leaks = []
    for name, other in pairs:
        if not {name, other} <= keys.keys():
            continue
        places = np.flatnonzero(np.isin(keys[name], keys[other]))
        there = {key: place for place, key in enumerate(keys[other].tolist())}
        same = [(place, there[int(keys[name][place])]) for place in places[:EXAMPLES].tolist()]
        examples = [(_where(splits[name], a), _where(splits[other], b), _shown(splits[name], a)) for a, b in same]
        leaks.append({"of": name, "in": other, "count": len(places), "examples": examples})
    return leaks


def _shown(rows: Rows, row: int) -> str:
    texts = [column[row].as_py() for column in (rows.text, rows.pair) if column is not None]
    whole = " ⏐ ".join(text or "" for text in texts)
    return whole if len(whole) <= LONGEST else f"{whole[:LONGEST].rstrip()} …"


def _where(rows: Rows, row: int) -> str:
    return rows.where(row).rpartition("/")[2]
