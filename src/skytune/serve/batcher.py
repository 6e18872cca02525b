"""Micro-batches: rows that wait while the model computes are computed together, those of like length side by side."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from .predictor import Answer, Row


class QueueFull(Exception):
    """More rows would wait than may."""


@dataclass(eq=False)
class Waiting:
    """A row, and who waits for its answer."""

    row: Row
    size: int
    """Letters: near enough to the number of its tokens."""
    answer: "asyncio.Future[Answer | Exception]"


class Batcher:
    """Rows of many requests, computed by one thread.

    Nothing waits for more to come: while a batch is computed the next one gathers. A batch holds the row that waits
    longest, so that none waits for ever, and those next to it in length.

    Args:
        compute: called with rows of the same columns, in a thread of its own; what it returns of each is handed on.
        batch_size: most rows of a batch.
        limit: most rows that may wait.
        observe: told of every batch: rows, and seconds that they took.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[Row]], list[Answer | Exception]],
        *,
        batch_size: int,
        limit: int,
        observe: Callable[[int, float], None] = lambda rows, seconds: None,
    ) -> None:
        self.compute, self.batch_size, self.limit, self.observe = compute, batch_size, limit, observe
        self.waiting: list[Waiting] = []
        self.there = asyncio.Event()

    async def answer(self, rows: Sequence[Row]) -> list[Answer | Exception]:
        """Return the answers to rows, in their order.

        Raises:
            QueueFull: with them, too many would wait.
        """
        if len(self.waiting) + len(rows) > self.limit:
            raise QueueFull
        loop = asyncio.get_running_loop()
        added = [Waiting(row, sum(map(_letters, row.values())), loop.create_future()) for row in rows]
        self.waiting += added
        self.there.set()
        return list(await asyncio.gather(*(one.answer for one in added)))

    async def run(self) -> None:
        """Compute what waits, until cancelled."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="model") as thread:
            while True:
                await self.there.wait()
                batch = self.take()
                start = time.monotonic()
                found = await loop.run_in_executor(thread, self._computed, [one.row for one in batch])
                self.observe(len(batch), time.monotonic() - start)
                for one, answer in zip(batch, found, strict=True):
                    if not one.answer.done():  # its request was given up
                        one.answer.set_result(answer)

    def take(self) -> list[Waiting]:
        """Return the rows of the next batch, which wait no more."""
        first = self.waiting[0]
        like = sorted((one for one in self.waiting if one.row.keys() == first.row.keys()), key=lambda one: one.size)
        start = max(0, min(like.index(first) - self.batch_size // 2, len(like) - self.batch_size))
        batch = like[start : start + self.batch_size]
        taken = set(batch)
        self.waiting = [one for one in self.waiting if one not in taken]
        if not self.waiting:
            self.there.clear()
        return batch

    def _computed(self, rows: Sequence[Row]) -> list[Answer | Exception]:
        try:
            return self.compute(rows)
        except Exception as error:  # the server must outlive it
            return [error] * len(rows)


def _letters(value: Any) -> int:
    if isinstance(value, bytes):  # images are all of one size
        return 1
    return sum(map(len, value)) + len(value) if isinstance(value, list) else len(value)
