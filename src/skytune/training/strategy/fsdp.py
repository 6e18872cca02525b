"""FSDP2: weights, gradients and optimizer state cut up over processes, with torch's `fully_shard` on every block.

Every weight is a DTensor of which this process holds some rows. A block's weights are gathered before its forward and
backward pass; gradients are averaged and cut up again as they arise. So all processes must use the same blocks in every
pass; of a block's weights, those that only some processes used count as 0 in the others.
"""

import contextlib
import copy
import functools
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from ...checkpoint.optimizer_state import restore_optimizer, state_names
from ...checkpoint.shards import Stored, local_piece
from ...config import CompileMode, Offload, OptimizerConfig, RunConfig, Sharding, UserError
from ...distributed.precision import DTYPES
from ...models import trained_state
from ..compiling import compile_in_place
from .base import Strategy, check_parameter_names, own_group
from .blocks import find_blocks

if TYPE_CHECKING:
    from ...distributed.context import DistContext

log = logging.getLogger(__name__)

EXCHANGE = re.compile(r"gloo|nccl|collective", re.IGNORECASE)
"""What an error says that came of an exchange between processes."""

CUT_UP = re.compile(r"DTensor|sharding|placement", re.IGNORECASE)
"""What torch says of an operation that it has for whole tensors alone."""


class FullyShard(Strategy):
    """See the module."""

    name = "fsdp"
    sharded = True
    state_is_collective = True

    def __init__(self, config: RunConfig, world: "DistContext") -> None:
        super().__init__(config, world)
        self.owns_group = own_group(world)
        self.skeleton: torch.nn.Module | None = None
        self._used: set[str] = set()
        self._watched: set[str] = set()

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        self.skeleton = hollow(model) if self.world.main else None
        return self._shard(self.transform_model(model))

    def place(self, model: torch.nn.Module) -> torch.nn.Module:
        return self._shard(model)

    def _shard(self, model: torch.nn.Module) -> torch.nn.Module:
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

        scalar = next((name for name, weight in model.named_parameters() if not weight.ndim), None)
        if scalar is not None:
            raise UserError(
                f"strategy=fsdp: {scalar} is a single number without dimensions, which cannot be cut up; give it the "
                "shape [1], or use strategy=ddp"
            )
        settings, dtype = self.config.strategy, DTYPES.get(self.world.precision)
        blocks = find_blocks(model, settings.wrap)
        if not blocks:
            log.warning(
                "strategy=fsdp: the model has no repeated block, so all of it is gathered at once (less memory "
                "saved); strategy.wrap names a class"
            )
        offload = settings.offload is Offload.parameters
        common = {
            "mesh": self._mesh(),
            # Gradients are summed in float32 whatever the pass computes in.
            "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None),
            "offload_policy": CPUOffloadPolicy(self.world.device.type == "cuda") if offload else OffloadPolicy(),
        }
        for block in blocks:
            if self.config.compile.mode is not CompileMode.off:
                compile_in_place(block, self.config)
            fully_shard(block, reshard_after_forward=settings.sharding is not Sharding.grad_op, **common)
        fully_shard(model, reshard_after_forward=False, **common)  # what is outside the blocks is needed to the end
        model.register_forward_pre_hook(let_go, prepend=True)
        self.model = self.module = model
        if self.world.size > 1:
            sharded: Any = model
            sharded.set_reduce_scatter_unused_params(True)  # else an exchange has other sizes in other processes
            names = {module: name for name, module in model.named_modules()}
            for part in (*blocks, model):
                part.register_forward_pre_hook(functools.partial(self._watch, names[part]))
        return model

    def compile_blocks(self) -> bool:
        import torch._dynamo

        # Forward functions alone: weights are gathered and let go around them, as without a compiler.
        settings = self.config.strategy
        if self.config.compile.mode is not CompileMode.off or settings.activation_checkpointing:
            return False
        told: Any = getattr(self.model, "config", None)
        if getattr(told, "use_cache", None):
            told.use_cache = False  # a cache of keys and values, which is another for every block
        torch._dynamo.config.suppress_errors = True  # a block that cannot be compiled is computed as ever
        blocks = find_blocks(self.model, settings.wrap)
        for block in blocks:
            block.forward = torch.compile(block.forward, dynamic=True)
        return bool(blocks)

    def _watch(self, prefix: str, part: torch.nn.Module, _inputs: Any) -> None:
        """Have the weights that are gathered for this part of the model say when they get a gradient."""
        from torch.distributed.tensor import DTensor

        for name, weight in part.named_parameters(prefix):
            if name not in self._watched and weight.requires_grad and not isinstance(weight, DTensor):
                self._watched.add(name)
                weight.register_hook(functools.partial(self._note, name))

    def _note(self, name: str, _gradient: torch.Tensor) -> None:
        self._used.add(name)

    def _forget_unused(self) -> None:
        """Leave without a gradient what no process used, as all strategies do: a 0 would have it decay."""
        weights = [(name, weight) for name, weight in self.model.named_parameters() if weight.requires_grad]
        used = torch.tensor([float(name in self._used) for name, _ in weights], device=self.world.device)
        for (_, weight), users in zip(weights, self.reduce_sum(used).tolist(), strict=True):
            if not users:
                weight.grad = None
        self._used.clear()

    def make_optimizer(self, config: OptimizerConfig) -> torch.optim.Optimizer:
        optimizer = super().make_optimizer(config)
        if self.scaler is not None:
            # A fused optimizer takes the scaler's plain tensors into its kernel, which DTensors cannot be mixed with:
            # without this mark the scaler unscales beforehand and leaves the step out itself.
            optimizer._step_supports_amp_scaling = False
        return optimizer

    def _mesh(self) -> Any:
        from torch.distributed.device_mesh import init_device_mesh

        kind, size, settings = self.world.device.type, self.world.size, self.config.strategy
        if settings.sharding is not Sharding.hybrid:
            return init_device_mesh(kind, (size,), mesh_dim_names=("shard",))
        together = settings.shard_processes or int(os.environ.get("LOCAL_WORLD_SIZE", size))
        if size % together:
            raise UserError(f"strategy.shard_processes={together}: does not divide the {size} processes")
        self.replicas = size // together
        return init_device_mesh(kind, (self.replicas, together), mesh_dim_names=("copy", "shard"))

    def no_sync(self) -> AbstractContextManager[None] | None:
        """None: weights are gathered in every pass."""
        return None

    @contextlib.contextmanager
    def autocast(self) -> Iterator[None]:
        """Weights are whole only while the blocks that they lie in are called."""
        try:
            with super().autocast():
                yield
        except RuntimeError as error:
            if "mixed torch.Tensor and DTensor" not in str(error):
                raise
            kind = type(self.model).__name__.removeprefix("FSDP")
            raise UserError(
                f"strategy=fsdp: {kind} uses weights of a block without calling it, so they are still cut up; with "
                "strategy=ddp or optimizer_sharding every process has them whole"
            ) from error

    @contextlib.contextmanager
    def micro_step(self, last: bool) -> Iterator[None]:
        """Gradients that wait for their exchange are whole, so only `grad_op` lets them wait."""
        if self.config.strategy.sharding is Sharding.grad_op:
            self.model.set_requires_gradient_sync(last)
        try:
            yield
            if last and self.world.size > 1:
                self._forget_unused()
        except RuntimeError as error:
            if self.world.size > 1 and EXCHANGE.search(str(error)):
                error.add_note(
                    "strategy=fsdp needs all processes to use the same blocks in every pass; where a model's forward "
                    "does not, strategy=ddp with strategy.find_unused_parameters=true can train it"
                )
            raise

    def clip_whole(self, max_norm: float) -> torch.Tensor:
        """Clip by the norm over all shards; the same arithmetic as `torch.nn.utils.clip_grad_norm_`."""
        grads = [p.grad.to_local() for p in self.model.parameters() if p.grad is not None]
        squares = torch.zeros((), device=self.world.device)
        if grads:
            squares += torch.stack(torch._foreach_norm(grads)).square().sum().to(squares)
        norm = (self.reduce_sum(squares) / self.replicas).sqrt()
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        if grads:
            torch._foreach_mul_(grads, factor.to(grads[0].device))
        return norm

    def step(self) -> bool:
        try:
            return super().step()
        except RuntimeError as error:
            if not CUT_UP.search(str(error)):
                raise
            name, reason = type(self.optimizer).__name__, str(error).partition("\n")[0].partition(". ")[0]
            raise UserError(
                f"strategy=fsdp: {name} cannot work on weights that are cut up ({reason}); with strategy=ddp or "
                "optimizer_sharding every process has them whole"
            ) from error

    def load(self, weights: Stored) -> None:
        """Only what this process holds is read."""
        own = trained_state(self.model)
        check_parameter_names(own, weights)
        with torch.no_grad():
            for name, tensor in own.items():
                piece = local_piece(tensor)
                piece.tensor.copy_(weights.part(name, piece))

    def load_optimizer(self, tensors: Stored, values: Mapping[str, Any]) -> None:
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        like = {name: parameters[number] for name, number in state_names(values).items()}
        restore_optimizer(self.optimizer, _Cut(tensors, like), values)

    def export(self) -> torch.nn.Module | None:
        """Weights are gathered one by one, so a GPU never holds more than one of them whole."""
        whole: dict[str, torch.Tensor] = {}
        for name, tensor in self.model.state_dict().items():
            full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            if self.world.main:
                whole[name] = full.detach().to("cpu", copy=True)
        return None if self.skeleton is None else filled(self.skeleton, whole)


def let_go(model: torch.nn.Module, _inputs: Any = None) -> None:
    """Let go of weights that are still gathered when a pass begins. A backward pass lets go of all; after one without,
    weights may have changed since (a moving average is put back, a checkpoint loaded, a captured step taken)."""
    from torch.distributed.fsdp import FSDPModule

    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


class _Cut(dict[str, torch.Tensor]):
    """Stored optimizer state, each tensor cut up as the parameter that it belongs to where their shapes agree."""

    def __init__(self, stored: Stored, like: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.stored, self.like = stored, like

    def __missing__(self, name: str) -> torch.Tensor:
        from torch.distributed.tensor import DTensor

        parameter = self.like.get(name)
        if parameter is None or not isinstance(parameter, DTensor) or self.stored.shape(name) != tuple(parameter.shape):
            return self.stored[name]
        piece = local_piece(parameter.detach())
        local = self.stored.part(name, piece).to(piece.tensor.device).contiguous()
        return DTensor.from_local(
            local,
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )


def hollow(model: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of a model whose parameters have shapes but no memory; buffers are copied."""
    memo: dict[int, Any] = {
        id(p): torch.nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=p.requires_grad)
        for p in model.parameters()
    }
    return copy.deepcopy(model, memo)


def filled(skeleton: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> torch.nn.Module:
    """Return a copy of a hollow model with these weights; parameters that were one stay one (tied weights)."""
    memo: dict[int, Any] = {}
    for name, parameter in skeleton.named_parameters(remove_duplicate=False):
        if id(parameter) not in memo:
            memo[id(parameter)] = torch.nn.Parameter(weights[name], requires_grad=parameter.requires_grad)
    model = copy.deepcopy(skeleton, memo)
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    with torch.no_grad():
        own = dict(model.named_buffers(remove_duplicate=False))
        for name in weights.keys() - names:
            own[name].copy_(weights[name])
    return model
