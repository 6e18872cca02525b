"""Rows of many requests are put together, and each answer goes to who asked."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skytune.serve.batcher import Batcher, QueueFull
from skytune.serve.predictor import Row

texts = st.text("ab ", min_size=1, max_size=60)
rows = st.one_of(st.fixed_dictionaries({"text": texts}), st.fixed_dictionaries({"text": texts, "text_pair": texts}))


class Recorder:
    """Answers with the row itself."""

    def __init__(self) -> None:
        self.batches: list[list[Row]] = []

    def __call__(self, rows: Sequence[Row]) -> list[Any]:
        self.batches.append(list(rows))
        return [dict(row) for row in rows]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(rows, min_size=1, max_size=9), min_size=1, max_size=20), st.integers(1, 8))
def test_every_row_gets_its_own_answer(requests: list[list[Row]], size: int) -> None:
    compute = Recorder()

    async def ask() -> list[Any]:
        batcher = Batcher(compute, batch_size=size, limit=1000)
        work = asyncio.create_task(batcher.run())
        found = await asyncio.gather(*(batcher.answer(request) for request in requests))
        work.cancel()
        return found

    assert asyncio.run(ask()) == requests
    assert all(1 <= len(batch) <= size for batch in compute.batches)
    assert all(len({frozenset(row) for row in batch}) == 1 for batch in compute.batches)
    assert sum(map(len, compute.batches)) == sum(map(len, requests))


@settings(max_examples=60, deadline=None)
@given(st.lists(rows, min_size=1, max_size=40), st.integers(1, 8))
def test_a_batch_holds_who_waits_longest(waiting: list[Row], size: int) -> None:
    async def take() -> None:
        batcher = Batcher(Recorder(), batch_size=size, limit=1000)
        asked = asyncio.ensure_future(batcher.answer(waiting))
        await asyncio.sleep(0)
        while batcher.waiting:
            first, before = batcher.waiting[0], list(batcher.waiting)
            batch = batcher.take()
            assert first in batch
            assert [one for one in before if one not in batch] == batcher.waiting
            like = sorted(one.size for one in before if one.row.keys() == first.row.keys())
            sizes = [one.size for one in batch]
            assert any(like[at : at + len(sizes)] == sorted(sizes) for at in range(len(like)))  # neighbours by length
        asked.cancel()

    asyncio.run(take())


def test_more_than_may_wait_is_refused_and_what_waits_stays() -> None:
    async def ask() -> None:
        batcher = Batcher(Recorder(), batch_size=4, limit=5)
        first = asyncio.ensure_future(batcher.answer([{"text": "a"}] * 4))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await batcher.answer([{"text": "b"}] * 2)
        assert len(batcher.waiting) == 4
        second = asyncio.ensure_future(batcher.answer([{"text": "b"}]))
        work = asyncio.create_task(batcher.run())
        assert [len(await first), len(await second)] == [4, 1]
        work.cancel()

    asyncio.run(ask())


def test_a_batch_that_fails_is_an_answer_and_the_next_one_is_computed() -> None:
    def compute(rows: Sequence[Row]) -> list[Any]:
        if rows[0]["text"] == "bad":
            raise RuntimeError("broken")
        return list(rows)

    async def ask() -> None:
        batcher = Batcher(compute, batch_size=1, limit=5)
        work = asyncio.create_task(batcher.run())
        found = await batcher.answer([{"text": "bad"}, {"text": "good"}])
        assert isinstance(found[0], RuntimeError) and found[1] == {"text": "good"}
        work.cancel()

    asyncio.run(ask())
