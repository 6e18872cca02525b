"""An exponential moving average of the weights (Polyak and Juditsky 1992, doi:10.1137/0330046, as it is used today).

With `ema.decay` on, the average is what is validated, selected and handed on; what trains are the raw weights. It costs
one more copy of the trainable weights on the device, one pass over them a step, one more copy in every checkpoint, and
two exchanges of the two copies a validation.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.optim.swa_utils import get_ema_multi_avg_fn

from ...checkpoint.shards import Stored, local_piece
from .base import Callback, Run


class Ema(Callback):
    """Averages the trainable weights of the model after every optimizer step.

    The average starts at the initial weights. So that it leaves them soon, the share that stays is
    min(decay, (1 + step) / (10 + step)), as in TensorFlow's `ExponentialMovingAverage(decay, num_updates)`: a function
    of the step alone, which a resumed run therefore goes on with exactly.

    Args:
        model: the unwrapped model, on its device. Its parameters may be sharded: each process averages its shards.
    """

    def __init__(self, decay: float, model: torch.nn.Module) -> None:
        self.decay = decay
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.averages = [weight.detach().clone() for weight in self.weights]
        by_weight = dict(zip(map(id, self.weights), self.averages, strict=True))
        # Tied weights have several names; a checkpoint holds all of them, as it does of the model.
        self.named = {
            name: by_weight[id(weight)]
            for name, weight in model.named_parameters(remove_duplicate=False)
            if id(weight) in by_weight
        }

    def on_step_end(self, run: Run) -> None:
        """Move the average a little towards the weights."""
        decay = min(self.decay, (1 + run.step) / (10 + run.step))
        with torch.no_grad():
            get_ema_multi_avg_fn(decay)(self.averages, [weight.detach() for weight in self.weights], None)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model have the average while the context lasts.

        Contents are exchanged, not tensors: whoever holds the weights' addresses (DDP, a captured graph) keeps them.
        """
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def hand_on(self) -> None:
        """Give the model the average for good."""
        with torch.no_grad():
            for weight, average in zip(self.weights, self.averages, strict=True):
                weight.copy_(average)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the average by parameter name, for a checkpoint; these are the live tensors."""
        return dict(self.named)

    def restore(self, tensors: Stored) -> None:
        """Go on from a checkpoint's average, bit for bit."""
        for name, average in self.named.items():
            piece = local_piece(average)
            piece.tensor.copy_(tensors.part(name, piece))

    def _exchange(self) -> None:
        with torch.no_grad():
            for weight, average in zip(self.weights, self.averages, strict=True):
                kept = average.clone()
                average.copy_(weight)
                weight.copy_(kept)
