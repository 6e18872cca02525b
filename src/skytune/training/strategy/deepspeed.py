"""ZeRO with DeepSpeed, through Accelerate's plugin: optimizer state (stage 1), gradients (2) and weights (3) cut up.

DeepSpeed owns the step: its engine sums gradients, clips, updates and forgets. Checkpoints do not use its pickled
files: weights and optimizer state are read out whole, one parameter after the other, through the functions that it
documents for that (`deepspeed.utils.safe_get_full_*`), so any strategy on any number of processes can load them.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from ...checkpoint.optimizer_state import flatten_state, restored_state
from ...checkpoint.shards import Stored
from ...config import Offload, OptimizerConfig, Precision, RunConfig, UserError
from ...models import trained_state
from ..schedule import build_optimizer
from .base import Strategy, check_parameter_names
from .fsdp import filled, hollow
from .grad_scaler import into_deepspeed, of_deepspeed

if TYPE_CHECKING:
    from ...distributed.context import DistContext


class DeepSpeed(Strategy):
    """See the module."""

    state_is_collective = True

    def __init__(self, config: RunConfig, world: "DistContext") -> None:
        super().__init__(config, world)
        self.scaler = None  # the engine scales the loss itself
        self.name = config.strategy.name.value
        self.stage = int(self.name[-1])
        self.engine: Any = None
        self.accelerator: Any = None
        self.skeleton: torch.nn.Module | None = None
        self.skipped = 0
        self.members: list[list[torch.nn.Parameter]] = []
        """The trained parameters of every group of the optimizer that was given to the engine."""

    def settings(self) -> dict[str, Any]:
        """Return DeepSpeed's configuration.

        Accumulation is ours (micro-batches carry their weights), so DeepSpeed is told of one micro-batch a step and of
        the step's end by `set_gradient_accumulation_boundary`.
        """
        offload, pinned = self.config.strategy.offload, self.world.device.type == "cuda"
        zero: dict[str, Any] = {**self.config.strategy.zero_options, "stage": self.stage}
        if offload is not Offload.none:
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": pinned}
        if offload is Offload.parameters:
            zero["offload_param"] = {"device": "cpu", "pin_memory": pinned}
        clip = self.config.optimizer.clip_norm
        return {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 0.0 if clip is None else clip,
            "zero_optimization": zero,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "bf16": {"enabled": self.world.precision is Precision.bf16},
            "fp16": {"enabled": self.world.precision is Precision.fp16},
            "wall_clock_breakdown": False,
            "steps_per_print": 10**9,
        }

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """The engine needs the optimizer too: until then it is the model itself."""
        self.skeleton = hollow(model) if self.world.main else None
        self.model = self.module = self.transform_model(model)
        return self.module

    def make_optimizer(self, config: OptimizerConfig) -> torch.optim.Optimizer:
        import deepspeed.ops
        from accelerate import Accelerator, DeepSpeedPlugin
        from accelerate.state import AcceleratorState

        # Compiled at the first start on CPUs, for inference alone; a process that is killed meanwhile leaves a lock
        # file behind (torch.utils.file_baton) for which all later ones would wait for ever.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        # The worker joined its peers without a plugin; the plugin takes over the same processes.
        AcceleratorState._reset_state()
        self.accelerator = Accelerator(
            deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=self.settings()),
            mixed_precision={Precision.bf16: "bf16", Precision.fp16: "fp16"}.get(self.world.precision, "no"),
        )
        plain = build_optimizer(config, self.model)
        self.members = [list(group["params"]) for group in plain.param_groups]
        engine, optimizer = self.accelerator.prepare(self.model, plain)
        self.engine = self.module = engine
        self.optimizer = optimizer.optimizer
        return self.optimizer

    @contextlib.contextmanager
    def micro_step(self, last: bool) -> Iterator[None]:
        self.engine.set_gradient_accumulation_boundary(is_boundary=last)
        yield

    def no_sync(self) -> AbstractContextManager[None] | None:
        return None

    def autocast(self) -> AbstractContextManager[None]:
        """The engine has cast the weights."""
        return contextlib.nullcontext()

    def backward(self, loss: torch.Tensor) -> None:
        self.engine.backward(loss)

    def clip(self, max_norm: float | None) -> torch.Tensor | None:
        """The engine clips and updates in one go."""
        self.engine.step()
        norm = self.engine.get_global_grad_norm()
        return None if max_norm is None or norm is None else torch.as_tensor(norm)

    def step(self) -> bool:
        """Nothing is left to do: `clip` did it."""
        before, self.skipped = self.skipped, int(self.engine.skipped_steps)
        return self.skipped == before

    def state(self) -> dict[str, torch.Tensor]:
        return self._gathered(trained_state(self.model).keys())

    def _gathered(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        """Return the float32 weights of these names, whole, on the CPU, and the buffers."""
        from deepspeed.utils import safe_get_full_fp32_param

        found = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            if name not in names:
                continue
            full = safe_get_full_fp32_param(parameter) if parameter.requires_grad else None
            found[name] = self._whole(parameter) if full is None else full.detach().float().to("cpu", copy=True)
        for name, buffer in self.model.named_buffers(remove_duplicate=False):
            if name in names:
                found[name] = buffer.detach().to("cpu", copy=True)
        return found

    def _whole(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return a parameter that the engine does not train, whole."""
        import deepspeed

        with deepspeed.zero.GatheredParameters([parameter], enabled=self.stage == 3):
            return parameter.detach().float().to("cpu", copy=True)

    def load(self, weights: Stored) -> None:
        import deepspeed
        from deepspeed.utils import safe_set_full_fp32_param

        check_parameter_names(trained_state(self.model), weights)
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            if name not in weights:
                continue
            value = weights[name].to(self.world.device)
            with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0, enabled=self.stage == 3):
                with torch.no_grad():
                    parameter.copy_(value)
            if parameter.requires_grad:
                safe_set_full_fp32_param(parameter, value)
        for name, buffer in self.model.named_buffers(remove_duplicate=False):
            if name in weights:
                buffer.copy_(weights[name])

    def _parameters(self) -> list[torch.Tensor]:
        """Return the trained parameters in the order in which a plain optimizer numbers them."""
        return [parameter for group in self.members for parameter in group]

    def optimizer_state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Whole, in the form of the plain optimizer."""
        from deepspeed.utils import safe_get_full_optimizer_state

        parameters, inner = self._parameters(), self._inner()
        self._link()
        steps = [state["step"] for state in inner.state.values() if "step" in state]
        step = torch.as_tensor(float(steps[0])) if steps else torch.zeros(())
        kinds = _moments(inner)
        state = {}
        for number, parameter in enumerate(parameters):
            moments = {kind: safe_get_full_optimizer_state(parameter, kind) for kind in kinds}
            state[number] = {"step": step} | {k: v.detach().to("cpu", copy=True) for k, v in moments.items()}
        numbers = iter(range(len(parameters)))
        groups = [
            {**{key: value for key, value in group.items() if key != "params"}, "params": [next(numbers) for _ in own]}
            for group, own in zip(inner.param_groups, self.members, strict=True)
        ]
        whole = {"state": state, "param_groups": groups}
        return flatten_state(type(inner).__name__, whole, [_shape(p) for p in parameters])

    def load_optimizer(self, tensors: Stored, values: Mapping[str, Any]) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state

        inner, parameters = self._inner(), self._parameters()
        if values["optimizer"] != type(inner).__name__:
            name = type(inner).__name__
            raise UserError(f"the checkpoint is of the optimizer {values['optimizer']}, this run has {name}")
        stored = restored_state(tensors, values)
        if not stored:
            return
        first = next(iter(stored.values()))
        kinds = sorted(key for key in first if key != "step")
        for flat in self._flat():
            inner.state[flat] = {kind: torch.zeros_like(flat) for kind in kinds}
            if "step" in first:
                inner.state[flat]["step"] = torch.as_tensor(first["step"]).clone().to(flat.device)
        self._link()
        for number, state in stored.items():
            for kind in kinds:
                safe_set_full_optimizer_state(parameters[number], state[kind].to(self.world.device), kind)

    def _flat(self) -> list[torch.Tensor]:
        """Return the float32 tensors, each of many parameters' shards, that the inner optimizer changes."""
        optimizer = self.engine.optimizer
        name = "fp32_partitioned_groups_flat" if self.stage == 3 else "single_partition_of_fp32_groups"
        return list(getattr(optimizer, name))

    def _link(self) -> None:
        """Have stages 1 and 2 look up the optimizer's state anew.

        DeepSpeed (0.19.8) does it once, after the first of several parameter groups was updated for the first time,
        when the others have no state yet.
        """
        if self.stage < 3 and all(flat in self._inner().state for flat in self._flat()):
            self.engine.optimizer._hp_optimizer_states_linked = False
            self.engine.optimizer._lazy_init_hp_params_optimizer_state()

    def _inner(self) -> Any:
        """Return the optimizer that DeepSpeed's partitioned one drives."""
        return self.engine.optimizer.optimizer

    def scaling(self) -> dict[str, Any] | None:
        scaler = getattr(self.engine.optimizer, "loss_scaler", None)
        if self.world.precision is not Precision.fp16 or scaler is None:
            return None
        return of_deepspeed(scaler)

    def load_scaling(self, values: Mapping[str, Any] | None) -> None:
        if values:
            into_deepspeed(self.engine.optimizer.loss_scaler, values)

    def export(self) -> torch.nn.Module | None:
        weights = self._gathered(self.model.state_dict().keys())
        return None if self.skeleton is None else filled(self.skeleton, weights)


def _moments(optimizer: Any) -> list[str]:
    """Return the names of the state that has the parameters' shapes."""
    found = {key for state in optimizer.state.values() for key, value in state.items() if torch.is_tensor(value)}
    return sorted(found - {"step"})


def _shape(parameter: torch.Tensor) -> list[int]:
    """Return a parameter's shape; stage 3 leaves an empty tensor and keeps the shape beside it."""
    return list(getattr(parameter, "ds_shape", parameter.shape))
