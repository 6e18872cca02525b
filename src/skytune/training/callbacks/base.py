"""Code at named moments of a run: the protocol, the list that calls it, and how a failure in it is named.

A callback of your own is any class with some of these methods; `Callback` has them all, doing nothing. Every process
calls its own copy; look at `run.world.main` before writing files.

Order: the package's own (history, progress, best weights, early stopping, averaged weights, profiler, ...), then the
config's in the order of `callbacks`, and last the one that saves checkpoints, so that a checkpoint holds what all
others made of the moment. `on_run_end` and `on_exception` come in the reverse order, as a stack unwinds: the last
checkpoint is announced before anybody closes a file.

State: where a callback has both `state()` and `load_state(values)`, checkpoints carry what `state()` returns on rank 0
(JSON), and a run that goes on from one gives it to `load_state` on every process, before `on_run_start`.

Errors: what a callback raises ends the run in one line that names the callback and the moment. In `on_exception` it is
logged instead: the run's own error matters more.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...config import RunConfig, UserError
from ...config.targets import instantiate, split_spec

if TYPE_CHECKING:
    import torch

    from ...distributed.context import DistContext
    from ...job import JobDir
    from ..flops import Work

log = logging.getLogger(__name__)

MOMENTS = (
    "on_run_start",
    "on_epoch_start",
    "on_step_end",
    "on_validation_end",
    "on_checkpoint_saved",
    "on_exception",
    "on_run_end",
    "on_model_saved",
)
UNWINDING = ("on_exception", "on_run_end")
"""Moments at which the callbacks are called in reverse order."""


@dataclass
class Run:
    """What a callback sees of the run; only `stop`, `extra` and `report` are its to change."""

    config: RunConfig
    job: "JobDir"
    world: "DistContext"
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
    unsynced_steps: int = 0
    """Steps that the weights are ahead of `step`: where several steps are taken at once, they are told one by one
    afterwards, and only the last one finds the weights of its own step. Always 0 where there are callbacks of yours."""
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
    validation_owed: bool = False
    """Whether the run was told to end after a step that a validation should have followed: whoever goes on makes it."""
    begun: float = field(default_factory=time.time)
    """When the launcher began, in seconds since the epoch."""
    earlier: dict[str, float] = field(default_factory=dict)
    """What earlier starts of this run have spent until their last save; see `spent`."""
    resumed_from: int | None = None
    """Step of the checkpoint that this process went on from; None where it started."""
    preempted: bool = False
    """Whether the run was told to end; it is saved, and another process will go on."""
    stop: bool = False
    """Set it at the end of a step or a validation to end training there; one process that does ends it for all."""
    devices: int = 0
    """Devices that compute, all processes together; 0 where that is one a process."""

    micro_batch: int = 0
    """Rows that a process computes at once; more of its share mean gradient accumulation."""
    out_of_memory: int = 0
    """How often memory ran out and `batch.auto` halved the micro-batch, in all starts of this run together."""
    saved_step: int | None = None
    """Step of the newest checkpoint that this process saved; None before the first one, and on other ranks than 0."""
    saved_url: str = ""
    """Where that checkpoint lies: `<store>/<run key>/step-00001200`."""
    extra: dict[str, Any] = field(default_factory=dict)
    """The config's `extra`, and whatever callbacks want to tell each other."""
    collect: "Callable[[], None] | None" = None
    """Where every process updates a share of the weights alone: brings weights and optimizer state together, on all
    processes at once. The package does so before anybody looks."""
    report: dict[str, Any] = field(default_factory=dict)
    """Small JSON that goes into `result.json`, for what a callback has to say about the whole run (rank 0's counts)."""

    def gather_full_state(self) -> None:
        """Have weights and optimizer state whole here (collective where processes update shares of them)."""
        if self.collect is not None:
            self.collect()

    def spent(self) -> dict[str, float]:
        """Return what all starts of this run together have spent so far, which is what it costs.

        `starts`: how many there were; `wall_s`: seconds from the launchers' beginnings; `process_s`: the same times the
        number of processes. What a start did after its last save is not in it: nobody was left to write it down.
        """
        seconds, before = max(0.0, time.time() - self.begun), self.earlier
        return {
            "starts": int(before.get("starts", 0)) + 1,
            "wall_s": round(before.get("wall_s", 0.0) + seconds, 3),
            "process_s": round(before.get("process_s", 0.0) + seconds * self.world.size, 3),
        }


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

    def on_checkpoint_saved(self, run: Run) -> None:
        """A checkpoint is complete: `run.saved_step`, `run.saved_url`. On rank 0 alone, which writes; in the training
        loop's thread, at the end of the step in which the background save was found finished."""

    def on_exception(self, run: Run) -> None:
        """When training ends with an exception."""

    def on_run_end(self, run: Run) -> None:
        """After the last step, or when the run was told to end (`run.preempted`); the last checkpoint is saved."""

    def on_model_saved(self, run: Run) -> None:
        """The selected model lies in `run.job.model` and has predicted every evaluation split; not when preempted."""


class Callbacks:
    """Calls every callback at a moment, in order, and names the one that fails."""

    def __init__(self, named: list[tuple[str, Any]]) -> None:
        self.named = named

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self.named)

    def append(self, name: str, callback: Any) -> None:
        """Add one behind all others."""
        self.named.append((name, callback))

    def __call__(self, moment: str, run: Run) -> None:
        """Call `moment` on all callbacks.

        Raises:
            UserError: one of them failed, with its name.
        """
        assert moment in MOMENTS, moment
        for name, callback in reversed(self.named) if moment in UNWINDING else list(self.named):
            method = getattr(callback, moment, None)
            if method is None:
                continue
            try:
                with _named(name, moment):
                    method(run)
            except Exception as error:
                if moment != "on_exception":
                    raise
                log.warning("%s", error)

    def state(self) -> dict[str, Any]:
        """Return the state of every callback that has one, by name.

        Raises:
            UserError: one of them failed, or returned something that JSON cannot hold.
        """
        found = {}
        for name, callback in self._stateful():
            with _named(name, "state"):
                found[name] = json.loads(json.dumps(callback.state()))
        return found

    def load_state(self, states: Mapping[str, Any]) -> None:
        """Give every callback the state that was saved under its name.

        Raises:
            UserError: one of them cannot take it.
        """
        for name, callback in self._stateful():
            if name in states:
                with _named(name, "load_state"):
                    callback.load_state(states[name])

    def _stateful(self) -> list[tuple[str, Any]]:
        return [
            (name, callback)
            for name, callback in self.named
            if all(callable(getattr(callback, method, None)) for method in ("state", "load_state"))
        ]


@contextmanager
def _named(name: str, what: str) -> Iterator[None]:
    """Name the callback in whatever it raises; a message that is meant for people passes as it is."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{name} failed in {what}: {type(error).__name__}: {error}") from error


def build_callbacks(config: RunConfig, own: list[tuple[str, Any]]) -> Callbacks:
    """Return the package's callbacks followed by those of the config, which are called `callbacks.<name>`.

    Raises:
        ConfigError: an import path or arguments that do not fit.
    """
    named = list(own)
    for name, spec in config.callbacks.items():
        target, arguments = split_spec(spec)
        callback = instantiate(target, arguments, offered={"config": config}, key=f"callbacks.{name}._target_")
        if not any(hasattr(callback, moment) for moment in MOMENTS):
            raise UserError(f"callbacks.{name}: {target} has none of the methods {', '.join(MOMENTS)}")
        named.append((f"callbacks.{name}", callback))
    return Callbacks(named)
