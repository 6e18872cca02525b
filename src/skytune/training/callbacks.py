"""Code at named moments of a run: the protocol, the list that calls it, and how a failure in it is named.

A callback of your own is any class with some of these methods; `Callback` has them all, doing nothing. Every process
calls its own copy; look at `run.world.main` before writing files. Order: the package's own callbacks first, then the
config's, in the order of their names in `callbacks`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..config import RunConfig, UserError
from ..config.targets import instantiate, split_spec

if TYPE_CHECKING:
    import torch

    from ..job import JobDir
    from .devices import World
    from .flops import Work

MOMENTS = ("on_run_start", "on_epoch_start", "on_step_end", "on_validation_end", "on_exception", "on_run_end")


@dataclass
class Run:
    """What a callback sees of the run; only `stop` and `extra` are its to change."""

    config: RunConfig
    job: "JobDir"
    world: "World"
    model: "torch.nn.Module"
    total_steps: int
    steps_per_epoch: int
    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    """Epoch of the current step, from 0."""
    loss: float = float("nan")
    """Mean loss over the last global batch."""
    lr: float = 0.0
    """Learning rate of the last step."""
    grad_norm: float | None = None
    """Norm of the last step's gradient before clipping; None without clipping."""
    rows: int = 0
    """Rows learned from so far, over all processes."""
    tokens: int = 0
    """Tokens learned from so far, padding not counted."""
    train_seconds: float = 0.0
    """Time spent in training steps so far (validation not counted)."""
    data_seconds: float = 0.0
    """Part of it that this process waited for its batches."""
    work: "Work | None" = None
    """What a row costs; None where that cannot be read from the model."""
    flops: float = 0.0
    """Floating-point operations of the rows learned from so far, padding not counted; 0 where they are not known."""
    skipped: int = 0
    """Steps whose gradients overflowed (fp16), so that they changed no weight."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the last validation."""
    validating: bool = False
    """Whether the step just taken is followed by a validation."""
    resumed_from: int | None = None
    """Step of the checkpoint that this process went on from; None where it started."""
    preempted: bool = False
    """Whether the run was told to end; it is saved, and another process will go on."""
    stop: bool = False
    """Set it to end training after this step; it must be set on every process alike."""
    extra: dict[str, Any] = field(default_factory=dict)
    """The config's `extra`, and whatever callbacks want to tell each other."""


class Callback:
    """Base class: every moment does nothing."""

    def on_run_start(self, run: Run) -> None:
        """Before the first step."""

    def on_epoch_start(self, run: Run) -> None:
        """Before the first step of an epoch."""

    def on_step_end(self, run: Run) -> None:
        """After an optimizer step whose loss is known."""

    def on_validation_end(self, run: Run) -> None:
        """After a validation; `run.metrics` holds its result."""

    def on_exception(self, run: Run) -> None:
        """When training ends with an exception."""

    def on_run_end(self, run: Run) -> None:
        """After the last step."""


class Callbacks:
    """Calls every callback at a moment, in order, and names the one that fails."""

    def __init__(self, named: list[tuple[str, Any]]) -> None:
        self.named = named

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self.named)

    def __call__(self, moment: str, run: Run) -> None:
        """Call `moment` on all callbacks.

        Raises:
            UserError: one of them failed, with its name.
        """
        assert moment in MOMENTS, moment
        for name, callback in self.named:
            method = getattr(callback, moment, None)
            if method is None:
                continue
            try:
                method(run)
            except UserError:
                raise
            except Exception as error:
                if moment == "on_exception":  # the run's own exception matters more
                    continue
                raise UserError(f"callbacks.{name} failed in {moment}: {type(error).__name__}: {error}") from error


def build_callbacks(config: RunConfig, own: list[tuple[str, Any]]) -> Callbacks:
    """Return the package's callbacks followed by those of the config.

    Raises:
        ConfigError: an import path or arguments that do not fit.
    """
    named = list(own)
    for name, spec in config.callbacks.items():
        target, arguments = split_spec(spec)
        callback = instantiate(target, arguments, offered={"config": config}, key=f"callbacks.{name}._target_")
        if not any(hasattr(callback, moment) for moment in MOMENTS):
            raise UserError(f"callbacks.{name}: {target} has none of the methods {', '.join(MOMENTS)}")
        named.append((name, callback))
    return Callbacks(named)
