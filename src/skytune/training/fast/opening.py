"""Chooses how a run's steps are taken, and says so."""

import logging
from collections.abc import Callable

import torch

from ...config import Precision, UserError
from ...config.compute import Fast
from ...data.batches import TokenTable
from ..callbacks import Run
from ..order import SampleOrder
from ..steps import EagerSteps, Steps, Taken
from ..strategy import Strategy
from .choice import why_not

log = logging.getLogger(__name__)

BLOCK = 32
"""Steps that are taken before the CPU waits for the device; a person waits that long for an answer to Ctrl-C."""


def open_steps(
    run: Run,
    strategy: Strategy,
    optimizer: torch.optim.Optimizer,
    order: SampleOrder,
    table: TokenTable,
    notice: Callable[[], bool],
) -> Steps:
    """Return the fast path where it applies, else the plain way. Call when weights and optimizer are restored.

    Args:
        notice: whether this process was told to end.

    Raises:
        UserError: `compute.fast=on`, and it does not apply.
    """
    wanted, world = run.config.compute.fast, run.world
    eager = EagerSteps(run, strategy, optimizer, order, table, notice)
    if wanted is Fast.off or (wanted is Fast.auto and world.device.type != "cuda"):
        return eager
    reason = why_not(run.config, world, run.model, optimizer, table)
    if reason:
        if wanted is Fast.on:
            raise UserError(f"compute.fast=on: {reason} (compute.fast=auto takes the plain way)")
        if world.main:
            log.info("steps are taken the plain way, not on the fast path: %s", reason)
        run.report["steps_taken"] = f"plain: {reason}"
        return eager
    assert isinstance(optimizer, torch.optim.AdamW)
    steps = FastSteps(run, strategy, optimizer, order, table, notice)
    differs = steps.try_out(table, order)
    if differs:
        if wanted is Fast.on:
            raise UserError(f"compute.fast=on: {differs} (compute.fast=auto takes the plain way)")
        log.warning("steps are taken the plain way, not on the fast path: %s", differs)
        run.report["steps_taken"] = f"plain: {differs}"
        return eager
    if world.size > 1:
        run.collect = steps.packed.collect
    steps.packed.prepare()
    run.report["steps_taken"] = "fast"
    run.report["fast"] = {"budgets": steps.packed.budgets, "capture_s": round(steps.packed.capture_seconds, 2)}
    if world.main:
        log.info(
            "fast path: packed rows, budgets of %s tokens (captured in %.1f s)",
            ", ".join(str(budget) for budget in steps.packed.budgets),
            steps.packed.capture_seconds,
        )
    return steps


class FastSteps:
    """Steps in blocks on packed rows, see `Steps`."""

    most = BLOCK

    def __init__(
        self,
        run: Run,
        strategy: Strategy,
        optimizer: torch.optim.AdamW,
        order: SampleOrder,
        table: TokenTable,
        notice: Callable[[], bool],
    ) -> None:
        from .models import PackedModel
        from .packing import DeviceTable
        from .taking import PackedSteps

        config, world = run.config, run.world
        self.run, self.strategy, self.notice = run, strategy, notice
        self.clips = config.optimizer.clip_norm is not None
        compute = torch.bfloat16 if world.precision is Precision.bf16 else torch.float32
        model = PackedModel(run.model, optimizer, compute)
        self.packed = PackedSteps(
            model,
            DeviceTable(table, world.device),
            order,
            seed=config.seed,
            rank=world.rank,
            world_size=world.size,
            micro_size=run.micro_batch,
            clip_norm=config.optimizer.clip_norm,
            total_steps=run.total_steps,
        )

    def try_out(self, table: TokenTable, order: SampleOrder) -> str:
        """Return how the packed form differs from the model on some process, as the end of a sentence."""
        from .checking import disagreement

        run = self.run
        try:
            rows = order.rows(min(run.step, run.total_steps - 1))
            found = disagreement(run.model, self.packed.packed, table, rows)
        except Exception as error:  # a kernel that does not compile for this card, no memory for it
            found = f"trying it out failed with {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        said = torch.tensor(float(bool(found)), device=run.world.device)
        elsewhere = bool(self.strategy.reduce_sum(said).item())
        return found or ("the packed form differs on another process" if elsewhere else "")

    @property
    def padding_share(self) -> float | None:
        """See `Steps`."""
        return self.packed.padding_share

    def close(self) -> None:
        """See `Steps`: the captured graphs, their memory, and the hold that they have on the exchange between processes
        (NCCL's communicator, whose end waits for theirs)."""
        self.packed.packed.forget()

    def take(self, rates: list[float]) -> Taken:
        """See `Steps`."""
        told = self.packed.take(self.run.step, rates)
        # One exchange a block: every process's part of the losses, and whether one was told to end.
        said = torch.cat([told[0], told.new_tensor([float(self.notice())])])
        *losses, end = self.strategy.reduce_sum(said).tolist()
        norms = told[1].tolist()
        return Taken(losses, [norm if self.clips else None for norm in norms], end > 0)
