"""How the model is spread over processes: one small protocol, so that the loop does not know which one it has."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
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

    def alone(self) -> AbstractContextManager[None] | None:
        """Context in which forward and backward need no other process; None where there is no such thing (sharded
        weights). All processes enter it; what one does in it, and whether it fails, its peers do not notice. Gradients
        computed in it, `micro_step` or not, are this process's own until `exchange`."""

    def exchange(self) -> None:
        """Average over processes the gradients that were computed `alone`."""

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

    @contextmanager
    def alone(self) -> Iterator[None]:
        """See `Strategy`. DDP's forward sends rank 0's buffers to all before a step's first micro-batch: here that is
        done on entering (numbers with a point alone: the others are constants), and then left out."""
        ddp = self.module
        if not isinstance(ddp, torch.nn.parallel.DistributedDataParallel):
            yield
            return
        for buffer in ddp.module.buffers():
            if buffer.is_floating_point():
                torch.distributed.broadcast(buffer, src=0)
        before = ddp.require_forward_param_sync
        with ddp.no_sync():
            ddp.require_forward_param_sync = False
            try:
                yield
            finally:
                ddp.require_forward_param_sync = before

    def exchange(self) -> None:
        """See `Strategy`. In buckets, as DDP does it; a weight that only some processes used counts as 0 in the others,
        one that nobody used keeps no gradient."""
        size = self.accelerator.num_processes
        if size == 1:
            return
        weights = [p for p in self.module.parameters() if p.requires_grad]
        used = torch.tensor([float(p.grad is not None) for p in weights], device=self.accelerator.device)
        gradients = []
        for weight, users in zip(weights, self.reduce_sum(used).tolist(), strict=True):
            if users:
                weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
                gradients.append(weight.grad)
        for bucket in _buckets(gradients):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            torch.distributed.all_reduce(flat)
            parts = flat.div_(size).split([gradient.numel() for gradient in bucket])
            for gradient, part in zip(bucket, parts, strict=True):
                gradient.copy_(part.view_as(gradient))

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
        # Without the mixed-precision wrapper it would be the very module that trains, which then trains in fp32.
        unwrapped: torch.nn.Module = self.accelerator.unwrap_model(self.module, keep_fp32_wrapper=True)
        return unwrapped


def _buckets(tensors: list[torch.Tensor], limit: int = 25 * 2**20) -> Iterator[list[torch.Tensor]]:
    """Yield the tensors in groups of one dtype and at most `limit` bytes (or one tensor); DDP's own limit."""
    bucket: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and (size + tensor.nbytes > limit or tensor.dtype is not bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.nbytes
    if bucket:
        yield bucket
