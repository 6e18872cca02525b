"""The training loop. It knows nothing of processes or files: `steps` are taken, callbacks do the rest."""

import logging
import math
import time
from collections.abc import Callable

import numpy as np

from ..config import OnNan, RunConfig, UserError
from ..data.order import SampleOrder
from .callbacks.base import Callbacks, Run
from .schedule import factor
from .strategy import Strategy
from .train_step import TrainStep

MOST_LOST = 10
"""Steps in a row that may be left out since loss or gradient were not finite: the weights themselves are lost then."""

log = logging.getLogger(__name__)


def train(
    run: Run,
    *,
    steps: TrainStep,
    strategy: Strategy,
    order: SampleOrder,
    callbacks: Callbacks,
    validate: Callable[[], dict[str, float]],
    rewind: Callable[[Run], int],
    stop_at: int | None = None,
) -> None:
    """Take optimizer steps from `run.step` to `run.total_steps`, or until a process is told to end.

    Args:
        rewind: puts weights and optimizer back to the last checkpoint (collective) and returns its step.
        stop_at: stop after this step as if told to; a validation that is due there is left to whoever goes on.

    Raises:
        UserError: loss or gradient are not finite (with the step and its rows) and `on_nan` does not help, memory ran
            out, or a callback failed.
    """
    config, world, model = run.config, run.world, strategy.module
    rate = factor(config.schedule, run.total_steps)
    peak = config.optimizer.lr * config.schedule.lr_scale(config.batch.global_size)
    # A callback of the user's may look at the weights after every step; ours do not look while there are newer ones.
    most = 1 if config.callbacks else steps.most
    model.train()
    callbacks("on_run_start", run)

    def agree_to_stop() -> None:
        """One process's wish is all processes': two that disagreed would wait for each other for ever."""
        run.stop = strategy.total(run.stop) > 0

    def validated() -> None:
        run.gather_full_state()
        run.metrics, run.validation_owed = validate(), False
        callbacks("on_validation_end", run)
        agree_to_stop()
        model.train()

    lost, last = 0, run.loss  # steps in a row that were left out; the loss before them
    if run.validation_owed and run.step != stop_at:  # whoever took the last step was told to end before it
        validated()
    world.synchronize()
    clock = time.perf_counter()

    while run.step < run.total_steps and run.step != stop_at and not run.stop:
        where = order.position(run.step)
        run.epoch = where.epoch
        if where.index == 0:
            callbacks("on_epoch_start", run)
        rates = [peak * rate(step) for step in steps_ahead(config, run, order, most, stop_at)]
        taken = steps.take(rates)
        world.synchronize()
        seconds = (time.perf_counter() - clock) / len(rates)
        run.skipped += taken.skipped
        if config.callbacks:
            run.gather_full_state()

        for run.unsynced_steps, run.lr, run.loss, run.grad_norm in zip(
            reversed(range(len(rates))), rates, taken.losses, taken.norms, strict=True
        ):
            rows = order.rows(run.step)
            if math.isfinite(run.loss) and math.isfinite(run.grad_norm or 0.0):
                lost, last = 0, run.loss
            else:
                lost += 1
                _leave_out(run, rows, lost, rewind)
                run.loss, run.grad_norm = last, None
            run.step += 1
            run.rows += len(rows)
            run.tokens += int(order.lengths[rows].sum())
            run.flops += run.work.of(order.lengths[rows]) if run.work is not None else 0.0
            run.train_seconds += seconds
            asked = taken.told or run.step == stop_at
            run.preempted = asked and not run.unsynced_steps and run.step < run.total_steps
            due = validation_due(config, run, order)
            run.validating, run.validation_owed = due and not run.preempted, due and run.preempted
            callbacks("on_step_end", run)
        if run.preempted:
            break
        if config.callbacks:  # ours stop a run at a validation only
            agree_to_stop()
        if run.validating or run.stop:
            validated()
        clock = time.perf_counter()
    callbacks("on_run_end", run)


def steps_ahead(config: RunConfig, run: Run, order: SampleOrder, most: int, stop_at: int | None = None) -> range:
    """Return the steps that may be taken at once: at most `most`, and none beyond a validation, a save, an epoch or
    `stop_at`."""
    ends = [run.step + most, run.total_steps, (run.step // order.steps_per_epoch + 1) * order.steps_per_epoch]
    if stop_at is not None:
        ends.append(stop_at)
    for every in (config.eval.every_steps, config.checkpoint.every_steps):
        if every:
            ends.append((run.step // every + 1) * every)
    return range(run.step, min(ends))


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


def _leave_out(run: Run, rows: np.ndarray, lost: int, rewind: Callable[[Run], int]) -> None:
    """Do what `on_nan` says of a step whose loss or gradient is not finite; the weights are those before it.

    Args:
        rows: those of the step.
        lost: how many such steps there were in a row.

    Raises:
        UserError: the run ends here.
    """
    config, world = run.config, run.world
    what = "gradient's norm" if math.isfinite(run.loss) else "loss"
    value = run.grad_norm if math.isfinite(run.loss) else run.loss
    shown = ", ".join(str(row) for row in rows[:32]) + (", ..." if len(rows) > 32 else "")
    message = f"the {what} is {value} at step {run.step + 1} of {run.total_steps} (rows {shown} of the train split)"
    if config.on_nan is OnNan.stop or lost == MOST_LOST:
        ways = (
            f"a smaller optimizer.lr than {config.optimizer.lr:g}, optimizer.clip_norm or a look at those rows may help"
        )
        many = f"; {lost} such steps in a row are too many for on_nan={config.on_nan.value}" if lost > 1 else ""
        raise UserError(f"{message}{many}; {ways}{'; on_nan=skip leaves such steps out' if lost == 1 else ''}")
    since = run.step if config.on_nan is OnNan.skip else rewind(run)
    run.skipped += run.step + 1 - since
    if world.main:
        back = f"; weights and optimizer are those of step {since} again, its rows since are left out"
        log.warning("%s: left out%s", message, back if config.on_nan is OnNan.rewind else "")
