"""The training loop. It knows nothing of processes or files: a strategy spreads the step, callbacks do the rest."""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from ..config import RunConfig, UserError
from ..data.batches import TokenTable
from .callbacks import Callbacks, Run
from .devices import World
from .order import MicroBatch, SampleOrder, micro_batches
from .prediction import loss_of
from .schedule import factor, set_rate
from .strategy import Strategy

Tensors = dict[str, torch.Tensor]


def train(
    run: Run,
    *,
    strategy: Strategy,
    optimizer: torch.optim.Optimizer,
    order: SampleOrder,
    table: TokenTable,
    callbacks: Callbacks,
    validate: Callable[[], dict[str, float]],
    notice: Callable[[], bool] = lambda: False,
) -> None:
    """Take optimizer steps from `run.step` to `run.total_steps`, or until a process is told to end.

    One step is the gradient of the mean loss over one global batch, whatever it was cut into.

    Args:
        notice: whether this process was told to end; looked at once a step, shared with all processes.

    Raises:
        UserError: the loss is not finite (with the step and its rows), or a callback failed.
    """
    config, world, model = run.config, run.world, strategy.module
    rate = factor(config.schedule, run.total_steps)
    batches = iter(_loader(config, world, order, table, run.step, run.total_steps))
    model.train()
    callbacks("on_run_start", run)
    world.synchronize()
    clock = time.perf_counter()

    while run.step < run.total_steps and not run.stop:
        where, rows = order.position(run.step), order.rows(run.step)
        run.epoch = where.epoch
        if where.index == 0:
            callbacks("on_epoch_start", run)
        run.lr = config.optimizer.lr * rate(run.step)
        set_rate(optimizer, run.lr)
        seed_step(config.seed, run.step, world.rank)

        loss = torch.zeros((), device=world.device)
        for micro, tensors in _one_step(batches, run):
            with strategy.micro_step(micro.last):
                with strategy.autocast():
                    part = loss_of(model(**_to(tensors, world.device))) * micro.weight
                strategy.backward(part)
            loss += part.detach()
        # One exchange for both: all processes see the same loss, and end after the same step.
        total, told = strategy.reduce_sum(torch.stack([loss, loss.new_tensor(float(notice()))])).tolist()
        run.loss, run.preempted = total / world.size, told > 0
        if not math.isfinite(run.loss):
            raise _not_finite(run, rows)
        norm = strategy.clip(config.optimizer.clip_norm)
        # Gradients that overflow (fp16) are thrown away. The step counts all the same: its rows were used, and position
        # and learning rate stay functions of one number.
        taken = strategy.step()

        run.skipped += not taken
        run.grad_norm = None if norm is None or not taken else float(norm)
        run.step += 1
        run.rows += len(rows)
        run.tokens += int(order.lengths[rows].sum())
        run.flops += run.work.of(order.lengths[rows]) if run.work is not None else 0.0
        world.synchronize()
        now = time.perf_counter()
        run.train_seconds += now - clock
        run.preempted = run.preempted and run.step < run.total_steps
        run.validating = not run.preempted and validation_due(config, run, order)
        callbacks("on_step_end", run)
        if run.preempted:
            break
        if run.validating:
            run.metrics = validate()
            callbacks("on_validation_end", run)
            model.train()
        clock = time.perf_counter()
    callbacks("on_run_end", run)


def validation_due(config: RunConfig, run: Run, order: SampleOrder) -> bool:
    """Whether the step just taken is followed by a validation; the last one always is."""
    if run.step == run.total_steps or run.stop:
        return True
    if config.eval.every_steps and run.step % config.eval.every_steps == 0:
        return True
    every = config.eval.every_epochs * order.steps_per_epoch
    return bool(every) and run.step % every == 0


def total_steps(config: RunConfig, order: SampleOrder) -> int:
    """Return the optimizer steps of the whole run: `max_steps` where given, else `epochs` decides."""
    return config.max_steps or config.epochs * order.steps_per_epoch


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed torch's random streams (dropout) for one step of one process.

    They are a function of (seed, step, rank), so a resumed run draws what the uninterrupted one would have drawn.
    """
    torch.manual_seed(int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> 1))


class _Plan(Sampler[MicroBatch]):
    """The micro-batches of this process, in order, from a step on."""

    def __init__(self, config: RunConfig, world: World, order: SampleOrder, first: int, last: int) -> None:
        self.config, self.world, self.order, self.first, self.last = config, world, order, first, last

    def __iter__(self) -> Iterator[MicroBatch]:
        for step in range(self.first, self.last):
            yield from micro_batches(
                self.order.rows(step),
                step=step,
                rank=self.world.rank,
                world_size=self.world.size,
                micro_size=self.config.batch.micro_size,
            )


class _Batches(Dataset[tuple[MicroBatch, Tensors]]):
    """Builds the tensors of a micro-batch, in the training process or in a loader process."""

    def __init__(self, table: TokenTable, multiple: int) -> None:
        self.table, self.multiple = table, multiple

    def __getitem__(self, micro: MicroBatch) -> tuple[MicroBatch, Tensors]:
        return micro, self.table.batch(micro.rows, self.multiple)


def _loader(
    config: RunConfig, world: World, order: SampleOrder, table: TokenTable, first: int, last: int
) -> DataLoader[Any]:
    workers = config.loader.num_workers
    return DataLoader(
        _Batches(table, config.batch.pad_multiple),
        sampler=_Plan(config, world, order, first, last),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=config.loader.prefetch if workers else None,
        pin_memory=config.loader.pin_memory and world.device.type == "cuda",
    )


def _one_step(batches: Iterator[tuple[MicroBatch, Tensors]], run: Run) -> Iterator[tuple[MicroBatch, Tensors]]:
    """Yield the micro-batches of one optimizer step; the time until they are there is time spent waiting for data."""
    while True:
        clock = time.perf_counter()
        micro, tensors = next(batches)
        run.data_seconds += time.perf_counter() - clock
        yield micro, tensors
        if micro.last:
            return


def _to(tensors: Tensors, device: torch.device) -> Tensors:
    return {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}


def _not_finite(run: Run, rows: np.ndarray) -> UserError:
    shown = ", ".join(str(row) for row in rows[:32]) + (", ..." if len(rows) > 32 else "")
    return UserError(
        f"the loss is {run.loss} at step {run.step + 1} of {run.total_steps} (rows {shown} of the train split); "
        f"a smaller optimizer.lr than {run.config.optimizer.lr:g}, optimizer.clip_norm or a look at those rows may help"
    )
