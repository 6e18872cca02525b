"""`batch`, `loader`, `optimizer`, `schedule`: the mathematics of training, and how rows reach it."""

import math
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ..checks import above_zero, at_least, below_one, together
from ..errors import ConfigError


@dataclass(kw_only=True)
class BatchConfig:
    """The global batch is the primary number: it does not change with the number of processes."""

    global_size: int = 32
    """Rows that one optimizer step learns from, over all processes and accumulation steps."""

    micro_size: int | None = None
    """Rows a process computes at once; smaller than its share of the global batch means gradient accumulation.
    Empty means the whole share."""

    auto: bool = False
    """Where memory runs out, halve the micro-batch in all processes and take the step again; the global batch stays.
    Several processes then exchange gradients after the backward pass instead of during it."""

    bucket_batches: int = 50
    """Rows are sorted by length within pools of so many global batches, so that little padding is computed;
    1 switches length bucketing off."""

    pad_multiple: int | None = None
    """Padded lengths are multiples of this. Empty means 8, which a GPU's matrix products want; on a CPU 1
    (in an evaluation 8: a row's logits then do not depend on its batch)."""

    def __post_init__(self) -> None:
        at_least(self, "batch", 1, "global_size", "bucket_batches", "pad_multiple")
        if self.micro_size is not None and not 1 <= self.micro_size <= self.global_size:
            raise ConfigError(
                f"batch.micro_size={self.micro_size}: must lie between 1 and batch.global_size={self.global_size}"
            )


@dataclass(kw_only=True)
class LoaderConfig:
    """Data loading in the worker processes."""

    num_workers: int | None = None
    """Extra processes that build batches; 0 builds them in the training process. Empty means 0 for tokens, which are
    memory-mapped, and for images, which are decoded there, the CPU cores of a training process but two (16 at most)."""

    def __post_init__(self) -> None:
        at_least(self, "loader", 0, "num_workers")


class OptimizerName(str, Enum):
    """Optimizers by name."""

    adamw = "adamw"
    sgd = "sgd"


@dataclass(kw_only=True)
class OptimizerConfig:
    """The optimizer and the clipping of its gradients."""

    name: OptimizerName = OptimizerName.adamw
    """`adamw` (fused where the device has it) or `sgd`; unused with `_target_`."""

    lr: float = 5e-5
    """Peak learning rate."""

    weight_decay: float = 0.01
    """Decoupled weight decay; biases and normalization weights do not decay (see `no_decay`)."""

    no_decay: list[str] | None = None
    """Which parameters do not decay: regular expressions, looked for in their names (`[bias,LayerNorm.weight]`; `[]`:
    all decay). Empty means biases and normalization weights, as transformers' Trainer tells them."""

    layer_decay: float = 1.0
    """Layer-wise decay of the learning rate: every layer has this many times the rate of the one above it, the head has
    all of it (0.8 to 0.95 are usual for encoders; Clark et al. 2020, arXiv:2003.10555). 1 is off."""

    groups: dict[str, Any] = field(default_factory=dict)
    """Parameters with settings of their own, by a name of yours: `match`, a regular expression that is looked for in
    their names, with `lr` or `weight_decay`, as in `+optimizer.groups.head={match:classifier,lr:1e-3}`. The first group
    that matches counts, instead of `layer_decay`."""

    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    """AdamW's two averaging constants."""

    eps: float = 1e-8
    """AdamW's term in the denominator."""

    momentum: float = 0.0
    """SGD's momentum."""

    clip_norm: float | None = 1.0
    """Largest global norm of the gradient; empty switches clipping off."""

    gradient_noise: float = 0.0
    """Noise on every gradient after clipping, normal, of the variance `gradient_noise / (1 + step)^0.55`: deep networks
    on hard tasks can learn better with 0.01, 0.3 or 1 (Neelakantan et al. 2015, arXiv:1511.06807). 0 is off."""

    _target_: str | None = None
    """Import path of an optimizer class, called with the parameter groups, `lr=` and `args`."""

    args: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `_target_`."""

    def __post_init__(self) -> None:
        if not 0 < self.lr < 10:
            raise ConfigError(f"optimizer.lr={self.lr}: must be above 0 (and below 10)")
        at_least(self, "optimizer", 0, "weight_decay", "gradient_noise")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"optimizer.betas={self.betas}: two numbers, each at least 0 and below 1")
        above_zero(self, "optimizer", "eps")
        below_one(self, "optimizer", "momentum")
        above_zero(self, "optimizer", "clip_norm", more=", or null for no clipping")
        together(self, "optimizer", "args", "_target_")
        if not 0 < self.layer_decay <= 1:
            raise ConfigError(f"optimizer.layer_decay={self.layer_decay}: must be above 0 and at most 1")
        for pattern in self.no_decay or ():
            _check_pattern("optimizer.no_decay", pattern)
        for name, group in self.groups.items():
            _check_group(f"optimizer.groups.{name}", group)


def _check_group(key: str, group: Any) -> None:
    """Refuse parameters with settings of their own that are not written as they must be."""
    if not isinstance(group, dict) or not {"match"} < group.keys() <= {"match", "lr", "weight_decay"}:
        raise ConfigError(f"{key}={group}: must be {{match:PATTERN}} with lr or weight_decay (or both)")
    _check_pattern(f"{key}.match", group["match"])
    for name, least, most in (("lr", 0, 10), ("weight_decay", 0, math.inf)):
        value = group.get(name, least)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < most:
            raise ConfigError(f"{key}.{name}={value}: must be a number, at least 0{' and below 10' * (name == 'lr')}")


def _check_pattern(key: str, pattern: Any) -> None:
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ConfigError(f"{key}={pattern}: is no regular expression: {error}") from error


class ScheduleName(str, Enum):
    """Learning-rate schedules by name."""

    linear = "linear"
    cosine = "cosine"
    constant = "constant"


class ScaleLr(str, Enum):
    """How the learning rate follows the global batch."""

    none = "none"
    linear = "linear"
    sqrt = "sqrt"


PRESET_WARMUP = 0.1
"""`warmup_ratio` of the presets of `schedule`, as in BERT's and ELECTRA's own fine-tuning. Without one, encoders whose
weights are new stay at the majority's class now and then; pretrained ones learn as well with it."""


@dataclass(kw_only=True)
class ScheduleConfig:
    """The learning rate as a function of the optimizer step; the number of processes plays no part."""

    name: ScheduleName = ScheduleName.linear
    """`linear` or `cosine` decay to 0, or `constant`; all after the warmup."""

    warmup_steps: int = 0
    """Optimizer steps in which the rate grows linearly from 0."""

    warmup_ratio: float = 0.0
    """The same as a share of all steps, rounded up; used when `warmup_steps` is 0. The presets have 0.1."""

    cycles: int = 1
    """`cosine`: how often the rate falls from its peak to 0; with more than one it restarts at the peak (Loshchilov &
    Hutter 2017, arXiv:1608.03983)."""

    unfreeze_epochs: float | None = None
    """Gradual unfreezing (Howard & Ruder 2018, arXiv:1801.06146): at first the head alone learns, after every so many
    epochs (0.5 is half of one) one more layer, from the top, and last the embeddings. Empty: all learn from the start.
    The time of a step stays the same."""

    scale_lr: ScaleLr = ScaleLr.none
    """How `optimizer.lr` follows the global batch: `linear` (times `batch.global_size / scale_reference`; for SGD:
    Goyal et al. 2017, arXiv:1706.02677), `sqrt` (times its square root; for Adam: Malladi et al. 2022,
    arXiv:2205.10287), or `none`."""

    scale_reference: int = 32
    """The global batch for which `optimizer.lr` is meant; used where `scale_lr` is not `none`."""

    _target_: str | None = None
    """Import path of a function `(step, total_steps, **args) -> factor` on the learning rate."""

    args: dict[str, Any] = field(default_factory=dict)
    """Arguments of `_target_`."""

    def __post_init__(self) -> None:
        at_least(self, "schedule", 0, "warmup_steps")
        below_one(self, "schedule", "warmup_ratio")
        if self.warmup_steps and self.warmup_ratio == PRESET_WARMUP:
            self.warmup_ratio = 0.0  # a person wrote the steps, the preset the ratio
        if self.warmup_steps and self.warmup_ratio:
            raise ConfigError("schedule.warmup_steps and schedule.warmup_ratio are both set: give one")
        at_least(self, "schedule", 1, "scale_reference", "cycles")
        if self.cycles > 1 and (self.name is not ScheduleName.cosine or self._target_):
            raise ConfigError(f"schedule.cycles={self.cycles} has an effect only together with schedule.name=cosine")
        above_zero(self, "schedule", "unfreeze_epochs")
        together(self, "schedule", "args", "_target_")

    def lr_scale(self, global_size: int) -> float:
        """Return the factor on `optimizer.lr` for a global batch."""
        ratio = global_size / self.scale_reference
        return {ScaleLr.none: 1.0, ScaleLr.linear: ratio, ScaleLr.sqrt: ratio**0.5}[self.scale_lr]
