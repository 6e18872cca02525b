"""What a finished run says about itself in `result.json` (counts, rates, the seconds of every phase), and whether the
model that it hands on is whole: other trainers were seen to export what one process had left of it."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..config import RunConfig, UserError
from ..data.order import SampleOrder
from ..distributed.context import DistContext
from .callbacks.base import Callbacks, Run
from .callbacks.checkpoint import CheckpointCallback
from .callbacks.history import BestWeights
from .compiling import WIDTH
from .flops import peak, utilization
from .strategy import Strategy, size
from .train_step import TrainStep

LOOKS = 1000


def where_it_ran(config: RunConfig, world: DistContext, strategy: Strategy) -> dict[str, Any]:
    """Return what `result.json` says of processes, devices, strategy, precision and memory."""
    return {
        "world_size": world.size,
        "devices": strategy.devices,
        "processes_asked": config.launch.num_processes,
        "device": world.describe(),
        "strategy": strategy.name,
        "precision": world.precision.value,
        "precision_requested": world.requested.value,
        "peak_memory_bytes": world.peak_memory_bytes(),
    }


class Phases:
    """Seconds of every phase of the job, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Add the block's time to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - start, 3)


@dataclass
class TrainResult:
    """What is left when training has ended."""

    run: Run
    order: SampleOrder
    callbacks: Callbacks
    checkpoints: CheckpointCallback
    best: BestWeights
    steps: TrainStep
    paused: dict[str, float] | None = None
    """Scores of the validation split where the run stopped at the step that its job names."""

    @property
    def status(self) -> str:
        """`completed`, `preempted`, or `paused`: stopped at the step that the job names."""
        if self.paused is not None:
            return "paused"
        return "preempted" if self.run.preempted else "completed"

    def numbers(self) -> dict[str, Any]:
        """Return everything about the training for `result.json`."""
        run, order, config, counted = self.run, self.order, self.run.config, self.steps.padding_share
        parameters = list(run.model.parameters())
        seconds = max(run.train_seconds, 1e-9)
        return {
            **run.report,
            **({} if self.paused is None else {"paused": {"step": run.step, "metrics": self.paused}}),
            "resumed_from": run.resumed_from,
            "spent": run.spent(),
            "save_failed": self.checkpoints.failure,
            "save_stall_s": round(self.checkpoints.stall_seconds, 3),
            "steps": run.step,
            "stopped_early": run.stop and run.step < run.total_steps,
            "epochs": round(run.step / order.steps_per_epoch, 4),
            "steps_per_epoch": order.steps_per_epoch,
            "global_batch": config.batch.global_size,
            "micro_batch": run.micro_batch,
            "accumulation": -(-config.batch.global_size // (run.world.size * run.micro_batch)),
            "out_of_memory": run.out_of_memory,
            "select": config.checkpoint.select.value,
            "best": self.best.best,
            "train_rows": run.rows,
            "train_tokens": run.tokens,
            "padding_share": padding_share(order, run) if counted is None else round(counted, 4),
            "samples_per_s": round(run.rows / seconds, 2),
            "tokens_per_s": round(run.tokens / seconds, 1),
            **efficiency(run),
            "parameters": sum(size(p) for p in parameters),
            "trainable_parameters": sum(size(p) for p in parameters if p.requires_grad),
        }


def padding_share(order: SampleOrder, run: Run) -> float:
    """Return the share of computed tokens that is padding, on all processes, over the first epoch at most (some `LOOKS`
    steps of it: it is looked at when the run is over, and the devices wait)."""
    real = computed = 0
    taken = min(run.step, order.steps_per_epoch)
    multiple = 1 if order.one_length else run.config.batch.pad_multiple or WIDTH
    longest = int(order.lengths.max())
    for step in range(0, taken, max(1, taken // LOOKS)):
        real += int(order.lengths[order.rows(step)].sum())
        for rank in range(run.world.size):
            for micro in order.micro_batches(step, rank, run.world.size, run.micro_batch):
                width = -(-int(order.lengths[micro.rows].max()) // multiple) * multiple
                computed += len(micro.rows) * min(width, longest)
    return round(1 - real / max(computed, 1), 4)


def efficiency(run: Run) -> dict[str, Any]:
    """Return how well the devices were used so far: for `result.json`."""
    seconds, world = run.train_seconds, run.world
    of = peak(world.describe(), world.precision)
    share = utilization(run.flops, seconds, run.devices or world.size, of)
    return {
        "train_flops": run.flops or None,
        "peak_flops": of,
        "mfu": None if share is None else round(share, 4),
        "data_wait_share": round(run.data_seconds / seconds, 4) if seconds > 0 else None,
        "skipped_steps": run.skipped,
    }


def shapes_of(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of everything that a model's file must hold, by name; to be called before it is wrapped."""
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def check_whole_model(model: torch.nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse to hand on a model of which something is missing, empty or a shard.

    Raises:
        UserError: with the first such tensor.
    """
    found = model.state_dict()
    for name in sorted(shapes.keys() | found.keys()):
        fault = _fault(found.get(name), shapes.get(name))
        if fault:
            raise UserError(f"the trained model is not whole, so nothing was written: {name} {fault}")


def _fault(tensor: torch.Tensor | None, shape: tuple[int, ...] | None) -> str:
    if tensor is None:
        return "is missing"
    if shape is None:
        return "is not in the model that was to be trained"
    if tensor.is_meta:
        return "has no memory"
    if type(tensor) is not torch.Tensor and not isinstance(tensor, torch.nn.Parameter):
        return f"is a {type(tensor).__name__}"
    if tuple(tensor.shape) != shape:
        return f"is {'empty' if not tensor.numel() else 'a shard'}: {list(tensor.shape)} instead of {list(shape)}"
    return ""
