"""Texts laid end to end: nothing is lost, nothing sees what it must not."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from skytune.tasks.blocks import blocks, learned

END = 99


@given(st.lists(st.lists(st.integers(0, 9), max_size=12), max_size=8), st.integers(2, 9))
def test_all_tokens_are_there_once(texts: list[list[int]], length: int) -> None:
    rows, positions = blocks(texts, END, length)
    stream = [token for text in texts for token in [*text, END]]
    cut = [stream[at : at + length] for at in range(0, len(stream), length)]
    kept = [row.tolist() for row in rows]
    assert all(row in cut for row in kept) and all(len(row) == length for row in kept[:-1])
    where = [(text, at) for text, own in enumerate(texts) for at in range(len(own) + 1)]
    for row, own in zip(kept, positions, strict=True):
        assert own[0] == 0 and set(np.diff(own)) - {1} <= set((-own[:-1]).tolist())
        assert (learned(np.array(row), own) != -100).any()
    # What a token sees is its own text, from where that began in the row.
    starts = [at for at in range(0, len(stream), length) if stream[at : at + length] in kept]
    if len(starts) == len(kept):
        for start, own in zip(starts, positions, strict=True):
            for place, position in enumerate(own.tolist()):
                text, at = where[start + place]
                assert position == min(at, place) and where[start + place - position][0] == text


def test_a_row_that_teaches_nothing_is_left_out() -> None:
    rows, positions = blocks([[1, 2], [3]], END, 3)
    assert [row.tolist() for row in rows] == [[1, 2, END], [3, END]] and positions[1].tolist() == [0, 1]
    assert [row.tolist() for row in blocks([[1, 2], []], END, 3)[0]] == [[1, 2, END]]
    assert blocks([], END, 3) == ([], [])
