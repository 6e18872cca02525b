"""What loop, checkpoints and results need of a way to spread the training step; and `single`, which spreads nothing."""

import contextlib
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from ...checkpoint.optimizer_state import flatten_optimizer, restore_optimizer
from ...checkpoint.shards import Stored
from ...config import CompileMode, OptimizerConfig, Precision, RunConfig, UserError
from ...distributed import precision
from ...models import has_adapter, trained_state
from ...models.quantized import count_numbers
from ..compiling import compile_in_place
from ..schedule import build_optimizer
from .blocks import checkpoint_activations, find_blocks
from .grad_scaler import into_torch, of_torch

if TYPE_CHECKING:
    from ...distributed.context import DistContext

log = logging.getLogger(__name__)


class Strategy:
    """A way to spread the training step; the loop does not know which one it has.

    This one is `single`: one process, one device, the whole model. Others change some of it.
    """

    name = "single"
    """As the config names what is done: never `auto`, nor `dp` where there is one device."""

    sharded = False
    """Whether every process holds state that others lack, and so writes files of its own into a checkpoint."""

    state_is_collective = False
    """Whether reading the state for a checkpoint takes all processes."""

    replicas = 1
    """Copies of the model among which nothing is cut up, if `sharded`."""

    private_state_files: tuple[str, ...] = ()
    """If `sharded`: files (`optimizer`) whose whole tensors only this process has; else all have the same."""

    def __init__(self, config: RunConfig, world: "DistContext") -> None:
        self.config, self.world = config, world
        self.module: torch.nn.Module = torch.nn.Identity()
        """The model to call; possibly wrapped."""
        self.model: torch.nn.Module = torch.nn.Identity()
        """The model without its wrapper; its weights may be shards."""
        self.optimizer: torch.optim.Optimizer
        """Over the prepared model's parameters, all of them, whoever holds their state."""
        self.owns_group = False
        scaled = world.precision is Precision.fp16
        self.scaler = torch.amp.GradScaler(world.device.type) if scaled else None

    @property
    def devices(self) -> int:
        """Devices that compute, all processes together."""
        return self.world.size

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """Place the model on the device and wrap it; return what the loop calls."""
        self.model = self.transform_model(model).to(self.world.device)
        self.module = self.wrap(self.model)
        if self.config.compile.mode is not CompileMode.off:
            compile_in_place(self.module, self.config)
        return self.module

    def place(self, model: torch.nn.Module) -> torch.nn.Module:
        """Place the model for prediction alone; return what is called."""
        self.model = self.module = model.to(self.world.device)
        return self.module

    def transform_model(self, model: torch.nn.Module) -> torch.nn.Module:
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
            from accelerate.utils import convert_model_to_fp8_ao

            convert_model_to_fp8_ao(model)  # its large linear layers, in place, by torchao's recipe
        return model

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return what the loop calls."""
        return model

    def compile_blocks(self) -> bool:
        """Have the prepared model's blocks compiled, where steps are neither captured nor compiled already; return
        whether that is done."""
        return False

    def make_optimizer(self, config: OptimizerConfig) -> torch.optim.Optimizer:
        """Build the optimizer over the prepared model's parameters."""
        self.optimizer = build_optimizer(config, self.model)
        return self.optimizer

    def micro_step(self, last: bool) -> AbstractContextManager[None]:
        """Context of one micro-batch's forward and backward; gradients are exchanged in the last one of a step only."""
        return contextlib.nullcontext()

    def no_sync(self) -> AbstractContextManager[None] | None:
        """Context in which forward and backward need no other process; None where there is no such thing (sharded
        weights). All processes enter it; what one does in it, and whether it fails, its peers do not notice. Gradients
        computed in it, `micro_step` or not, are this process's own until `all_reduce_grads`."""
        return contextlib.nullcontext()

    def all_reduce_grads(self) -> None:
        """Average over processes the gradients that were computed under `no_sync`."""

    def broadcast_buffers(self) -> None:
        """Give all processes rank 0's buffers (a batch normalization's statistics), which are what is exported, before
        a prediction (collective).

        Numbers with a point alone: the others are constants.
        """
        if self.world.size == 1:
            return
        for buffer in self.model.buffers():
            if buffer.is_floating_point():
                whole = buffer.detach().contiguous()  # which is the buffer itself, unless it is laid out in another way
                torch.distributed.broadcast(whole, src=0)
                if not buffer.is_contiguous():
                    buffer.copy_(whole)

    def autocast(self) -> AbstractContextManager[None]:
        """Context of a forward pass: the precision."""
        return precision.autocast(self.world.device.type, self.world.precision)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of an already weighted loss."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def clip(self, max_norm: float | None) -> torch.Tensor | None:
        """Clip the global gradient norm; return the norm before (a scalar), None without clipping."""
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if max_norm is None:
            return None
        return self.clip_whole(max_norm)

    def clip_whole(self, max_norm: float) -> torch.Tensor:
        """Clip gradients of which this process has all."""
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)

    def step(self) -> bool:
        """Update the weights and forget the gradients; return False where overflowing gradients were thrown away."""
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
        """Return the sum of a small tensor over all processes."""
        if self.world.size > 1:
            values = values.clone()
            torch.distributed.all_reduce(values)
        return values

    def total(self, value: float) -> float:
        """Return the sum of a number over all processes."""
        return (
            float(self.reduce_sum(torch.tensor(float(value), device=self.world.device)))
            if self.world.size > 1
            else value
        )

    def agreed(self, reason: str) -> str:
        """Return why something is not to be done on some process (collective); empty if it may be on all."""
        some = self.total(bool(reason)) > 0
        return reason or ("another process cannot" if some else "")

    def state(self) -> dict[str, torch.Tensor]:
        """Return the model's weights by name, under the names of the unwrapped model (for a checkpoint); those of an
        adapter without the base's, which never change.

        Collective. Whole tensors where not `sharded`; else DTensors, and whole ones of which all processes have a copy.
        """
        return {name: tensor.detach() for name, tensor in trained_state(self.model).items()}

    def load(self, weights: Stored) -> None:
        """Put weights that `state` returned back into the model; `weights` may read what is needed as it is asked."""
        check_parameter_names(trained_state(self.model), weights)
        self.model.load_state_dict(dict(weights), strict=not has_adapter(self.model))

    def optimizer_state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the optimizer's state as `flatten_optimizer` does (collective); this process's part if `sharded`."""
        return flatten_optimizer(self.optimizer)

    def load_optimizer(self, tensors: Stored, values: Mapping[str, Any]) -> None:
        """Put a state back that any strategy on any number of processes saved."""
        restore_optimizer(self.optimizer, tensors, values)

    def scaling(self) -> dict[str, Any] | None:
        """Return the state of the loss scaling in the form of `scaling`; None without it."""
        return None if self.scaler is None else of_torch(self.scaler)

    def load_scaling(self, values: Mapping[str, Any] | None) -> None:
        """Put the state of the loss scaling back."""
        if self.scaler is not None and values:
            into_torch(self.scaler, values)

    def export(self) -> torch.nn.Module | None:
        """Return a plain model with whole weights on the main process (collective); others may get None."""
        return self.model

    def close(self) -> None:
        """Give back what was taken for it (a process group)."""
        if self.owns_group:
            torch.distributed.destroy_process_group()
            self.owns_group = False


def _counts_own_rows(module: torch.nn.Module) -> bool:
    """Whether what a module makes of a row depends on the process's other rows (`SyncBatchNorm`: on all rows)."""
    norm = torch.nn.modules.batchnorm._BatchNorm
    return isinstance(module, norm) and not isinstance(module, torch.nn.SyncBatchNorm)


def check_parameter_names(own: Mapping[str, torch.Tensor], weights: Stored) -> None:
    """Refuse weights that do not have the names of a model's own.

    Raises:
        UserError: with the first that is on one side only.
    """
    odd = sorted(own.keys() ^ set(weights))
    if odd:
        raise UserError(f"the checkpoint is of another model: {odd[0]} is only on one side")


def own_group(world: "DistContext") -> bool:
    """Make a process group of this process alone where there is none; return whether it was made."""
    if torch.distributed.is_initialized():
        return False
    backend = "nccl" if world.device.type == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
    return True


def size(parameter: torch.Tensor) -> int:
    """Return the numbers in a parameter, of all processes together (ZeRO's third stage leaves an empty tensor)."""
    return int(getattr(parameter, "ds_numel", count_numbers(parameter)))
