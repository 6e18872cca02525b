"""Modules of one's own that tests train: what transformers' classifiers have none of."""

from typing import Any

import torch


class Words(torch.nn.Module):
    """The mean of word vectors, and a linear layer.

    Args:
        normed: a batch normalization between them.
        extra: what a linear layer that stands beside them takes part in: `none` of the passes, or in those in
            training with an `odd` number of tokens.
    """

    def __init__(
        self, vocab_size: int, num_labels: int, width: int = 16, normed: bool = False, extra: str | None = None
    ) -> None:
        super().__init__()
        self.vectors = torch.nn.Embedding(vocab_size, width)
        self.norm = torch.nn.BatchNorm1d(width) if normed else torch.nn.Identity()
        self.extra = None if extra is None else torch.nn.Linear(width, width)
        self.odd = extra == "odd"
        self.head = torch.nn.Linear(width, num_labels)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor | None = None
    ) -> dict[str, Any]:
        mask = attention_mask.unsqueeze(-1).float()
        mean = (self.vectors(input_ids) * mask).sum(1) / mask.sum(1)
        if self.extra is not None and self.odd and self.training and int(attention_mask.sum()) % 2:
            mean = self.extra(mean)
        logits = self.head(self.norm(mean))
        return {"loss": None if labels is None else torch.nn.functional.cross_entropy(logits, labels), "logits": logits}
