"""Chooses how a run's steps are taken, and says so: what the fast path asks for, and a trial before it is trusted.

Kernels are compiled for the card at hand, and models have corners that nobody thought of; a wrong gradient trains
something all the same. So logits and gradients of a few rows are held against the model's own.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from ..config import RunConfig, UserError
from ..config.schema.compute import PackedMode
from ..data.batches import TokenTable
from ..data.order import SampleOrder
from ..models import parity
from ..models.head import TEXT, Head
from ..models.outputs import logits_of
from ..packed.graph_step import GraphStep
from ..packed.ops import Drop
from ..packed.packing import GRAIN
from .callbacks.base import Run
from .captured_step import CapturedSteps
from .compiling import is_worth_it
from .eligibility import not_captured_reason, not_packed_reason
from .packed_step import PackedTrainStep
from .strategy import Strategy
from .train_step import EagerStep, TrainStep

log = logging.getLogger(__name__)

ROWS = 8

OFF = Drop(0.0, 0)


def open_steps(
    run: Run,
    strategy: Strategy,
    optimizer: torch.optim.Optimizer,
    order: SampleOrder,
    table: TokenTable,
    notice: Callable[[], bool],
    head: Head = TEXT,
) -> TrainStep:
    """Return the fastest way to take steps that applies: packed, captured, eager. Call when weights and optimizer are
    restored.

    Args:
        notice: whether this process was told to end.
        head: whose loss is computed.

    Raises:
        UserError: `compute.packed=on`, and neither of the fast ways applies.
    """
    wanted, world = run.config.compute.packed, run.world
    given = (run, strategy, optimizer, order, table, notice, head)
    if not _is_wanted(run):
        return EagerStep(*given)
    if head.stream is not None:
        reason = head.stream(run.model, table, strategy.autocast) or _elsewhere_streams(strategy, run.config)
        if reason and wanted is PackedMode.on:
            raise UserError(f"compute.packed=on: rows cannot be packed: {reason} (compute.packed=auto pads them)")
        table.streamed = not reason
        if world.main:
            log.info("rows are %s", f"padded: {reason}" if reason else "packed, none sees another")
    own = "the loss is not the model's own" if head.loss is not None or head.stream is not None else ""
    not_packed = own or not_packed_reason(run.config, world, run.model, optimizer, table)
    tried = not not_packed
    if tried:
        packed = PackedTrainStep(*given)
        not_packed = _try_out(packed, table)
        if not not_packed:
            return _opened(packed)
    not_captured = not_captured_reason(run.config, world, table)
    if not not_captured:
        captured = CapturedSteps(*given)
        if head.stream is None:
            not_packed = strategy.agreed(captured.unpad())
            captured.set_unpadded(not not_packed)
        compiled = captured.on_device and is_worth_it(run.total_steps, order) and captured.compile_blocks()
        not_captured = strategy.agreed(captured.prepare())
        while not_captured and (compiled or table.unpadded):
            if world.main:
                log.warning("blocks are not %s: %s", "packed" if table.unpadded else "compiled", not_captured)
            not_packed = not_packed or not_captured
            compiled, table.unpadded = compiled and table.unpadded, False
            captured = CapturedSteps(*given)
            compiled = compiled and captured.compile_blocks()
            not_captured = strategy.agreed(captured.prepare())
        if not not_captured:
            shapes, together = len(captured.shapes), table.streamed or table.unpadded
            run.report["steps_taken"] = "captured, rows packed" if together else "captured"
            seconds = round(captured.capture_seconds, 2)
            run.report["captured"] = {"shapes": shapes, "compiled": compiled, "capture_s": seconds}
            if world.main:
                how = f"captured {'packed' if together else 'with padding'}, {shapes} shapes"
                how += ", blocks compiled" if compiled else ""
                why = "" if together else f"; not packed: {not_packed}"
                log.info("fast path: steps %s (ready in %.1f s)%s", how, seconds, why)
            return captured
        tried = True
        captured.close()
    reason = not_captured if not_captured == not_packed else f"{not_captured}; not packed: {not_packed}"
    if table.streamed:
        reason = f"{not_captured} (rows are packed)"
    elif wanted is PackedMode.on:
        raise UserError(f"compute.packed=on: {reason} (compute.packed=auto takes steps eagerly)")
    if tried or world.main:
        level = logging.WARNING if tried else logging.INFO
        log.log(level, "steps are taken eagerly, not on the fast path: %s", reason)
    run.report["steps_taken"] = f"plain: {reason}"
    if is_worth_it(run.total_steps, order) and strategy.compile_blocks() and world.main:
        log.info("the model's blocks are compiled")
    return EagerStep(*given)


def _is_wanted(run: Run) -> bool:
    wanted = run.config.compute.packed
    return wanted is PackedMode.on or (wanted is PackedMode.auto and run.world.device.type == "cuda")


def _opened(steps: PackedTrainStep) -> PackedTrainStep:
    """Return packed steps with their graphs captured."""
    run, world = steps.run, steps.run.world
    if world.size > 1:
        run.collect = steps.collect
    steps.prepare()
    run.report["steps_taken"] = "fast"
    run.report["fast"] = {"budgets": steps.budgets, "capture_s": round(steps.capture_seconds, 2)}
    if world.main:
        budgets = ", ".join(map(str, steps.budgets))
        log.info("fast path: packed rows, budgets of %s tokens (captured in %.1f s)", budgets, steps.capture_seconds)
    return steps


def _elsewhere_streams(strategy: Strategy, config: RunConfig) -> str:
    """Return what keeps rows from being packed beside the model itself."""
    if strategy.no_sync() is None or config.batch.auto:
        return f"strategy={strategy.name} and batch.auto={str(config.batch.auto).lower()} need rows of their own"
    return ""


def _try_out(steps: PackedTrainStep, table: TokenTable) -> str:
    """Return how the packed form differs from the model on some process, as the end of a sentence."""
    run = steps.run
    try:
        rows = steps.order.rows(min(run.step, run.total_steps - 1))
        found = disagreement(run.model, steps.packed, table, rows)
    except Exception as error:  # a kernel that does not compile for this card, no memory for it
        found = f"trying it out failed with {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return steps.strategy.agreed(found)


def disagreement(module: nn.Module, step: GraphStep, table: TokenTable, rows: np.ndarray) -> str:
    """Return in what the packed form differs from the model without dropout, as the end of a sentence; empty if equal.

    Weights, optimizer state and random numbers are left as they are.

    Args:
        module: the fp32 model, on the step's device.
        rows: rows of the table to try; the first few are taken.
    """
    arena, device = step.model.arena, step.whole.device
    rows = rows[: min(ROWS, len(step.rows))]
    training = module.training
    module.eval()
    step.model.shell.eval()
    shapes = step.model.shapes
    step.model.shapes = [replace(shape, attention=OFF, project=OFF, fall=OFF) for shape in shapes]
    try:
        tensors = {name: tensor.to(device) for name, tensor in table.batch(rows).items()}
        labels = tensors.pop("labels")
        with torch.autocast(device.type, torch.bfloat16, enabled=arena.low is not arena.weights):
            expected = logits_of(module(**tensors)).float()
        nn.functional.cross_entropy(expected, labels).backward()
        step.rows.fill_(-1)
        step.rows[: len(rows)] = torch.from_numpy(rows).to(device)
        step.share.fill_(1 / len(rows))
        step.run(-(-int(table.lengths[rows].sum()) // GRAIN) * GRAIN, update=False, alone=True)
        loss = nn.functional.cross_entropy(expected.detach(), labels)
        within = parity.WITHIN[arena.low.dtype]
        if not torch.isclose(step.loss, loss, atol=within / 5, rtol=within / 5):
            return f"the packed form's loss is {float(step.loss):.4f}, the model's {float(loss):.4f}"
        named = [(name, p) for name, p in module.named_parameters() if p.grad is not None]
        found = [step.model.arena.grad_of(p) for _, p in named]
        name, error = parity.worst_gradient([name for name, _ in named], [p.grad for _, p in named], found)
        return "" if error <= within else f"the packed form's gradient of {name} is {error:.0%} off the model's"
    finally:
        step.model.shapes = shapes
        module.zero_grad(set_to_none=True)
        module.train(training)
        step.model.shell.train()
