"""A model, an optimizer and a schedule of your own: each is a preset by its name, or taken by its import path.

PYTHONPATH=examples python src/run.py plugins=[own_model] model=words optimizer=lion schedule=hold debug=smoke
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from skytune.config.targets import configurable


@configurable("model", "words")
class Words(torch.nn.Module):
    """The mean of word vectors and a linear layer: a baseline that trains in seconds."""

    def __init__(self, vocab_size: int, num_labels: int, width: int = 128) -> None:
        super().__init__()
        self.vectors = torch.nn.Embedding(vocab_size, width)
        self.head = torch.nn.Linear(width, num_labels)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor | None = None
    ) -> dict[str, Any]:
        """Return `logits` (rows x labels) and, where there are labels, the mean `loss`."""
        mask = attention_mask.unsqueeze(-1)
        logits = self.head((self.vectors(input_ids) * mask).sum(1) / mask.sum(1))
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


@configurable("optimizer", "lion")
class Lion(torch.optim.Optimizer):
    """Lion (Chen et al. 2023, arXiv:2302.06675): the sign of an averaged gradient."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        weight_decay: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.99,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "beta1": beta1, "beta2": beta2})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Update the weights from their gradients."""
        for group in self.param_groups:
            for weight in (w for w in group["params"] if w.grad is not None):
                mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
                update = torch.lerp(weight.grad, mean, group["beta1"]).sign_()
                weight.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=group["lr"])
                mean.lerp_(weight.grad, 1 - group["beta2"])


@configurable("schedule", "hold")
def hold(step: int, total_steps: int, share: float = 0.5) -> float:
    """The peak rate for a share of the steps, then linear decay to 0."""
    return min(1.0, (1 - step / total_steps) / (1 - share))
