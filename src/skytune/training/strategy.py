"""How the model is spread over processes: one small protocol, so that the loop does not know which one it has."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from accelerate import Accelerator


class Strategy(Protocol):
    """What the loop needs of a way to spread the training step."""

    module: torch.nn.Module
    """The model to call; possibly wrapped."""

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """Place the model on the device and wrap it; return what the loop calls. Call before the optimizer is made."""

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the optimizer over the prepared model's parameters."""

    def micro_step(self, last: bool) -> AbstractContextManager[None]:
        """Context of one micro-batch's forward and backward; gradients are exchanged in the last one of a step only."""

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of an already weighted loss."""

    def clip(self, max_norm: float | None) -> torch.Tensor | None:
        """Clip the global gradient norm; return the norm before (a scalar), None without clipping."""

    def step(self) -> None:
        """Update the weights and forget the gradients."""

    def reduce_sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of a small tensor over all processes."""

    def state(self) -> dict[str, torch.Tensor]:
        """Return the whole model's weights by name, under the names of the unwrapped model (for a checkpoint)."""

    def load(self, weights: dict[str, torch.Tensor]) -> None:
        """Put weights that `state` returned back into the model."""

    def export(self) -> torch.nn.Module:
        """Return the unwrapped model with whole weights, ready to be saved or to predict."""


class Replicated:
    """Every process holds the whole model: plain with one process, DistributedDataParallel with more.

    Gradients are averaged over processes (by DDP); micro-batch weights carry the factor that makes it a mean over rows.
    """

    def __init__(self, accelerator: "Accelerator") -> None:
        self.accelerator = accelerator
        self.module: torch.nn.Module = torch.nn.Identity()
        self.optimizer: torch.optim.Optimizer | None = None

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """See `Strategy`."""
        self.module = self.accelerator.prepare(model)
        return self.module

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """See `Strategy`."""
        self.optimizer = optimizer

    def micro_step(self, last: bool) -> AbstractContextManager[None]:
        """See `Strategy`."""
        import contextlib

        return contextlib.nullcontext() if last else self.accelerator.no_sync(self.module)

    def backward(self, loss: torch.Tensor) -> None:
        """See `Strategy`."""
        self.accelerator.backward(loss)

    def clip(self, max_norm: float | None) -> torch.Tensor | None:
        """See `Strategy`."""
        if max_norm is None:
            return None
        return torch.as_tensor(self.accelerator.clip_grad_norm_(self.module.parameters(), max_norm))

    def step(self) -> None:
        """See `Strategy`."""
        assert self.optimizer is not None, "attach() comes before step()"
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def reduce_sum(self, values: torch.Tensor) -> torch.Tensor:
        """See `Strategy`."""
        reduced: torch.Tensor = self.accelerator.reduce(values, reduction="sum")
        return reduced

    def state(self) -> dict[str, torch.Tensor]:
        """See `Strategy`."""
        return {name: tensor.detach() for name, tensor in self.export().state_dict().items()}

    def load(self, weights: dict[str, torch.Tensor]) -> None:
        """See `Strategy`."""
        self.export().load_state_dict(weights, strict=True)

    def export(self) -> torch.nn.Module:
        """See `Strategy`."""
        unwrapped: torch.nn.Module = self.accelerator.unwrap_model(self.module, keep_fp32_wrapper=False)
        return unwrapped
