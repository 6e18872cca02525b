"""Whether a run's steps can be taken on the fast path, and why not."""

import importlib.util

import torch
from torch import nn

from ...config import CompileMode, Precision, RunConfig, StrategyName
from ...data.batches import Ragged, TokenTable
from ..devices import World
from ..refusals import chosen
from . import models

COLUMNS = {"input_ids", "attention_mask", "token_type_ids", "labels"}
"""Columns that the packed form understands."""


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
