"""What is odd about labelled rows although they can be trained on: said before training, with a way out where there is
one. Nothing here changes a row."""

import math
import re
import shlex
from collections.abc import Mapping, Sequence

import numpy as np

from ..common.text import counted
from ..config import DataConfig
from ..models.classes import label_map_word, quoted_text
from .rows import Rows
from .splits import collapse, text_keys

NOTHING = {"nan", "none", "null", "nil", "na", "n/a", "n.a.", "#n/a", "-", "--", "?", "missing", "undefined"}
"""Names of classes (casefolded) by which people and programs mean that there is none."""

SHOWN = 4
"""Names that a line names."""

WIDE = 0.1
"""An accuracy that is not known to within this much, 95 % of the time, is hardly known."""


def class_oddities(names: Sequence[str], counts: Mapping[str, np.ndarray], config: DataConfig) -> list[str]:
    """Return what is odd about the classes, one line each.

    Args:
        names: classes in the order of their numbers.
        counts: [classes] rows of each class, by split (`train` and `test`, and others).
        config: what a person has said of classes already is not odd.
    """
    total = np.sum(list(counts.values()), axis=0)
    decided = {*(config.labels or ()), *(config.label_map or {}).values()}
    lines = []
    alike: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        alike.setdefault("".join(name.split()).casefold(), []).append(number)
    groups = [
        sorted(group, key=lambda n: (-total[n], names[n] != names[n].lower()))
        for group in alike.values()
        if len(group) > 1
    ]
    groups = [group for group in groups if not {names[n] for n in group} <= decided]
    if groups:
        pairs = [(names[n], names[group[0]]) for group in groups for n in group[1:]]
        shown = "; ".join(" and ".join(repr(names[n]) for n in group) for group in groups[:SHOWN])
        word = label_map_word([*(config.label_map or {}).items(), *pairs])
        lines.append(f"classes that differ in case or blanks alone: {shown}; {word} counts them as one")
    none = [name for name in names if name.strip().casefold() in NOTHING and name not in decided]
    if none:
        word = shlex.quote(f"data.missing=[{','.join(map(quoted_text, none))}]")
        rows = sum(int(total[names.index(name)]) for name in none)
        lines.append(
            f"{_listed(none)} ({rows:,} rows) may stand for no label; {word} data.bad_rows=drop leaves such rows out"
        )
    if all(re.fullmatch(r"-?\d+,\d+", name) for name in set(names) - decided or {""}):
        lines.append(
            f"{_listed(names)} look like numbers with a decimal comma: with a point they are task=regression's"
        )
    single = [name for name, count in zip(names, total, strict=True) if count == 1]
    if single:
        lines.append(f"{_classes(len(single), names)} a single row: {_listed(single)}")
    for split, found in ((name, counts[name]) for name in ("train", "test") if name in counts):
        absent = [name for name, here, all_ in zip(names, found, total, strict=True) if all_ > 0 and not here]
        if absent and found.sum():
            lines.append(f"{_classes(len(absent), names)} no row in {split}: {_listed(absent)}")
    empty = [name for name, count in zip(names, total, strict=True) if count == 0]
    if empty:
        lines.append(f"{_classes(len(empty), names)} no row at all: {_listed(empty)}")
    return lines


def small_test(rows: int, cut: bool) -> list[str]:
    """Return what is to be said of a test split that is too small for its interval.

    Args:
        rows: in the test split.
        cut: whether it was cut from train, so that `data.test_fraction` decides.
    """
    half = 1.96 * math.sqrt(0.25 / max(rows, 1))  # where a model is right half of the time: the widest interval
    if half <= WIDE:
        return []
    way = "data.test_fraction=0.3 cuts off more" if cut else "data.test names another one"
    known = f"an accuracy on it is known to {100 * half:.0f} points up or down"
    return [f"the test split has {counted(rows, 'row')}: {known}; {way}"]


def contradictions(rows: Rows, numbers: np.ndarray) -> list[list[int]]:
    """Return the positions of rows with the same text (case and white space aside) and different classes, by text."""
    keys = text_keys(rows, collapse)
    if keys is None:
        return []
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(keys[order].astype(np.int64)) != 0])
    same = np.split(order, starts[1:])
    return [group.tolist() for group in same if len(group) > 1 and len(np.unique(numbers[group])) > 1]


def contradicting_labels(rows: Rows, numbers: np.ndarray, names: Sequence[str]) -> list[str]:
    """Return what is to be said of texts that stand there with several classes."""
    groups = sorted(contradictions(rows, numbers))
    if not groups:
        return []
    first, second = groups[0][0], next(n for n in groups[0] if numbers[n] != numbers[groups[0][0]])
    example = f"{rows.where(first)} is {names[numbers[first]]!r}, {rows.where(second)} {names[numbers[second]]!r}"
    stand = "text stands" if len(groups) == 1 else "texts stand"
    return [f"{len(groups):,} {stand} in train with several labels; the first: {example}"]


def _classes(count: int, names: Sequence[str]) -> str:
    return f"{count:,} of {len(names):,} classes {'has' if count == 1 else 'have'}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:SHOWN])) + (", ..." if len(names) > SHOWN else "")
