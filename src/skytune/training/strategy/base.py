"""What strategies have in common: precision, loss scaling, clipping, and a model that every process has whole."""

import contextlib
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from ...config import CompileMode, OptimizerConfig, Precision, RunConfig
from .. import precision
from ..checkpoint.optimizer import flatten_optimizer, restore_optimizer
from ..compiling import compile_in_place
from ..schedule import build_optimizer
from .blocks import checkpoint_activations, find_blocks
from .scaling import into_torch, of_torch

if TYPE_CHECKING:
    from ..devices import World
    from .protocol import Tensors

log = logging.getLogger(__name__)


class Base:
    """One process, one device, the whole model: what other strategies change a little."""

    name = "single"
    sharded = False
    together = False
    own_files: tuple[str, ...] = ()

    def __init__(self, config: RunConfig, world: "World") -> None:
        self.config, self.world = config, world
        self.module: torch.nn.Module = torch.nn.Identity()
        self.model: torch.nn.Module = torch.nn.Identity()
        self.optimizer: torch.optim.Optimizer
        scaled = world.precision is Precision.fp16
        self.scaler = torch.amp.GradScaler(world.device.type) if scaled else None

    @property
    def devices(self) -> int:
        """See `Strategy`."""
        return self.world.size

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """See `Strategy`."""
        self.model = self.changed(model).to(self.world.device)
        self.module = self.wrap(self.model)
        if self.config.compile.mode is not CompileMode.off:
            compile_in_place(self.module, self.config)
        return self.module

    def place(self, model: torch.nn.Module) -> torch.nn.Module:
        """See `Strategy`."""
        self.model = self.module = model.to(self.world.device)
        return self.module

    def changed(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the model with what the config changes in it before it is wrapped."""
        settings = self.config.strategy
        if self.world.size > 1 and self.world.main and any(map(_counts_own_rows, model.modules())):
            log.warning(
                "the model has batch normalization: in training each of the %d processes takes mean and variance of "
                "its own rows, so the result is not that of one process, by more than rounding",
                self.world.size,
            )
        if settings.activation_checkpointing:
            checkpoint_activations(find_blocks(model, settings.wrap))
        if self.world.precision is Precision.fp8:
            model = precision.to_fp8(model)
        return model

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return what the loop calls."""
        return model

    def make_optimizer(self, config: OptimizerConfig) -> torch.optim.Optimizer:
        """See `Strategy`."""
        self.optimizer = build_optimizer(config, self.model)
        return self.optimizer

    def micro_step(self, last: bool) -> AbstractContextManager[None]:
        """See `Strategy`."""
        return contextlib.nullcontext()

    def alone(self) -> AbstractContextManager[None] | None:
        """See `Strategy`."""
        return contextlib.nullcontext()

    def exchange(self) -> None:
        """See `Strategy`."""

    def agree(self) -> None:
        """See `Strategy`. Numbers with a point alone: the others are constants."""
        if self.world.size == 1:
            return
        for buffer in self.model.buffers():
            if buffer.is_floating_point():
                whole = buffer.detach().contiguous()  # which is the buffer itself, unless it is laid out in another way
                torch.distributed.broadcast(whole, src=0)
                if not buffer.is_contiguous():
                    buffer.copy_(whole)

    def autocast(self) -> AbstractContextManager[None]:
        """See `Strategy`."""
        return precision.autocast(self.world.device.type, self.world.precision)

    def backward(self, loss: torch.Tensor) -> None:
        """See `Strategy`."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def clip(self, max_norm: float | None) -> torch.Tensor | None:
        """See `Strategy`."""
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if max_norm is None:
            return None
        return self.clip_whole(max_norm)

    def clip_whole(self, max_norm: float) -> torch.Tensor:
        """Clip gradients of which this process has all."""
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)

    def step(self) -> bool:
        """See `Strategy`."""
        taken = True
        if self.scaler is None:
            self.optimizer.step()
        else:
            before = self.scaler.get_scale()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            taken = self.scaler.get_scale() >= before
        self.optimizer.zero_grad(set_to_none=True)
        return taken

    def reduce_sum(self, values: torch.Tensor) -> torch.Tensor:
        """See `Strategy`."""
        if self.world.size > 1:
            values = values.clone()
            torch.distributed.all_reduce(values)
        return values

    def state(self) -> dict[str, torch.Tensor]:
        """See `Strategy`."""
        return {name: tensor.detach() for name, tensor in self.model.state_dict().items()}

    def load(self, weights: "Tensors") -> None:
        """See `Strategy`."""
        self.model.load_state_dict(dict(weights), strict=True)

    def optimizer_state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """See `Strategy`."""
        return flatten_optimizer(self.optimizer)

    def load_optimizer(self, tensors: "Tensors", values: Mapping[str, Any]) -> None:
        """See `Strategy`."""
        restore_optimizer(self.optimizer, tensors, values)

    def scaling(self) -> dict[str, Any] | None:
        """See `Strategy`."""
        return None if self.scaler is None else of_torch(self.scaler)

    def load_scaling(self, values: Mapping[str, Any] | None) -> None:
        """See `Strategy`."""
        if self.scaler is not None and values:
            into_torch(self.scaler, values)

    def export(self) -> torch.nn.Module | None:
        """See `Strategy`."""
        return self.model

    def close(self) -> None:
        """See `Strategy`."""


def _counts_own_rows(module: torch.nn.Module) -> bool:
    """Whether what a module makes of a row depends on the process's other rows (`SyncBatchNorm`: on all rows)."""
    norm = torch.nn.modules.batchnorm._BatchNorm
    return isinstance(module, norm) and not isinstance(module, torch.nn.SyncBatchNorm)


def own_group(world: "World") -> bool:
    """Make a process group of this process alone where there is none; return whether it was made."""
    if torch.distributed.is_initialized():
        return False
    backend = "nccl" if world.device.type == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
    return True
