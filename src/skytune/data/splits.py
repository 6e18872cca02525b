"""Splits: cut off a share, shrink, and find texts that stand in two splits; always the same for the same seed.

Order comes from numpy's `RandomState`, whose stream is frozen by numpy's own policy, so that a seed gives the same
split with any version.
"""

import hashlib
import unicodedata
from collections.abc import Callable
from enum import IntEnum

import numpy as np

from .rows import Rows


class Purpose(IntEnum):
    """What an order is drawn for: the same seed gives each an order of its own."""

    test = 1
    validation = 2
    shrink = 3
    packaged = 4


def stratified_order(labels: np.ndarray, seed: int, purpose: Purpose) -> np.ndarray:
    """Return an order of all rows of which every beginning has the classes in (nearly) the shares of the whole.

    Row j of the n rows of a class, in random order, gets the place (j + 1/2) / n; rows are sorted by place. A
    beginning of length m holds m * n / len(labels) rows of that class, to within one or two. A shorter beginning is
    part of a longer one.

    Args:
        labels: (rows,) class numbers.
        seed: 0 to 2**32 - 1.
        purpose: what for.

    Returns:
        (rows,) positions.
    """
    random = np.random.RandomState([seed, int(purpose)])
    place = np.empty(len(labels), dtype=np.float64)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        place[random.permutation(rows)] = (np.arange(len(rows)) + 0.5) / len(rows)
    # Ties (classes of equal size) fall by a random number, else the first class would always come first.
    return np.lexsort((random.permutation(len(labels)), place))


def cut(labels: np.ndarray, size: int, seed: int, purpose: Purpose) -> tuple[np.ndarray, np.ndarray]:
    """Cut a stratified part off.

    Args:
        labels: (rows,) class numbers.
        size: rows to cut off.
        seed: 0 to 2**32 - 1.
        purpose: what for.

    Returns:
        Positions of the rows that stay (in their order) and of those cut off (in stratified order: every beginning
        of that split has all classes).
    """
    order = stratified_order(labels, seed, purpose)
    return np.sort(order[size:]), order[:size]


def fold_of(labels: np.ndarray, fold: int, folds: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut one of `folds` stratified parts off; together they are all rows, and each row is in one of them.

    Returns:
        Positions of the rows that stay (in their order) and of those of the part (in stratified order).
    """
    order = stratified_order(labels, seed, Purpose.validation)
    dealt = order[np.argsort(labels[order], kind="stable")][fold::folds]  # class by class, one to each part in turn
    part = np.isin(order, dealt)
    return np.sort(order[~part]), order[part]


def shrink(labels: np.ndarray, fraction: float, max_rows: int | None, seed: int) -> np.ndarray:
    """Return the positions of a stratified part of the rows, in their order; a smaller part lies in a bigger one."""
    size = max(1, round(len(labels) * fraction))
    size = min(size, max_rows or size, len(labels))
    if size == len(labels):
        return np.arange(len(labels))
    return np.sort(stratified_order(labels, seed, Purpose.shrink)[:size])


class _Letters(dict[int, int | None]):
    """A table for `str.translate` that deletes punctuation, white space and control characters, of any script."""

    def __missing__(self, letter: int) -> int | None:
        category = unicodedata.category(chr(letter))
        self[letter] = None if category[0] in "PZC" or category == "Sk" else letter
        return self[letter]


_letters = _Letters()


def collapse(text: str) -> str:
    """Return a text without outer white space, with single inner white space, casefolded."""
    return " ".join(text.split()).casefold()


def normalize(text: str) -> str:
    """Return the form in which two texts count as the same: casefolded, without punctuation and white space.

    White space alone is not enough: data sets tokenize the same sentence differently ("it 's" and "it's"). With this
    form 731 of SST-2's 872 validation sentences are found in Rotten Tomatoes' reviews, with `collapse` 394. A text of
    nothing but punctuation keeps it.
    """
    return text.translate(_letters).casefold() or collapse(text)


KEYS = "keys"
"""Role of a column (`Rows.more`) of uint64 keys, where what rows hold is no text: equal content has equal keys."""


def text_keys(rows: Rows, form: Callable[[str], str] = normalize) -> np.ndarray | None:
    """Return a 64-bit key of every row's text (and second text) in a normal form; equal texts have equal keys.

    Two different texts share a key with a probability of about n**2 / 2**65: 4e-7 for 3.6 million rows.

    Returns:
        (rows,) uint64. Without texts the keys are those of the token ids; None where there are none either.
    """
    if KEYS in rows.more:
        return np.asarray(rows.more[KEYS].to_numpy())
    if rows.text is None:
        return _number_keys(rows)
    keys = np.empty(len(rows), dtype=np.uint64)
    size = 10_000
    for start in range(0, len(rows), size):
        texts = rows.text.slice(start, size).to_pylist()
        pairs = None if rows.pair is None else rows.pair.slice(start, size).to_pylist()
        for offset, text in enumerate(texts):
            whole = form(text) if pairs is None else f"{form(text)}\0{form(pairs[offset])}"
            keys[start + offset] = key_of(whole.encode())
    return keys


def _number_keys(rows: Rows) -> np.ndarray | None:
    if rows.other is None or "input_ids" not in rows.other.column_names:
        return None
    ids = rows.other.with_format(None)["input_ids"]
    return np.array([key_of(np.asarray(row, dtype=np.int64).tobytes()) for row in ids], dtype=np.uint64)


def key_of(data: bytes) -> int:
    """Return a 64-bit key of some bytes."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
