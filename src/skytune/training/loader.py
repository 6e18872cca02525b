"""How the rows of a step reach this process: cut into micro-batches, padded, and prepared ahead by loader processes."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from ..config import RunConfig
from ..data.batches import TokenTable
from .compiling import WIDTH
from .devices import World
from .order import MicroBatch, SampleOrder

Tensors = dict[str, torch.Tensor]
Item = tuple[MicroBatch, Tensors]


class Feed:
    """The micro-batches of this process, step by step.

    They are prepared ahead for steps in order and one micro-batch size; whoever asks for another step or size than the
    next one makes it begin anew from there.
    """

    def __init__(self, config: RunConfig, world: World, order: SampleOrder, table: TokenTable, last: int) -> None:
        self.config, self.world, self.order, self.table, self.last = config, world, order, table, last
        self._next: tuple[int, int] | None = None
        self._items: Iterator[Item] = iter(())

    def step(self, number: int, micro_size: int) -> Iterator[Item]:
        """Yield the micro-batches of one optimizer step (steps count from 0), each with its tensors on the CPU."""
        if self._next != (number, micro_size):
            self._items = iter(self._loader(number, micro_size))
        self._next = None  # until the step is through
        for micro, tensors in self._items:
            yield micro, tensors
            if micro.last:
                break
        self._next = (number + 1, micro_size)

    def _loader(self, first: int, micro_size: int) -> DataLoader[Any]:
        micros = (
            micro
            for step in range(first, self.last)
            for micro in self.order.micro_batches(step, self.world.rank, self.world.size, micro_size)
        )
        return DataLoader(
            _Batches(self.table, self.config.batch.pad_multiple or WIDTH),
            sampler=micros,
            batch_size=None,
            num_workers=self.config.loader.num_workers,
            pin_memory=self.world.device.type == "cuda",
            generator=torch.Generator(),  # else it draws from the stream that dropout is drawn from
        )


class _Batches(Dataset[Item]):
    """Builds the tensors of a micro-batch, in the training process or in a loader process."""

    def __init__(self, table: TokenTable, multiple: int) -> None:
        self.table, self.multiple = table, multiple

    def __getitem__(self, micro: MicroBatch) -> Item:
        return micro, self.table.batch(micro.rows, self.multiple)
