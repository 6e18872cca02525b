"""T5's learned bias of positions, laid out as torch's fused attention takes it.

transformers leaves it with the heads innermost, for which torch multiplies in float32 and stores all scores. With the
keys innermost it takes its memory-efficient kernel, which has a gradient for the bias.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor


def lay_out(model: torch.nn.Module) -> None:
    """Have a model's attention of this kind (T5, mT5, UMT5, ...), if it has such, lay its bias out so from now on.
    Dropout of probabilities then draws other numbers, as often."""
    for part in model.modules():
        if callable(getattr(part, "compute_bias", None)) and hasattr(part, "relative_attention_bias"):
            part.compute_bias = partial(_keys_innermost, part)


def _keys_innermost(module: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Return [1, heads, queries, keys]."""
    found: Tensor = type(module).compute_bias(module, *args, **kwargs)
    return found.contiguous()
