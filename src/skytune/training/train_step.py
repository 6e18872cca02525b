"""Taking optimizer steps: eagerly, one at a time, and what the loop needs of any other way."""

import math
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from ..config import OnNan, RunConfig
from ..data.batches import TokenTable
from ..data.order import MicroBatch, SampleOrder, step_seed
from ..data.pixels import cores, scaled
from ..distributed.context import DistContext
from ..models.head import TEXT, Head
from ..models.outputs import logits_of, loss_of
from ..models.unpadded import places
from ..packed.packing import GRAIN
from ..packed.widths import Widths
from .callbacks.base import Run
from .compiling import WIDTH
from .gradient_noise import add_noise
from .oom import OomRetry
from .parameter_groups import Unfreezing
from .schedule import set_rate
from .strategy import Strategy

Item = tuple[MicroBatch, dict[str, torch.Tensor]]


@dataclass(frozen=True)
class StepResult:
    """What is known of the steps that were taken, the same on all processes."""

    losses: list[float]
    """Mean loss over the global batch of every step."""

    norms: list[float | None]
    """Norm of every step's gradient before clipping; None without clipping."""

    told: bool
    """Whether a process was told to end."""

    skipped: int = 0
    """Steps whose gradients overflowed (fp16) and were thrown away. They count as steps: their rows were used, and
    position and learning rate stay functions of one number."""


@dataclass(eq=False)
class TrainStep:
    """A way to take optimizer steps."""

    run: Run
    strategy: Strategy
    optimizer: torch.optim.Optimizer
    order: SampleOrder
    table: TokenTable
    notice: Callable[[], bool]
    """Whether this process was told to end."""

    head: Head = TEXT
    """It may have a loss in the place of the model's own."""

    most: int = field(default=1, init=False)
    """Steps that may be taken before anything is heard of them."""

    def __post_init__(self) -> None:
        """Make what the steps need; here nothing."""

    @property
    def padding_share(self) -> float | None:
        """Share of the computed tokens that was padding so far; None where nobody counted."""
        return None

    def take(self, rates: list[float]) -> StepResult:
        """Take the steps that follow `run.step`, one for every learning rate.

        Raises:
            UserError: memory ran out.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what only further steps would need."""


class EagerStep(TrainStep):
    """Every operation as the model has it, spread over processes by the strategy, one step at a time."""

    def __post_init__(self) -> None:
        multiple = self.run.config.batch.pad_multiple or WIDTH
        self.feed = Feed(self.run.config, self.run.world, self.order, self.table, self.run.total_steps, multiple)
        self.attempts = OomRetry(self.run, self.strategy, self.order.lengths)
        self.network = self.strategy.module
        every = self.run.config.schedule.unfreeze_epochs
        pixels = self.table.padding.pixels
        shades = None if pixels is None else pixels.shades
        self.shades = None if shades is None else torch.from_numpy(shades).to(self.run.world.device)
        self.unfreezing = Unfreezing(self.strategy.model, every, self.order.steps_per_epoch) if every else None

    def take(self, rates: list[float]) -> StepResult:
        """See `TrainStep`: the gradient of the mean loss over one global batch, whatever it was cut into."""
        run, world, strategy = self.run, self.run.world, self.strategy
        rows = self.order.rows(run.step)
        (rate,) = rates
        set_rate(self.optimizer, rate)
        short = 1.0
        while short:  # once; again with smaller micro-batches only where memory ran out (`batch.auto`)
            torch.manual_seed(step_seed(run.config.seed, run.step, world.rank))
            batches = self.feed.step(run.step, run.micro_batch)
            loss = self.attempts.attempt(partial(self._gradients, batches), rows)
            # One exchange for all of it: the same loss, the same end, and the same attempt on all processes.
            totals = torch.tensor([0.0, float(self.notice()), float(loss is None)], device=world.device)
            totals[0] = 0.0 if loss is None else loss
            total, told, short = strategy.reduce_sum(totals).tolist()
            if short:
                self.optimizer.zero_grad(set_to_none=True)
                self.attempts.shrink(rows, int(short))
        mean, config = total / world.size, run.config
        lenient = config.on_nan is not OnNan.stop
        norm: torch.Tensor | None = None
        if math.isfinite(mean):
            self.attempts.finish()
            if self.unfreezing is not None:
                self.unfreezing.forget_frozen(run.step)
            clip_norm = config.optimizer.clip_norm
            norm = strategy.clip(math.inf if lenient and clip_norm is None else clip_norm)
        # An infinite norm is nothing odd where the loss is scaled: the strategy leaves such steps out.
        if not math.isfinite(mean) or (lenient and strategy.scaler is None and not math.isfinite(float(norm or 0.0))):
            self.optimizer.zero_grad(set_to_none=True)
            return StepResult(
                [mean], [None if norm is None else float(norm)], told > 0
            )  # the weights stay what they were
        if noise := config.optimizer.gradient_noise:
            add_noise(strategy.model, noise, config.seed, run.step)
        done = strategy.step()
        return StepResult([mean], [None if norm is None or not done else float(norm)], told > 0, int(not done))

    def _gradients(self, batches: Iterator[Item]) -> torch.Tensor:
        """Add the gradients of this process's share of one global batch; return its part of the loss (a scalar).

        A function of its own, so that nothing of an attempt that ran out of memory outlives it.
        """
        device = self.run.world.device
        loss = torch.zeros((), device=device)
        for micro, tensors in self._waited(batches):
            with self.strategy.micro_step(micro.last):
                here = {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
                with self.strategy.autocast():
                    part = self._loss(here) * micro.weight
                self.strategy.backward(part)
            loss += part.detach()
        return loss

    def _loss(self, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the mean loss of a micro-batch over what counts in it."""
        raw = tensors.get("pixel_values")
        if self.shades is not None and raw is not None and raw.dtype == torch.uint8:
            tensors["pixel_values"] = scaled(raw, self.shades)
        if self.head.loss is None:
            return loss_of(self.network(**tensors))
        labels = tensors.pop("labels")
        found: torch.Tensor = self.head.loss(logits_of(self.network(**tensors)).float(), labels)
        return found

    def _waited(self, batches: Iterator[Item]) -> Iterator[Item]:
        """Yield the micro-batches; the time until each is there is time spent waiting for data."""
        clock = time.perf_counter()
        for item in batches:
            self.run.data_seconds += time.perf_counter() - clock
            yield item
            clock = time.perf_counter()


class Feed:
    """The micro-batches of this process, step by step.

    They are prepared ahead for steps in order and one micro-batch size; whoever asks for another step or size than the
    next one makes it begin anew from there.

    Args:
        last: the step that ends the run.
        multiple: what padded lengths are multiples of, or to which of a few shapes rows are padded.
    """

    def __init__(
        self,
        config: RunConfig,
        world: DistContext,
        order: SampleOrder,
        table: TokenTable,
        last: int,
        multiple: int | Widths,
    ) -> None:
        self.config, self.world, self.order, self.table, self.last = config, world, order, table, last
        self.multiple = multiple
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
            _Batches(self.table, self.multiple),
            sampler=micros,
            batch_size=None,
            num_workers=loader_processes(self.config.loader.num_workers, self.table),
            pin_memory=self.world.device.type == "cuda",
            generator=torch.Generator(),  # else it draws from the stream that dropout is drawn from
        )


SHARED = Path("/dev/shm")
"""Through which processes hand on tensors, on Linux."""


def loader_processes(asked: int | None, table: TokenTable) -> int:
    """Return how many processes build batches; see `loader.num_workers`."""
    if asked is not None:
        return asked
    # Containers often have 64 MB there, in which batches of images end with a bus error: threads decode then.
    roomy = not SHARED.is_dir() or shutil.disk_usage(SHARED).free > 2**30
    return min(16, max(1, cores() - 2)) if table.images is not None and roomy else 0


class _Batches(Dataset[Item]):
    """Builds the tensors of a micro-batch, in the training process or in a loader process."""

    def __init__(self, table: TokenTable, multiple: int | Widths) -> None:
        self.table, self.multiple = table, multiple

    def __getitem__(self, micro: MicroBatch) -> Item:
        return micro, lay_out(self.table, micro.rows, self.multiple, micro.epoch)


def lay_out(
    table: TokenTable, rows: np.ndarray, multiple: int | Widths, epoch: int | None = None
) -> dict[str, torch.Tensor]:
    """Return rows as a step takes them: padded to a multiple of a number, or to one of a few shapes."""
    width = multiple(rows) if isinstance(multiple, Widths) else multiple
    if table.unpadded:
        tensors = table.batch(rows, table.columns["input_ids"].longest, epoch)
        around = tensors["input_ids"].shape[1]
        tokens = width + GRAIN if width == around else width
        return tensors | places(table.lengths[rows], around, tokens, table.padding.left)
    if not table.streamed:
        return table.batch(rows, width, epoch, raw=True)
    return table.stream(rows, width, multiple.least.get(width, (0, 0)) if isinstance(multiple, Widths) else None)
