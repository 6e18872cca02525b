"""The blocks of a model: what sharding takes at once, and what activation checkpointing computes twice."""

import functools
from collections import Counter
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from ...config import ConfigError


def find_blocks(model: torch.nn.Module, name: str | None = None) -> list[torch.nn.Module]:
    """Return the model's blocks, in order.

    Without a class name they are those that the model itself says must not be split (`_no_split_modules` of
    transformers), else those that are listed, of the class that the longest list has; [] where there is none.

    Raises:
        ConfigError: no module of that class; the message names those that repeat.
    """
    if name is not None:
        found = [module for module in model.modules() if type(module).__name__ == name]
        if not found or found == [model]:
            repeated = ", ".join(sorted(_repeated(model))) or "none"
            raise ConfigError(f"strategy.wrap={name}: the model has no such block; classes that repeat: {repeated}")
        return found
    named = set(getattr(model, "_no_split_modules", None) or ())
    # A model may name its embeddings too; one module alone is no block.
    found = [module for module in model.modules() if _class(module) in named & _repeated(model)]
    if found:
        inside = {part for block in found for part in block.modules() if part is not block}
        return [block for block in found if block not in inside]  # MBart names its blocks' attention, too
    lists = [list(m) for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len({type(i) for i in m}) == 1]
    lists = [blocks for blocks in lists if not isinstance(blocks[0], torch.nn.ModuleList)]  # Funnel's, lists of lists
    kind = type(max(lists, key=len)[0]) if lists else None
    return [block for blocks in lists for block in blocks if type(block) is kind]


def checkpoint_activations(blocks: list[torch.nn.Module]) -> None:
    """Let every block forget what its forward pass made, and compute it again in the backward pass.

    Raises:
        ConfigError: there are no blocks.
    """
    if not blocks:
        raise ConfigError("strategy.activation_checkpointing: the model has no repeated block; name one: strategy.wrap")
    for block in blocks:
        block.forward = functools.partial(_twice, block, block.forward)


def _twice(block: torch.nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not (block.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


def _repeated(model: torch.nn.Module) -> set[str]:
    """Return the names of classes of which there are several instances with parameters and children."""
    counts = Counter(
        _class(m) for m in model.modules() if next(m.children(), None) and next(m.parameters(), None) is not None
    )
    return {name for name, count in counts.items() if count > 1}


def _class(module: torch.nn.Module) -> str:
    """Return the name of a module's class as it was before torch's `fully_shard` derived another one."""
    return type(module).__name__.removeprefix("FSDP")
