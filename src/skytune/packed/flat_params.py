"""Weights, gradients and optimizer state of a model in a few flat arrays, so that one kernel updates them all; and how
processes divide such arrays, and the rows of a table, among themselves.

The model's own fp32 parameters become views of the flat weights: whoever reads the model or its optimizer's state (a
checkpoint, a prediction) sees what is trained, under the same names as ever. Where training computes in another number
format, a rounded copy of all weights lies beside them, and gradients have that format too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ALIGNED = 64
"""Elements to which every block of parameters is aligned (whole cache lines in every format)."""


class FlatParameters:
    """Flat arrays for the parameters of an AdamW optimizer.

    Args:
        optimizer: torch's AdamW over fp32 parameters; its groups keep their weight decay.
        compute: number format of the forward and backward pass.
        blocks: parameters that must lie directly below each other, e.g. query, key and value of a layer.
    """

    def __init__(
        self, optimizer: torch.optim.AdamW, compute: torch.dtype, blocks: Sequence[Sequence[torch.nn.Parameter]] = ()
    ) -> None:
        self.optimizer = optimizer
        together = {id(p): [id(q) for q in block] for block in blocks for p in block}
        self.places: dict[int, tuple[int, torch.nn.Parameter]] = {}
        self.regions: list[tuple[int, int, dict[str, Any]]] = []
        size = 0
        for group in optimizer.param_groups:
            known = {id(p): p for p in group["params"]}
            start = size
            for p in group["params"]:
                if id(p) in self.places:
                    continue
                for number in together.get(id(p), [id(p)]):
                    self.places[number] = (size, known[number])
                    size += known[number].numel()
                size = -(-size // ALIGNED) * ALIGNED
            self.regions.append((start, size - start, group))
        device = next(iter(self.places.values()))[1].device
        self.weights = torch.zeros(size, device=device)
        self.first, self.second = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self.low = self.weights if compute == torch.float32 else torch.zeros(size, device=device, dtype=compute)
        self.grads = torch.zeros(size, device=device, dtype=compute)
        self.scalars = torch.zeros(4, device=device)
        """Learning rate, 1 - beta1^t, sqrt(1 - beta2^t), factor on the gradient."""
        self.norm = torch.zeros((), device=device)
        """Norm of the last gradient before clipping."""
        for start, p in self.places.values():
            view = self._view(self.weights, p, start)
            view.copy_(p.detach())
            p.data = view
        self.adopt()

    def adopt(self) -> None:
        """Take over the optimizer's state (after a checkpoint was loaded), and be its state from now on.

        Raises:
            AssertionError: parameters that took different numbers of steps.
        """
        steps = {float(self.optimizer.state[p]["step"]) for _, p in self.places.values() if self.optimizer.state.get(p)}
        assert len(steps) <= 1, f"parameters took different numbers of steps: {sorted(steps)}"
        self.steps = int(steps.pop()) if steps else 0
        for start, p in self.places.values():
            state = self.optimizer.state[p]
            for flat, name in ((self.first, "exp_avg"), (self.second, "exp_avg_sq")):
                view = self._view(flat, p, start)
                if name in state and state[name] is not view:
                    view.copy_(state[name])
                state[name] = view
            # Where torch's own step would look for it.
            device = p.device if self.optimizer.defaults.get("fused") else "cpu"
            state["step"] = torch.tensor(float(self.steps), device=device)
        self.round()

    def count(self, steps: int) -> None:
        """Write down how many optimizer steps were taken in all."""
        self.steps = steps
        for _, p in self.places.values():
            self.optimizer.state[p]["step"].fill_(float(steps))

    def round(self) -> None:
        """Make the rounded copy of the weights anew."""
        if self.low is not self.weights:
            self.low.copy_(self.weights)

    def low_of(self, *parameters: torch.nn.Parameter) -> Tensor:
        """Return the rounded weights of one parameter, or of several that lie below each other, joined on axis 0."""
        return self._joined(self.low, parameters)

    def grad_of(self, *parameters: torch.nn.Parameter) -> Tensor:
        """Return where the gradient belongs, as `low_of`."""
        return self._joined(self.grads, parameters)

    def corrections(self, step: int) -> tuple[float, float]:
        """Return Adam's (1 - beta1^t, sqrt(1 - beta2^t)) for the t-th step, t from 1."""
        beta1, beta2 = self.optimizer.param_groups[0]["betas"]
        return 1 - beta1**step, (1 - beta2**step) ** 0.5

    def update(self, clip_norm: float | None) -> None:
        """Clip the gradient and take one AdamW step; reads `scalars`, needs no word from the CPU."""
        if clip_norm is not None:
            torch.linalg.vector_norm(self.grads, dtype=torch.float32, out=self.norm)
        self.clip(clip_norm)
        self.step([slice(0, len(self.grads))])

    def clip(self, clip_norm: float | None) -> None:
        """Write the factor on the gradient down, whose norm is in `norm`."""
        if clip_norm is None:
            self.scalars[3] = 1.0
        else:
            # As torch.nn.utils.clip_grad_norm_.
            torch.clamp(clip_norm / (self.norm + 1e-6), max=1.0, out=self.scalars[3])

    def step(self, cuts: Sequence[slice]) -> None:
        """Take one AdamW step on some parts of the arrays."""
        for cut in cuts:
            for start, size, group in self.regions:
                inside = slice(max(cut.start, start), min(cut.stop, start + size))
                if inside.start < inside.stop:
                    self._adamw(inside, group)

    def _adamw(self, cut: slice, group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        eps, decay = float(group["eps"]), float(group["weight_decay"])
        weights, first, second, grads = self.weights[cut], self.first[cut], self.second[cut], self.grads[cut]
        if not weights.is_cuda:
            rate, one, two, clip = self.scalars.unbind()
            grad = grads.float() * clip
            first.lerp_(grad, 1 - beta1)
            second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            weights.mul_(1 - rate * decay).sub_(rate / one * first / (second.sqrt() / two + eps))
            if self.low is not self.weights:
                self.low[cut].copy_(weights)
            return
        from . import kernels

        count, low = weights.numel(), self.low is not self.weights
        given = (weights, first, second, grads, self.low[cut], self.scalars, count, decay, beta1, beta2, eps)
        kernels.adamw[(-(-count // 1024),)](*given, HAS_LOW=low, BLOCK=1024, num_warps=4)

    def _joined(self, flat: Tensor, parameters: Sequence[torch.nn.Parameter]) -> Tensor:
        start, first = self.places[id(parameters[0])]
        at = start
        for p in parameters:
            assert self.places[id(p)][0] == at, "these parameters do not lie below each other"
            at += p.numel()
        shape = (sum(p.shape[0] for p in parameters), *first.shape[1:])
        return flat[start:at].view(shape)

    @staticmethod
    def _view(flat: Tensor, p: torch.nn.Parameter, start: int) -> Tensor:
        return flat[start : start + p.numel()].view(p.shape)


@dataclass(frozen=True)
class Partition:
    """A part of the flat arrays, as much of it for every process."""

    whole: slice
    own: slice
    """This process's."""

    @classmethod
    def of(cls, part: slice, rank: int, size: int, unit: int = ALIGNED) -> "Partition":
        """Cut a part for `size` processes in multiples of `unit`; what does not come out at its end is left out."""
        each = (part.stop - part.start) // (size * unit) * unit
        start = part.start + rank * each
        return cls(slice(part.start, part.start + size * each), slice(start, start + each))

    @property
    def each(self) -> int:
        """Elements of every process."""
        return self.own.stop - self.own.start

    @staticmethod
    def between(shares: Iterable["Partition"], end: int) -> list[slice]:
        """Return what lies in no share of [0, end)."""
        found, at = [], 0
        for share in sorted(shares, key=lambda share: share.whole.start):
            if share.whole.start > at:
                found.append(slice(at, share.whole.start))
            at = share.whole.stop
        return [*found, slice(at, end)] if at < end else found


@dataclass(frozen=True)
class RowPartition:
    """The rows of a table that are one process's: `first` to `stop`, and from `rest` on.

    Those from `left` on are too few to be divided: everybody updates them, the first process looks them up and adds
    their gradients up.
    """

    first: int
    stop: int
    rest: int
    left: int

    @classmethod
    def of(cls, count: int, rank: int, size: int) -> "RowPartition":
        """Divide `count` rows as `Partition.of` does."""
        each = count // size
        left = size * each
        return cls(rank * each, (rank + 1) * each, left if rank == 0 else count, left)

    def holds(self, ids: Tensor) -> Tensor:
        """Return which of the ids are."""
        return ((ids >= self.first) & (ids < self.stop)) | (ids >= self.rest)


def runs(starts: list[int], end: int, count: int) -> dict[int, slice]:
    """Return the parts of the flat gradient by the layer that completes them: runs of layers of about the same length.

    Args:
        starts: where every layer's matrices start in the flat gradient, ascending; they lie without gaps.
        end: where the last layer's end.
        count: parts; not more than there are layers.
    """
    count = min(count, len(starts))
    firsts = [number * len(starts) // count for number in range(count)]
    ends = [*(starts[first] for first in firsts[1:]), end]
    return {first: slice(starts[first], stop) for first, stop in zip(firsts, ends, strict=True)}
