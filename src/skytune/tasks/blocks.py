"""Texts laid end to end and cut into rows of one length."""

from collections.abc import Sequence

import numpy as np

IGNORED = -100


def blocks(texts: Sequence[Sequence[int]], end: int, length: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return rows of at most `length` tokens, and the position of every token in its text's part of the row.

    Every text ends with `end`. Where a position is 0 another text begins, or goes on in the next row; it is not
    foretold from what stands before it. A row of one token alone, from which nothing is learned, is left out.
    """
    ids, places = [], []
    for text in texts:
        ids.append(np.append(np.asarray(text, dtype=np.int32), np.int32(end)))
        places.append(np.arange(len(text) + 1, dtype=np.int32))
    if not ids:
        return [], []
    stream, position = np.concatenate(ids), np.concatenate(places)
    rows, positions = [], []
    for start in range(0, len(stream), length):
        row, own = stream[start : start + length], position[start : start + length].copy()
        begins = int(np.argmax(own == 0)) if (own == 0).any() else len(own)
        own[:begins] -= own[0]  # the rest of a text that began in the row before
        if (own > 0).any():
            rows.append(row)
            positions.append(own)
    return rows, positions


def learned(row: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return the labels of a row: all tokens but those that begin something."""
    return np.where(positions == 0, IGNORED, row).astype(np.int32)
