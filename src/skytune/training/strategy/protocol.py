"""What the loop, the checkpoints and the results need of a way to spread the training step."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from ...config import OptimizerConfig

Tensors = Mapping[str, torch.Tensor]


class Strategy(Protocol):
    """A way to spread the training step; the loop does not know which one it has."""

    name: str
    """As the config names what is done: never `auto`, nor `dp` where there is one device."""

    module: torch.nn.Module
    """The model to call; possibly wrapped."""

    model: torch.nn.Module
    """The model without its wrapper; its weights may be shards."""

    optimizer: torch.optim.Optimizer
    """Over the prepared model's parameters, all of them, whoever holds their state."""

    sharded: bool
    """Whether every process holds state that others lack, and so writes files of its own into a checkpoint."""

    together: bool
    """Whether reading the state for a checkpoint takes all processes."""

    own_files: tuple[str, ...]
    """If `sharded`: files (`optimizer`) whose whole tensors only this process has; else all have the same."""

    @property
    def devices(self) -> int:
        """Devices that compute, all processes together."""

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """Place the model on the device and wrap it; return what the loop calls."""

    def place(self, model: torch.nn.Module) -> torch.nn.Module:
        """Place the model for prediction alone; return what is called."""

    def make_optimizer(self, config: OptimizerConfig) -> torch.optim.Optimizer:
        """Build the optimizer over the prepared model's parameters."""

    def micro_step(self, last: bool) -> AbstractContextManager[None]:
        """Context of one micro-batch's forward and backward; gradients are exchanged in the last one of a step only."""

    def alone(self) -> AbstractContextManager[None] | None:
        """Context in which forward and backward need no other process; None where there is no such thing (sharded
        weights). All processes enter it; what one does in it, and whether it fails, its peers do not notice. Gradients
        computed in it, `micro_step` or not, are this process's own until `exchange`."""

    def exchange(self) -> None:
        """Average over processes the gradients that were computed `alone`."""

    def agree(self) -> None:
        """Give all processes rank 0's buffers (a batch normalization's statistics), which are what is exported, before
        a prediction (collective)."""

    def autocast(self) -> AbstractContextManager[None]:
        """Context of a forward pass: the precision."""

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of an already weighted loss."""

    def clip(self, max_norm: float | None) -> torch.Tensor | None:
        """Clip the global gradient norm; return the norm before (a scalar), None without clipping."""

    def step(self) -> bool:
        """Update the weights and forget the gradients; return False where overflowing gradients were thrown away."""

    def reduce_sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of a small tensor over all processes."""

    def state(self) -> dict[str, torch.Tensor]:
        """Return the model's weights by name, under the names of the unwrapped model (for a checkpoint).

        Collective. Whole tensors where not `sharded`; else DTensors, and whole ones of which all processes have a copy.
        """

    def load(self, weights: Tensors) -> None:
        """Put weights that `state` returned back into the model; `weights` may read what is needed as it is asked."""

    def optimizer_state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the optimizer's state as `flatten_optimizer` does (collective); this process's part if `sharded`."""

    def load_optimizer(self, tensors: Tensors, values: Mapping[str, Any]) -> None:
        """Put a state back that any strategy on any number of processes saved."""

    def scaling(self) -> dict[str, Any] | None:
        """Return the state of the loss scaling in the form of `scaling`; None without it."""

    def load_scaling(self, values: Mapping[str, Any] | None) -> None:
        """Put the state of the loss scaling back."""

    def export(self) -> torch.nn.Module | None:
        """Return a plain model with whole weights on the main process (collective); others may get None."""

    def close(self) -> None:
        """Give back what was taken for it (a process group)."""


def size(parameter: torch.Tensor) -> int:
    """Return the numbers in a parameter, of all processes together (ZeRO's third stage leaves an empty tensor)."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))
