"""Why a run's steps cannot be captured in CUDA graphs, or packed as well: each reason is the end of a sentence."""

import importlib.util

import torch
from torch import nn

from ..config import CompileMode, Offload, OnNan, Precision, RunConfig, StrategyName
from ..config.schema.compute import PackedMode
from ..data.batches import Ragged, TokenTable
from ..distributed.capabilities import chosen
from ..distributed.context import DistContext
from ..packed import architectures as models
from .parameter_groups import SCALE

COLUMNS = {"input_ids", "attention_mask", "token_type_ids", "labels"}
"""Columns that the packed form understands."""


def not_captured_reason(config: RunConfig, world: DistContext, table: TokenTable) -> str:
    """Return why steps are not captured, packed or not, as the end of a sentence; empty if they may be."""
    if world.device.type not in ("cuda", "cpu"):
        return f"it does not run on {world.device.type}"
    if world.precision is Precision.fp8:
        return "precision fp8 scales by what the host reads"
    strategy = chosen(config, world.size)
    if strategy not in (StrategyName.single, StrategyName.ddp, StrategyName.fsdp):
        return f"strategy={strategy.value} spreads the step in its own way"
    if strategy is StrategyName.fsdp and world.size > 1 and config.compute.packed is PackedMode.auto:
        return "strategy=fsdp with its exchanges captured was not tried on several GPUs yet; compute.packed=on does it"
    if config.strategy.offload is not Offload.none:
        return f"strategy.offload={config.strategy.offload.value} keeps a part of the step on the CPU"
    if config.strategy.activation_checkpointing or config.strategy.find_unused_parameters:
        return "strategy.activation_checkpointing and strategy.find_unused_parameters are not there"
    if config.compile.mode is not CompileMode.off:
        return "compile.mode asks for torch.compile"
    if config.optimizer.gradient_noise:
        return "optimizer.gradient_noise is drawn for every step"
    if config.batch.auto:
        return "batch.auto=true may have to change the micro-batch"
    if config.debug.profile_steps:
        return "the profiler looks at single operations"
    if table.one_length:
        return "the model's logits depend on padding"
    return ""


def not_unpadded_reason(table: TokenTable, blocks: list[nn.Module]) -> str:
    """Return why a model's blocks cannot compute without padding, as the end of a sentence; empty if they may."""
    ids, mask = table.columns.get("input_ids"), table.columns.get("attention_mask")
    if not isinstance(ids, Ragged):
        return "the rows are not tokens"
    if not blocks:
        return "the model has no repeated blocks"
    return _masked(mask)


def _masked(mask: object) -> str:
    return "some tokens are masked inside their rows" if isinstance(mask, Ragged) and not mask.values.all() else ""


def not_packed_reason(
    config: RunConfig,
    world: DistContext,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    table: TokenTable,
) -> str:
    """Return why the packed step does not apply, as the end of a sentence; empty if it does."""
    if reason := not_captured_reason(config, world, table):
        return reason
    if chosen(config, world.size) is StrategyName.fsdp:
        return "strategy=fsdp gathers its blocks one by one"
    if world.device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if world.precision not in (Precision.bf16, Precision.fp32):
        return f"precision {world.precision.value} is not one of its own"
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
    if config.ema.decay:
        return "the moving average of the weights (ema.decay) follows every step"
    more = set(table.columns) - COLUMNS
    if more:
        return f"the rows have more columns ({', '.join(sorted(more))})"
    ids = table.columns.get("input_ids")
    if not isinstance(ids, Ragged) or table.labels is None:
        return "the rows are not tokens with one label each"
    return _masked(table.columns.get("attention_mask")) or models.why_not(model, ids.values)
