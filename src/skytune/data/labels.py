"""Labels: which classes there are, in which order, and every row's number; anything that is not one is named.

What stands in a column is compared as text: names first. A number is a class's position only where `data.labels` (or
the data set) names classes and no name is that number.
"""

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..config import ConfigError, DataConfig, UserError
from ..models.classes import are_unnamed, label_map_word, labels_word, match_classes, whole_number
from .rows import Rows

MISSING = -1
"""The number of a label that is not known, as in GLUE's test splits."""

NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)
SHOWN = 10
"""Classes that a message names."""

LONGEST = 60
"""Letters of a class's name in a message."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Classes:
    """The classes of a data set, and what stands for them in its columns."""

    names: list[str]
    """Class names in the order of their numbers."""

    label_map: dict[str, str] = field(default_factory=dict)
    """`data.label_map`: what stands in a column, to what it counts as."""

    aliases: dict[str, int] = field(default_factory=dict)
    """Class numbers by what else stands for them: names that `data.labels` or a model replaces; positions."""

    def __str__(self) -> str:
        numbers = {number: text for text, number in self.aliases.items() if whole_number(text) is not None}
        return shorten(f"{numbers[n]}={name}" if n in numbers else name for n, name in enumerate(self.names))

    def numbers_of(self, texts: list[str]) -> list[int | None]:
        """Return the class number of each text of a column; None where it is no class."""
        texts = [_mapped(text, self.label_map) for text in texts]
        return [self.aliases.get(t) if n is None else n for t, n in zip(texts, _named(texts, self.names), strict=True)]


@dataclass(frozen=True)
class Labels:
    """A label column, each different value once."""

    codes: np.ndarray
    """Position in `texts` of every row."""

    texts: list[str | None]
    """What stands there; None where nothing is known."""

    def row_of(self, text: str) -> int:
        """Return the first row with this value."""
        return int(np.isin(self.codes, [code for code, found in enumerate(self.texts) if found == text]).argmax())

    def present(self) -> list[str]:
        """Return the different texts."""
        return list(dict.fromkeys(text for text in self.texts if text is not None))

    def lacking(self) -> np.ndarray:
        """Return which rows have no label."""
        return np.array([text is None for text in self.texts])[self.codes]


def find_classes(rows: Rows, config: DataConfig, known: list[str] | None = None) -> Classes:
    """Decide the classes from the train split.

    `data.labels` sets names and order, else what the data set declares. Else whole numbers are classes named by their
    numbers, in numeric order, and anything else is a name, sorted.

    Args:
        rows: the whole train split, before anything is cut off.
        config: `labels` and `label_map`.
        known: the classes of a trained model; the data's must be among them, and get its numbers.

    Raises:
        UserError: a label is missing or a fraction, or there are fewer than two classes.
        ConfigError: `data.labels` does not fit what stands in the column, or `known`.
    """
    if len(rows) == 0:
        raise UserError(f"{rows.name}: 0 rows are left, nothing to train on")
    label_map = config.label_map or {}
    labels = read_labels(rows, config)
    labelled(rows, np.where(labels.lacking(), MISSING, 0), whole=False)
    given, declared = (_all_mapped(names, label_map) for names in (config.labels, rows.names))
    names = given or declared or _found(rows, labels, label_map)
    aliases: dict[str, int] = {}
    if given and declared:
        aliases = _renamed(declared, given, label_map)
    elif given:
        aliases = _positions([text for text in labels.present() if _mapped(text, label_map) == text], given)
    if rows.names and not any(map(NUMBER.fullmatch, names)):  # other splits may have its numbers
        whole = Classes(names, label_map, aliases).numbers_of(rows.names)
        aliases |= {str(place): number for place, number in enumerate(whole) if number is not None}
    classes = Classes(names, label_map, aliases)
    present = np.unique(encode(rows, classes))
    if known is not None:
        return _adopt(classes, known, set(present.tolist()), stated=bool(given or declared))
    if len(present) < 2:
        raise UserError(
            f"{rows.name}: all {len(rows):,} rows have the label '{classes.names[present[0]]}': "
            "a classifier needs at least two classes"
        )
    return classes


def encode(rows: Rows, classes: Classes) -> np.ndarray:
    """Return every row's class number (int64); -1 where the label is not known.

    Raises:
        UserError: a label outside the classes; the message names it, its row and the way out.
    """
    if rows.label is None:
        return np.full(len(rows), MISSING, dtype=np.int64)
    labels = _read(rows, {*classes.names, *classes.label_map, *classes.aliases})
    texts = labels.present()
    numbers = dict(zip(texts, classes.numbers_of(texts), strict=True))
    outside = [text for text in texts if numbers[text] is None]
    if outside:
        first = min(outside, key=labels.row_of)
        pairs = _pairs(outside, [None] * len(outside), classes.names)
        ways = f"{label_map_word([*classes.label_map.items(), *pairs])} counts it as '{dict(pairs)[first]}'"
        if not classes.aliases:
            ways += f", {labels_word([*classes.names, *outside])} makes it a class"
        raise UserError(
            f"{rows.where(labels.row_of(first))}: label {first if NUMBER.fullmatch(first) else repr(first)} is not one "
            f"of the {len(classes.names)} classes ({classes}); {ways}"
        )
    table = [MISSING if text is None else numbers[text] for text in labels.texts]
    return np.array(table, dtype=np.int64)[labels.codes]


def labelled(rows: Rows, numbers: np.ndarray, whole: bool) -> bool:
    """Return whether a split has labels.

    Args:
        rows: the split.
        numbers: its class numbers.
        whole: a split without any label is allowed (a test split as in GLUE).

    Raises:
        UserError: some rows have a label and some have none, or none has one and `whole` is false.
    """
    lacking = numbers == MISSING
    if not lacking.any():
        return True
    if lacking.all() and whole:
        return False
    way = (
        ""
        if lacking.all()
        else "; data.bad_rows=drop leaves such rows out (a -1 that is a class: name it in data.labels)"
    )
    raise UserError(
        f"{rows.where(int(lacking.argmax()))}: has no label (empty or -1), and so have {int(lacking.sum()):,} of "
        f"{len(numbers):,} rows of {rows.name}; only a test or validation split may come without, and then wholly{way}"
    )


def read_labels(rows: Rows, config: DataConfig) -> Labels:
    """Return the label column of the train split."""
    return _read(rows, {*(config.labels or ()), *(config.label_map or ()), *(rows.names or ())})


def shorten(names: Iterable[str]) -> str:
    """Return names as a person reads them: the first few, long ones without their middle."""
    shown = [name if len(name) <= LONGEST else f"{name[: LONGEST - 20]} … {name[-12:]}" for name in names]
    return ", ".join(shown[:SHOWN]) + (", ..." if len(shown) > SHOWN else "")


def _renamed(declared: list[str], given: list[str], label_map: dict[str, str]) -> dict[str, int]:
    """Return which of `data.labels` each class is that the data set declares: by name, or all by position."""
    found = match_classes(declared, given)
    if len(given) == len(declared) and not any(number is not None for number in found):
        found = list(range(len(given)))
    if None in found:
        raise ConfigError(
            f"data.labels=[{', '.join(given)}]: the data set has {len(declared)} classes: {shorten(declared)}; "
            f"{label_map_word([*label_map.items(), *_pairs(declared, found, given)])} says which is which"
        )
    return {name: number for name, number in zip(declared, found, strict=True) if number is not None}


def _positions(texts: list[str], given: list[str]) -> dict[str, int]:
    """Return which of `data.labels` each number means: none where names match, or are numbers themselves."""
    values = [whole_number(text) for text in texts]
    numbers = sorted({value for value in values if value is not None})
    if None in values or not numbers or any(map(NUMBER.fullmatch, given)):
        return {}
    if numbers[0] > 0:  # from 0 with a class that is absent, or from 1?
        word = label_map_word(zip(map(str, numbers), given, strict=False))
        raise ConfigError(
            f"data.labels=[{', '.join(given)}] names the numbers from 0, but the labels are "
            f"{shorten(map(str, numbers))}: {word} says which is which"
        )
    return {str(number): number for number in range(len(given))}


def _adopt(classes: Classes, known: list[str], present: set[int], stated: bool) -> Classes:
    """Return the data's classes with the numbers that a trained model gives them: by name, else all by position.

    Args:
        present: numbers of the classes that have rows; another one that the model does not know is left out.
        stated: somebody says in which order the data's are (`data.labels`, or the data set itself).
    """
    found = match_classes(classes.names, known)
    ordered = are_unnamed(classes.names) or (are_unnamed(known) and stated)
    if ordered and len(found) == len(known) and not any(number is not None for number in found):
        found = list(range(len(found)))
        log.info("data: the classes %s are the model's %s, in this order", classes, shorten(known))
    if any(number is None and place in present for place, number in enumerate(found)):
        pairs = _pairs(classes.names, found, known)
        raise UserError(
            f"the model's classes ({shorten(known)}) are not the data's ({shorten(classes.names)}): "
            f"{label_map_word([*classes.label_map.items(), *pairs])} says which is which"
        )
    places = dict(zip(classes.names, range(len(found)), strict=True)) | classes.aliases
    aliases = {text: number for text, place in places.items() if (number := found[place]) is not None}
    return Classes(list(known), classes.label_map, aliases)


def _pairs(names: list[str], found: list[int | None], known: list[str]) -> list[tuple[str, str]]:
    """Return a `data.label_map` to begin with: names that match none, each with a class that nothing matches."""
    free = [name for number, name in enumerate(known) if number not in found] or known
    lost = [name for name, number in zip(names, found, strict=True) if number is None]
    same = {name.casefold(): name for name in known}
    ordered = enumerate(sorted(lost, key=_in_order))
    return [(name, same.get(name.casefold(), free[place % len(free)])) for place, name in ordered]


def _found(rows: Rows, labels: Labels, label_map: dict[str, str]) -> list[str]:
    """Return the names of the classes that stand in a column, in their order."""
    texts = _all_mapped(labels.present(), label_map) or []
    if all(NUMBER.fullmatch(text) for text in texts):
        for text in labels.present():
            if not float(_mapped(text, label_map)).is_integer():
                named = labels_word(sorted(texts, key=_in_order)) if len(texts) <= 2 * SHOWN else "data.labels"
                raise UserError(
                    f"{rows.where(labels.row_of(text))}: label {text} is not a whole number; {named} names such "
                    "numbers where they are classes"
                )
    values = [whole_number(text) for text in texts]
    if None in values:
        return sorted(texts, key=_in_order)
    written: dict[int, list[str]] = {}
    for value, text in zip(values, texts, strict=True):
        written.setdefault(value or 0, []).append(text)  # never None here
    return [found[0] if len(found) == 1 else str(number) for number, found in sorted(written.items())]


def _in_order(text: str) -> tuple[bool, float, str]:
    """Sort numbers before names, and by what they are worth."""
    number = NUMBER.fullmatch(text)
    return (number is None, float(text) if number else 0.0, text)


def _named(texts: list[str], names: list[str]) -> list[int | None]:
    """Return the position in `names` of every text: as it stands, or as a whole number."""
    place = {name: number for number, name in enumerate(names)}
    worth: dict[int, int | None] = {}
    for number, name in enumerate(names):
        if (value := whole_number(name)) is not None:
            worth[value] = None if value in worth else number
    return [place[t] if t in place else worth.get(v) if (v := whole_number(t)) is not None else None for t in texts]


def _all_mapped(names: list[str] | None, label_map: dict[str, str]) -> list[str] | None:
    return None if names is None else list(dict.fromkeys(_mapped(name, label_map) for name in names))


def _mapped(text: str, label_map: dict[str, str]) -> str:
    if not label_map:
        return text
    (number,) = _named([text], list(label_map))
    return text if number is None else list(label_map.values())[number]


def _read(rows: Rows, names: set[str]) -> Labels:
    """Return a label column; -1 in a column of numbers is a label that is not known, where it is none of `names`."""
    column: Any = rows.label
    try:
        column = column.unify_dictionaries() if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    except pa.ArrowNotImplementedError as error:
        raise UserError(f"{rows.name}: labels of type {column.type} are neither names nor numbers") from error
    encoded = column.combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0) if encoded.num_chunks else pa.array([], column.type.value_type).dictionary_encode()
    codes = pc.fill_null(encoded.indices.cast(pa.int64()), len(encoded.dictionary)).to_numpy(zero_copy_only=False)
    used = set(np.unique(codes).tolist())
    texts = [_text(value) if n in used else None for n, value in enumerate(encoded.dictionary.to_pylist())]
    if str(MISSING) not in names and all(text is None or whole_number(text) is not None for text in texts):
        texts = [None if text is not None and whole_number(text) == MISSING else text for text in texts]
    return Labels(codes, [*texts, None])


def _text(value: Any) -> str | None:
    """Return a value as the text that a person would write for it; None for a blank and for not a number."""
    if value is None or value != value:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip() or None
