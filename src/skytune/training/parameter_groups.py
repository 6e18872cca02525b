"""Which parameters decay, at which rate each one learns, and from when on: by name, by kind and by layer."""

import re
from collections.abc import Iterable
from typing import Any

import torch

from ..config import ConfigError, OptimizerConfig

SCALE = "lr_scale"
"""Key of a parameter group that learns at another rate than `optimizer.lr`: this many times it."""

UNDECAYED = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
"""Names of biases and normalizations, in small letters: those of transformers' `Trainer.get_decay_parameter_names`. To
import the Trainer takes two seconds, a fifth of the time to the first step."""


def parameter_groups(model: torch.nn.Module, config: OptimizerConfig) -> list[dict[str, Any]]:
    """Return the trainable parameters in groups of one rate and one weight decay; those that decay come first.

    Without `optimizer.no_decay` biases and normalization weights do not decay, by name and kind, as transformers'
    Trainer has it (XLNet, Funnel and ConvBERT have biases with two dimensions), nor anything with one dimension (a
    batch normalization's weights, which the Trainer's names miss).

    Raises:
        ConfigError: nothing is trainable, a pattern matches no parameter, or the model has no layers to tell apart.
    """
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not trainable:
        raise ConfigError("model: no parameter is trainable (is everything frozen?)")
    names = [name for name, _ in trainable]
    decays = _decaying(model, trainable, config.no_decay)
    scales = dict.fromkeys(names, 1.0)
    if config.layer_decay != 1:
        depths, top = layer_depths(model, "optimizer.layer_decay")
        scales = {name: config.layer_decay ** (top - depths[name]) for name in names}
    decay = {name: config.weight_decay if name in decays else 0.0 for name in names}
    left = list(names)
    for key, group in config.groups.items():
        matching = _matching(f"optimizer.groups.{key}.match", group["match"], names)
        for name in [name for name in left if name in matching]:
            left.remove(name)
            scales[name] = group["lr"] / config.lr if "lr" in group else 1.0
            decay[name] = group.get("weight_decay", config.weight_decay) if name in decays else 0.0
    groups: dict[tuple[bool, float, float], dict[str, Any]] = {}
    for name, parameter in trainable:
        found = groups.setdefault(
            (name not in decays, decay[name], scales[name]), {"params": [], "weight_decay": decay[name]}
        )
        found["params"].append(parameter)
        if scales[name] != 1:
            found |= {"lr": config.lr * scales[name], SCALE: scales[name]}
    return [group for _, group in sorted(groups.items(), key=lambda entry: entry[0][0])]  # stable


def _decaying(
    model: torch.nn.Module, trainable: list[tuple[str, torch.nn.Parameter]], patterns: list[str] | None
) -> set[str]:
    """Return the names of the parameters that decay."""
    if patterns is not None:
        names = [name for name, _ in trainable]
        return set(names) - {n for pattern in patterns for n in _matching("optimizer.no_decay", pattern, names)}
    norms = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, torch.nn.LayerNorm))
    return {
        name
        for name, p in trainable
        if p.ndim > 1 and not name.startswith(norms) and not UNDECAYED.search(name.lower())
    }


def _matching(key: str, pattern: str, names: Iterable[str]) -> set[str]:
    """Return the names in which a pattern is found.

    Raises:
        ConfigError: in none.
    """
    found = {name for name in names if re.search(pattern, name)}
    if not found:
        some = list(names)
        shown = ", ".join([*some[:2], "...", *some[-2:]] if len(some) > 4 else some)
        raise ConfigError(f"{key}={pattern}: matches no parameter that learns; they are {shown}")
    return found


def layer_depths(model: torch.nn.Module, key: str) -> tuple[dict[str, int], int]:
    """Return the layer of every parameter by name, and the head's: 0 is what comes before the first layer.

    Layers are the model's blocks in their order; what lies between two of them (a norm, a decoder's embeddings) belongs
    to the one before, what comes after the last one to the head.

    Args:
        key: configuration key that asks for it, for messages.

    Raises:
        ConfigError: the model has no repeated block.
    """
    from .strategy.blocks import find_blocks  # not above: strategies build their optimizers with this module

    blocks = {id(block): number for number, block in enumerate(find_blocks(model), 1)}
    prefixes = {f"{name}.": blocks[id(module)] for name, module in model.named_modules() if id(module) in blocks}
    if not prefixes:
        raise ConfigError(f"{key}: {type(model).__name__} has no repeated layers to tell apart; use optimizer.groups")
    depths: dict[str, int] = {}
    last, seen = 0, set[int]()
    for name, _ in model.named_parameters():
        own = next((number for prefix, number in prefixes.items() if name.startswith(prefix)), None)
        if own is not None:
            last = own
            seen.add(own)
        depths[name] = last if own is not None or len(seen) < len(blocks) else len(blocks) + 1
    return depths, len(blocks) + 1


class Unfreezing:
    """Which parameters do not learn yet in a step: a function of the step alone (`schedule.unfreeze_epochs`).

    Their gradients are computed and thrown away, so that every strategy exchanges the same ones in every step, and a
    run that goes on needs to know nothing.
    """

    def __init__(self, model: torch.nn.Module, epochs: float, steps_per_epoch: int) -> None:
        depths, self.top = layer_depths(model, "schedule.unfreeze_epochs")
        self.steps = epochs * steps_per_epoch
        self.layers = [(depths[name], p) for name, p in model.named_parameters() if p.requires_grad]

    def forget_frozen(self, step: int) -> None:
        """Leave parameters that do not learn in this step (from 0) without a gradient: they get no update, no decay."""
        lowest = self.top - int(step / self.steps)
        for depth, parameter in self.layers:
            if depth < lowest:
                parameter.grad = None
