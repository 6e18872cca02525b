"""The training loop. It knows nothing of processes or files: a strategy spreads the step, callbacks do the rest."""

import math
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from ..config import RunConfig, UserError
from ..data.batches import TokenTable
from .callbacks import Callbacks, Run
from .devices import World
from .loader import Feed, Item
from .memory import Steps
from .order import SampleOrder
from .prediction import loss_of
from .schedule import factor, set_rate
from .strategy import Strategy


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
        UserError: the loss is not finite (with the step and its rows), memory ran out, or a callback failed.
    """
    config, world, model = run.config, run.world, strategy.module
    rate = factor(config.schedule, run.total_steps)
    feed = Feed(config, world, order, table, run.total_steps)
    steps = Steps(run, strategy, order.lengths)
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

        short = 1.0
        while short:  # once; again with smaller micro-batches only where memory ran out (`batch.auto`)
            seed_step(config.seed, run.step, world.rank)
            loss = steps.attempt(lambda: _gradients(strategy, feed.step(run.step, run.micro_batch), world.device), rows)
            # One exchange for all of it: the same loss, the same end, and the same attempt on all processes.
            said = torch.tensor([0.0, float(notice()), float(loss is None)], device=world.device)
            said[0] = 0.0 if loss is None else loss
            total, told, short = strategy.reduce_sum(said).tolist()
            if short:
                optimizer.zero_grad(set_to_none=True)
                steps.halve(rows, int(short))
        run.loss, run.preempted = total / world.size, told > 0
        if not math.isfinite(run.loss):
            raise _not_finite(run, rows)
        steps.finish()
        norm = strategy.clip(config.optimizer.clip_norm)
        strategy.step()

        run.grad_norm = None if norm is None else float(norm)
        run.step += 1
        run.rows += len(rows)
        run.tokens += int(order.lengths[rows].sum())
        world.synchronize()
        now = time.perf_counter()
        run.train_seconds += now - clock
        run.preempted = run.preempted and run.step < run.total_steps
        run.validating = not run.preempted and validation_due(config, run, order)
        callbacks("on_step_end", run)
        if run.preempted:
            break
        if config.callbacks:  # ours stop a run at a validation only
            run.stop = _anybody(run.stop, strategy, world)
        if run.validating or run.stop:
            run.metrics = validate()
            callbacks("on_validation_end", run)
            run.stop = _anybody(run.stop, strategy, world)
            model.train()
        clock = time.perf_counter()
    callbacks("on_run_end", run)


def _gradients(strategy: Strategy, batches: Iterator[Item], device: torch.device) -> torch.Tensor:
    """Add the gradients of this process's share of one global batch; return its part of the loss (a scalar).

    A function of its own, so that nothing of an attempt that ran out of memory outlives it.
    """
    loss = torch.zeros((), device=device)
    for micro, tensors in batches:
        with strategy.micro_step(micro.last):
            here = {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
            part = loss_of(strategy.module(**here)) * micro.weight
            strategy.backward(part)
        loss += part.detach()
    return loss


def _anybody(wish: bool, strategy: Strategy, world: World) -> bool:
    """Return whether any process has the wish: two that disagreed about the end would wait for each other for ever."""
    if world.size == 1:
        return wish
    return bool(strategy.reduce_sum(torch.tensor(float(wish), device=world.device)).item())


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


def _not_finite(run: Run, rows: np.ndarray) -> UserError:
    shown = ", ".join(str(row) for row in rows[:32]) + (", ..." if len(rows) > 32 else "")
    return UserError(
        f"the loss is {run.loss} at step {run.step + 1} of {run.total_steps} (rows {shown} of the train split); "
        f"a smaller optimizer.lr than {run.config.optimizer.lr:g}, optimizer.clip_norm or a look at those rows may help"
    )
