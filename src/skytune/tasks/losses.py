"""Losses of one class a row beside plain cross-entropy; each is a mean over rows, so any split of a batch adds up."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import ConfigError, LossConfig
from ..data.batches import TokenTable

if TYPE_CHECKING:
    import torch


def class_loss(
    config: LossConfig, names: list[str], train: TokenTable | None, shares: bool = False
) -> Callable[[Any, Any], Any] | None:
    """Return the loss that a configuration asks for, called with logits [rows, classes] and class numbers [rows] (or
    their `shares` [rows, classes]); None for the model's own.

    Raises:
        ConfigError: weights for another number of classes.
    """
    if train is None or (config.is_plain and not shares):
        return None
    weights, smoothing, gamma = _weights(config, names, train), config.label_smoothing, config.focal_gamma

    def loss(logits: "torch.Tensor", labels: "torch.Tensor") -> "torch.Tensor":
        from torch.nn.functional import cross_entropy

        each = None if weights is None else logits.new_tensor(weights)
        found: torch.Tensor = cross_entropy(logits, labels, weight=each, label_smoothing=smoothing, reduction="none")
        if gamma:
            found = found * (1 - (-cross_entropy(logits, labels, reduction="none")).exp()) ** gamma
        return found.mean()

    return loss


def _weights(config: LossConfig, names: list[str], train: TokenTable) -> list[float] | None:
    if config.class_weights is None:
        return None
    if config.class_weights == "balanced":
        assert train.labels is not None
        counts = np.bincount(train.labels, minlength=len(names))
        return [float(value) for value in len(train) / (len(names) * np.maximum(counts, 1))]
    if len(config.class_weights) != len(names):
        has = f"there are {len(names)} classes: {', '.join(names[:10])}"
        raise ConfigError(f"loss.class_weights has {len(config.class_weights)} numbers, {has}")
    return [float(value) for value in config.class_weights]
