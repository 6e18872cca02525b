"""`strategy`, `precision`, `compile`: how the training step is spread, in which number format, compiled or not.

None of it changes what one step learns from; `precision` alone changes the numbers by more than rounding (and
the number of processes, where a model has batch normalization).
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ..checks import at_least
from ..errors import ConfigError


class StrategyName(str, Enum):
    """Ways to spread the training step."""

    auto = "auto"
    single = "single"
    dp = "dp"
    ddp = "ddp"
    fsdp = "fsdp"
    optimizer_sharding = "optimizer_sharding"
    zero1 = "zero1"
    zero2 = "zero2"
    zero3 = "zero3"

    @property
    def is_zero(self) -> bool:
        """Whether DeepSpeed does it."""
        return self in (StrategyName.zero1, StrategyName.zero2, StrategyName.zero3)


class Sharding(str, Enum):
    """What `fsdp` cuts up."""

    full = "full"
    grad_op = "grad_op"
    hybrid = "hybrid"


class Offload(str, Enum):
    """What is kept in the host's memory."""

    none = "none"
    optimizer = "optimizer"
    parameters = "parameters"


@dataclass(kw_only=True)
class StrategyConfig:
    """How the training step is spread over processes; the result is the same but for rounding, unless the model has
    batch normalization, whose statistics in training are those of a process's own rows."""

    name: StrategyName = StrategyName.auto
    """`auto` is `single` for one process, `ddp` for several. `single`: one device, nothing wrapped. `dp`: threads over
    the GPUs of one process. `ddp`: every process has the whole model. `fsdp`: weights, gradients and optimizer cut up.
    `optimizer_sharding`: `ddp` with the optimizer's state cut up. `zero1|zero2|zero3`: DeepSpeed (GPUs only)."""

    wrap: str | None = None
    """Class name of the block that `fsdp` (and activation checkpointing) takes at once; empty finds it out."""

    sharding: Sharding = Sharding.full
    """`fsdp`: `full` gathers weights anew for the backward pass; `grad_op` keeps them gathered (faster, more memory);
    `hybrid` cuts up within `shard_processes` and copies between such groups."""

    shard_processes: int | None = None
    """`hybrid`: how many processes share one copy of the model; empty means those of one machine."""

    offload: Offload = Offload.none
    """`optimizer` (zero1 to zero3) or `parameters` (fsdp, zero3; the optimizer's state goes with them) live in the
    host's memory: slower, for models that do not fit otherwise."""

    activation_checkpointing: bool = False
    """Compute the blocks' forward pass a second time in the backward pass instead of keeping what it made."""

    zero_options: dict[str, Any] = field(default_factory=dict)
    """`zero1` to `zero3`: further options of DeepSpeed's `zero_optimization`, handed on as they are
    (`+strategy.zero_options.overlap_comm=true`)."""

    find_unused_parameters: bool = False
    """`ddp`, `optimizer_sharding`: look in every step for weights that took no part; slower, needed only where there
    are some. `fsdp` needs no look, but all processes must use the same blocks in every pass."""

    def __post_init__(self) -> None:
        name = self.name
        fsdp = name is StrategyName.fsdp
        if self.wrap is not None and not (fsdp or self.activation_checkpointing):
            raise ConfigError(
                "strategy.wrap has an effect only with strategy=fsdp or strategy.activation_checkpointing"
            )
        if self.sharding is not Sharding.full and not fsdp:
            raise ConfigError(f"strategy.sharding={self.sharding.value} has an effect only with strategy=fsdp")
        if self.shard_processes is not None and self.sharding is not Sharding.hybrid:
            raise ConfigError("strategy.shard_processes has an effect only with strategy.sharding=hybrid")
        at_least(self, "strategy", 1, "shard_processes")
        if self.zero_options and not name.is_zero:
            raise ConfigError("strategy.zero_options has an effect only with strategy=zero1, zero2 or zero3")
        able = {Offload.optimizer: name.is_zero, Offload.parameters: fsdp or name is StrategyName.zero3}
        if not able.get(self.offload, True):
            where = {"optimizer": "zero1, zero2 and zero3", "parameters": "fsdp and zero3"}[self.offload.value]
            raise ConfigError(f"strategy.offload={self.offload.value}: strategy={name.value} cannot; {where} can")
        unused = (StrategyName.auto, StrategyName.ddp, StrategyName.optimizer_sharding)
        if self.find_unused_parameters and name not in unused:
            raise ConfigError(f"strategy.find_unused_parameters has no effect with strategy={name.value}")


class Precision(str, Enum):
    """Number format of the forward and backward pass; weights and optimizer state stay in fp32."""

    auto = "auto"
    fp32 = "fp32"
    tf32 = "tf32"
    bf16 = "bf16"
    fp16 = "fp16"
    fp8 = "fp8"


class CompileMode(str, Enum):
    """Modes of torch.compile."""

    off = "off"
    on = "on"
    reduce_overhead = "reduce_overhead"
    max_autotune = "max_autotune"


@dataclass(kw_only=True)
class CompileConfig:
    """torch.compile: faster steps after a first one that takes minutes."""

    mode: CompileMode = CompileMode.off
    """`off`, `on` (torch's default mode), `reduce_overhead` (CUDA graphs) or `max_autotune`."""

    shapes: int | None = None
    """How many padded lengths there may be at most, each with a kernel of its own (more padding, faster kernels);
    empty compiles once for all lengths. `reduce_overhead` and `max_autotune` take 8 where it is empty."""

    def __post_init__(self) -> None:
        at_least(self, "compile", 1, "shapes")
        if self.shapes is not None and self.mode is CompileMode.off:
            raise ConfigError("compile.shapes has an effect only with compile.mode")
