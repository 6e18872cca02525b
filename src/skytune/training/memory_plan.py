"""What a training step is likely to need of a device's memory, told before the first one: weights, gradients, the
optimizer's state, and what the forward pass keeps for the backward pass.

The first three are counted. The last is an estimate for transformers, after Korthikanti et al. 2022 ("Reducing
activation recomputation in large transformer models", arXiv:2205.05198): of every token a block keeps about 8 vectors
of its width and 4 of its feed-forward layer's, attention by blocks of its own keeps no square.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..config import OptimizerName, Precision, RunConfig, StrategyName
from ..models.language import logits_at_once
from .strategy.blocks import find_blocks

if TYPE_CHECKING:
    from ..distributed.context import DistContext

GB = 1e9
HALF = (Precision.bf16, Precision.fp16, Precision.fp8)
HEAD = 4 * 4
"""Bytes that a language model's head takes for each logit that it holds at once."""


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes on one device."""

    weights: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.weights + self.gradients + self.optimizer + self.activations

    def line(self, available: int | None) -> str:
        """Return it in one line; with ways out where it does not fit."""
        parts = {name: getattr(self, name) for name in ("weights", "gradients", "optimizer", "activations")}
        told = ", ".join(f"{name} {value / GB:.2f}" for name, value in parts.items())
        line = f"memory: about {self.total / GB:.2f} GB a device ({told})"
        if available is None:
            return line
        line += f" of {available / GB:.1f} GB"
        if self.total <= available:
            return line
        smaller = "batch.micro_size=1 or strategy.activation_checkpointing=true"
        if self.activations < 0.5 * self.total:
            smaller = "model.lora.rank=16, or strategy=fsdp on several devices"
        return f"{line}: it will hardly fit; {smaller} needs less"


def plan_memory(
    model: torch.nn.Module, config: RunConfig, world: "DistContext", rows: int, width: int
) -> MemoryPlan | None:
    """Return what a step needs; None where the model is no transformer that says its sizes.

    Args:
        model: before it is wrapped or cut up.
        rows: of a micro-batch.
        width: tokens of its longest row.
    """
    told: Any = getattr(model, "config", None)
    told = told.get_text_config() if hasattr(told, "get_text_config") else told
    hidden, blocks = getattr(told, "hidden_size", None), find_blocks(model)
    if hidden is None or not blocks:
        return None
    parameters = list(model.parameters())
    trained = 4.0 * sum(p.numel() for p in parameters if p.requires_grad)
    weights = float(sum(p.numel() * p.element_size() for p in parameters))
    adam = config.optimizer.name is OptimizerName.adamw
    state = trained * (2 if adam else bool(config.optimizer.momentum))
    name, shares = config.strategy.name, max(1, world.size)
    if name in (StrategyName.fsdp, StrategyName.zero3):
        weights, trained, state = weights / shares, trained / shares, state / shares
    elif name in (StrategyName.optimizer_sharding, StrategyName.zero1, StrategyName.zero2):
        state /= shares
    size = 2 if world.precision in HALF else 4
    inner = getattr(told, "intermediate_size", None) or 4 * hidden
    block = rows * width * (8 * hidden + 4 * inner) * size
    if config.strategy.activation_checkpointing:
        kept = block + len(blocks) * rows * width * hidden * size
    else:
        kept = len(blocks) * block
    vocabulary = getattr(told, "vocab_size", 0) if _has_language_head(model) else 0
    head = float(HEAD * min(logits_at_once(world.device), rows * width * vocabulary))
    return MemoryPlan(weights, trained, state, kept + head)


def _has_language_head(model: Any) -> bool:
    return getattr(model, "get_output_embeddings", lambda: None)() is not None


def memory_of(device: torch.device) -> int | None:
    """Return the bytes that a device has; of a CPU what is free."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if device.type != "cpu":
        return None
    import psutil

    return int(psutil.virtual_memory().available)


def memory_line(model: torch.nn.Module, config: RunConfig, world: "DistContext", longest: int) -> str:
    """Return the line of a run whose longest row has so many tokens; empty where nothing is known, or where it is no
    question: of models without a language model's head that fit."""
    share = math.ceil(config.batch.global_size / world.size)
    plan = plan_memory(model, config, world, min(config.batch.micro_size or share, share), longest)
    if plan is None:
        return ""
    devices = 1 if world.device.type == "cuda" else world.size  # processes of one CPU share its memory
    available = memory_of(world.device)
    own = None if available is None else available // devices
    fits = own is None or plan.total <= own
    return "" if fits and not _has_language_head(model) else plan.line(own)
