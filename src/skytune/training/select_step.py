"""Chooses how a run's steps are taken, and says so: what the fast path asks for, and a trial before it is trusted.

Kernels are compiled for the card at hand, and models have corners that nobody thought of; a wrong gradient trains
something all the same. So logits and gradients of a few rows are held against the model's own.
"""

import importlib.util
import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from ..config import CompileMode, OnNan, Precision, RunConfig, StrategyName, UserError
from ..config.schema.compute import Fast
from ..data.batches import Ragged, TokenTable
from ..data.order import SampleOrder
from ..distributed.capabilities import chosen
from ..distributed.context import World
from ..models.head import TEXT, Head
from ..models.outputs import logits_of
from ..packed import architectures as models
from ..packed.graph_step import PackedStep
from ..packed.ops import Drop
from ..packed.packing import GRAIN
from .callbacks.base import Run
from .packed_step import PackedSteps
from .parameter_groups import SCALE
from .strategy import Strategy
from .train_step import EagerSteps, Steps

log = logging.getLogger(__name__)

COLUMNS = {"input_ids", "attention_mask", "token_type_ids", "labels"}
"""Columns that the packed form understands."""

ROWS = 8

WITHIN = {torch.float32: 1e-2, torch.bfloat16: 0.25}
"""Largest relative error of one parameter's gradient, ||found - expected|| / ||expected||. Rounding stays far below; a
term that is missing is 1."""

NEGLIGIBLE = 1e-3
"""Gradients smaller than this share of the largest are not looked at: a key's bias has none but rounding."""

OFF = Drop(0.0, 0)


def open_steps(
    run: Run,
    strategy: Strategy,
    optimizer: torch.optim.Optimizer,
    order: SampleOrder,
    table: TokenTable,
    notice: Callable[[], bool],
    head: Head = TEXT,
) -> Steps:
    """Return the fast path where it applies, else the plain way. Call when weights and optimizer are restored.

    Args:
        notice: whether this process was told to end.
        head: whose loss is computed.

    Raises:
        UserError: `compute.fast=on`, and it does not apply.
    """
    wanted, world = run.config.compute.fast, run.world
    if wanted is Fast.off or (wanted is Fast.auto and world.device.type != "cuda"):
        return EagerSteps(run, strategy, optimizer, order, table, notice, head)
    if head.stream is not None:
        reason = head.stream(run.model, table, strategy.autocast) or _elsewhere_streams(strategy, run.config)
        if reason and wanted is Fast.on:
            raise UserError(f"compute.fast=on: rows cannot be packed: {reason} (compute.fast=auto pads them)")
        table.streamed = not reason
        run.report["steps_taken"] = f"padded: {reason}" if reason else "packed"
        if world.main:
            log.info("rows are %s", f"padded: {reason}" if reason else "packed, none sees another")
        return EagerSteps(run, strategy, optimizer, order, table, notice, head)
    own = "the loss is not the model's own" if head.loss is not None else ""
    reason = own or why_not(run.config, world, run.model, optimizer, table)
    tried = not reason
    if tried:
        steps = PackedSteps(run, strategy, optimizer, order, table, notice)
        reason = _try_out(steps, table)
    if reason:
        if wanted is Fast.on:
            raise UserError(f"compute.fast=on: {reason} (compute.fast=auto takes the plain way)")
        if tried or world.main:
            level = logging.WARNING if tried else logging.INFO
            log.log(level, "steps are taken the plain way, not on the fast path: %s", reason)
        run.report["steps_taken"] = f"plain: {reason}"
        return EagerSteps(run, strategy, optimizer, order, table, notice, head)
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
    if strategy.alone() is None or config.batch.auto:
        return f"strategy={strategy.name} and batch.auto={str(config.batch.auto).lower()} need rows of their own"
    return ""


def why_not(
    config: RunConfig,
    world: World,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    table: TokenTable,
) -> str:
    """Return why the fast path does not apply, as the end of a sentence; empty if it does."""
    if world.device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if world.device.type not in ("cuda", "cpu"):
        return f"it does not run on {world.device.type}"
    if world.precision not in (Precision.bf16, Precision.fp32):
        return f"precision {world.precision.value} is not one of its own"
    strategy = chosen(config, world.size)
    if strategy not in (StrategyName.single, StrategyName.ddp):
        return f"strategy={strategy.value} spreads the step in its own way"
    if config.strategy.activation_checkpointing or config.strategy.find_unused_parameters:
        return "strategy.activation_checkpointing and strategy.find_unused_parameters are not there"
    if config.compile.mode is not CompileMode.off:
        return "compile.mode asks for torch.compile"
    if type(optimizer) is not torch.optim.AdamW:
        return f"the optimizer is {type(optimizer).__name__}, not AdamW"
    if any(group["amsgrad"] or group["maximize"] for group in optimizer.param_groups):
        return "AdamW's amsgrad and maximize are not there"
    if config.model.lora.on:
        return "an adapter (model.lora) is trained beside the weights"
    if any(SCALE in group for group in optimizer.param_groups) or config.schedule.unfreeze_epochs:
        return (
            "its parameters learn at one rate, all of them (optimizer.layer_decay, .groups, schedule.unfreeze_epochs)"
        )
    if config.optimizer.no_decay is not None:
        return "optimizer.no_decay may tell parameters apart that it updates together"
    if config.on_nan is not OnNan.stop:
        return f"on_nan={config.on_nan.value} looks at every step before it is taken"
    if config.batch.auto:
        return "batch.auto=true may have to change the micro-batch"
    if config.ema.decay:
        return "the moving average of the weights (ema.decay) follows every step"
    if config.debug.profile_steps:
        return "the profiler looks at single operations"
    more = set(table.columns) - COLUMNS
    if more:
        return f"the rows have more columns ({', '.join(sorted(more))})"
    if table.one_length:
        return "the model's logits depend on padding"
    ids = table.columns.get("input_ids")
    if not isinstance(ids, Ragged) or table.labels is None:
        return "the rows are not tokens with one label each"
    mask = table.columns.get("attention_mask")
    if isinstance(mask, Ragged) and not mask.values.all():
        return "some tokens are masked inside their rows"
    return models.why_not(model, ids.values)


def _try_out(steps: PackedSteps, table: TokenTable) -> str:
    """Return how the packed form differs from the model on some process, as the end of a sentence."""
    run = steps.run
    try:
        rows = steps.order.rows(min(run.step, run.total_steps - 1))
        found = disagreement(run.model, steps.packed, table, rows)
    except Exception as error:  # a kernel that does not compile for this card, no memory for it
        found = f"trying it out failed with {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    elsewhere = steps.strategy.total(bool(found)) > 0
    return found or ("the packed form differs on another process" if elsewhere else "")


def disagreement(module: nn.Module, step: PackedStep, table: TokenTable, rows: np.ndarray) -> str:
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
        within = WITHIN[arena.low.dtype]
        if not torch.isclose(step.loss, loss, atol=within / 5, rtol=within / 5):
            return f"the packed form's loss is {float(step.loss):.4f}, the model's {float(loss):.4f}"
        name, error = _worst_gradient(module, step)
        return "" if error <= within else f"the packed form's gradient of {name} is {error:.0%} off the model's"
    finally:
        step.model.shapes = shapes
        module.zero_grad(set_to_none=True)
        module.train(training)
        step.model.shell.train()


def _worst_gradient(module: nn.Module, step: PackedStep) -> tuple[str, float]:
    """Return the parameter whose gradient is furthest off, and its relative error."""
    named = [(name, p) for name, p in module.named_parameters() if p.grad is not None]
    norms = torch.stack([p.grad.float().norm() for _, p in named])
    gaps = torch.stack([(step.model.arena.grad_of(p).float() - p.grad.float()).norm() for _, p in named])
    errors = torch.where(norms > NEGLIGIBLE * norms.max(), gaps / norms.clamp(min=1e-30), 0.0)
    worst = int(errors.argmax())
    return named[worst][0], float(errors[worst])
