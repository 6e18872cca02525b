"""Takes optimizer steps of any model whose shapes are few: each is captured in a CUDA graph, padded rows and all.

Rows are padded to a few widths, so that a micro-batch has one of a few shapes, and every shape has graphs of its own
over buffers that stay where they are. The blocks of the model (`find_blocks`) are compiled first where the run is long
enough to pay for it; dropout stays torch's own, so that captured, compiled and eager steps draw the same masks.

What AdamW needs to know lies on the device: rate, clipping factor, and whether to leave everything as it is because the
loss is not finite. Such steps are taken in blocks, and nothing waits for the device within one. Any other optimizer,
fp16's scaling and DDP take the forward and backward pass from the graph and the rest as ever.

FSDP gathers weights and sums gradients within the passes: graphs hold these exchanges too. So all its processes capture
the same shapes in the same order, and agree on every step of the way there.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..config import OnNan, Precision
from ..data.order import MicroBatch, step_seed
from ..models import parity, position_bias
from ..models.deberta import by_distance
from ..models.packed_attention import has_kernel
from ..models.unpadded import difference, unpadded
from ..packed.cuda_graph import (
    Graph,
    NotCapturable,
    capture,
    frozen_by_capture,
    random_kept,
    reason_of,
)
from ..packed.widths import EPOCHS, Widths
from .compiling import WIDTH, compiled_as_eager
from .eligibility import not_unpadded_reason
from .oom import ran_out, release
from .schedule import set_rate
from .strategy.blocks import find_blocks
from .strategy.device_optimizer import local, reads_tensors, update
from .strategy.fsdp import let_go
from .train_step import EagerStep, Feed, Item, StepResult, lay_out

log = logging.getLogger(__name__)

BLOCK = 32
"""Steps that are taken before the CPU waits for the device; a person waits that long for an answer to Ctrl-C."""

WORTH_UNPADDING = 0.1
"""Share of padding from which on blocks compute without."""

TRIED = 8
"""Rows with which that is tried."""

STEPS = 3
"""Steps whose losses are held against the eager ones before captured steps are trusted."""


@dataclass(eq=False)
class Shape:
    """Buffers for micro-batches of one shape, and what was captured over them."""

    inputs: dict[str, Tensor]
    graphs: dict[tuple[bool, bool], Graph | None] = field(default_factory=dict)
    """By (add, update); None where no graph could be had."""

    def fill(self, tensors: dict[str, Tensor]) -> None:
        """Copy a micro-batch in."""
        for name, tensor in tensors.items():
            self.inputs[name].copy_(tensor, non_blocking=True)


class CapturedSteps(EagerStep):
    """The steps of one process."""

    def __post_init__(self) -> None:
        super().__post_init__()
        run, world, order = self.run, self.run.world, self.order
        self.device, self.model = world.device, self.strategy.model
        self.network = self.model  # several processes exchange gradients after the backward pass, not in it
        position_bias.lay_out(self.model)  # for eager steps too, which then draw the same masks
        self.on_device = world.device.type == "cuda"
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.clip_norm = run.config.optimizer.clip_norm
        several = -(-order.global_size // world.size) > run.micro_batch
        plain = self.strategy.scaler is None and self.unfreezing is None and run.config.on_nan is OnNan.stop
        self.sharded = self.strategy.sharded
        self.together = self.sharded and world.size > 1
        """Whether passes are of all processes together."""
        self.whole = (world.size == 1 or self.sharded) and plain and reads_tensors(self.optimizer)
        """Whether the update is captured too: nothing but the gradient has a say in it."""
        self.variants = [(False, False), (True, False)] + ([(True, True)] if self.whole else [])
        if not several:
            self.variants = [(False, self.whole)]
        # A moving average of the weights looks at them after every step.
        self.most = BLOCK if self.whole and not run.config.ema.decay else 1
        self.blocks = find_blocks(self.model)
        self.shapes: dict[Any, Shape] = {}
        self.pool, self.stream = None, None
        if self.on_device:
            self.pool, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(self.device)
        self.by_hand = False
        """Whether steps are eager for now, of whose rows a graph did not fit."""
        numbers = torch.zeros(7, device=self.device).unbind()
        self.weight, self.loss, self.norm, self.factor, self.skip, self.hold, self.changed = numbers
        """Factor on a micro-batch's loss; the step's loss so far; norm of its gradient; what the gradient is divided
        by; 1 to leave all as it is, the same asked for by the host, and the same since a graph did not fit its rows."""
        self.rates = list(torch.zeros(len(self.optimizer.param_groups), device=self.device).unbind())
        self.grads: list[Tensor | None] = []
        """Where gradients stay between the graphs of a step; none for weights that take no part in the loss."""
        self.unused: list[torch.nn.Parameter] = []
        """Such weights."""
        self.programs: dict[torch.nn.Module, Any] = {}
        self.gradient_error = 0.0
        """Of one parameter, the largest that was seen when steps were tried."""
        self.real_tokens = self.computed_tokens = 0
        self.capture_seconds, self.ready = 0.0, False
        self._plan()

    def _plan(self) -> None:
        """Choose the shapes of micro-batches."""
        run, table = self.run, self.table
        multiple = run.config.batch.pad_multiple or WIDTH
        places = table.places() if table.streamed else np.zeros((len(table), 2), int) if table.unpadded else None
        self.widths = Widths.plan(self.order, self._cut_all, run.total_steps, multiple, places)
        self.feed = Feed(run.config, run.world, self.order, table, run.total_steps, self.widths)

    # Before the first step

    def compile_blocks(self) -> bool:
        """Have the model's blocks compiled in captures to come; return whether it has any."""
        several = len(self.widths.chosen) > 1
        parts = [module for module in self.model.modules() if getattr(module, "compiles", False)]
        for block in [*self.blocks, *parts]:
            # FSDP gathers weights in hooks around the forward function, which no compiler can take.
            program = block.forward if self.sharded else block._call_impl
            self.programs[block] = torch.compile(program, dynamic=several or None)
        return bool(self.programs)

    def unpad(self) -> str:
        """Have the model's blocks compute without padding from now on, if that changes nothing; return why not, as the
        end of a sentence."""
        table = self.table
        if self.sharded:
            return "strategy=fsdp gathers its blocks one by one"
        with self.strategy.autocast():
            if not has_kernel(self.device):
                return "its kernel is for half precision on a GPU"
        if reason := not_unpadded_reason(table, self.blocks):
            return reason
        longest = table.columns["input_ids"].longest
        micro = self._cut(min(self.run.step, self.run.total_steps - 1))[0]
        some = [batch.rows for step in range(min(50, self.run.total_steps)) for batch in self._cut(step)]
        computed = sum(len(rows) * min(self.widths(rows), longest) for rows in some)
        if 1 - sum(int(table.lengths[rows].sum()) for rows in some) / computed < WORTH_UNPADDING:
            return "there is hardly any padding"
        self.set_unpadded(True)
        with self._unchanged(), self.strategy.autocast():
            batch = lay_out(table, micro.rows[:TRIED], self.widths)
            batch = {name: tensor.to(self.device) for name, tensor in batch.items()}
            reason = difference(self.model, self.blocks, batch, partial(EagerStep._loss, self))
        if reason:
            self.set_unpadded(False)
        return reason

    def set_unpadded(self, on: bool) -> None:
        """Have blocks compute without padding, or not."""
        if self.table.unpadded != on:
            self.table.unpadded = on
            self._plan()

    def prepare(self) -> str:
        """Try the captured step against the eager one, then capture all shapes; return why it is not to be used, as the
        end of a sentence. Weights, optimizer state and random numbers are left as they are."""
        start, begun = time.perf_counter(), bool(self.optimizer.state)
        reason = ""
        self.model.train()
        self.model.zero_grad(set_to_none=True)
        try:
            with self._unchanged(), self._aside():
                reason = self._disagreement()
                for rows in [] if reason or not self.on_device else self._planned():
                    shape = self._shape(lay_out(self.table, rows, self.widths))
                    for variant in self.variants:
                        self._captured(shape, variant)
        except NotCapturable as error:
            reason = str(error)
        except Exception as error:  # a compiler that is not there, a layer that it cannot take, no memory
            if self.together and ran_out(error):
                raise  # on one process alone: the others wait for it in their passes
            reason = reason_of(error)
        self.model.zero_grad(set_to_none=True)
        if reason:
            if not begun:
                self.optimizer.state.clear()  # zeros, of updates that were held back
            self.close()
            self.programs = {}
        release(self.device)  # what the trial and the runs before captures took
        self.ready = not reason
        self.capture_seconds += time.perf_counter() - start
        return reason

    def _planned(self) -> list[np.ndarray]:
        """Return rows of every shape that the first epochs have: the largest first, into whose memory the others
        fit."""
        last = min(self.run.total_steps, EPOCHS * self.order.steps_per_epoch)
        found = {}
        for step in range(last):
            for micro in self._cut_all(step):
                rows = 1 if self.table.streamed else len(micro.rows)
                found[rows, self.widths(micro.rows)] = micro.rows
        return [rows for _, rows in sorted(found.items(), key=lambda item: item[0], reverse=True)]

    def _disagreement(self) -> str:
        """Return in what captured steps differ from eager ones, as the end of a sentence; empty if they do not."""
        run, first = self.run, min(self.run.step, self.run.total_steps - 1)
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        within = parity.WITHIN[torch.float32 if run.world.precision is Precision.fp32 else torch.bfloat16]
        for step in range(first, min(first + STEPS, run.total_steps)):
            micro, seed = self._cut(step)[0], step_seed(run.config.seed, step, run.world.rank)
            shape = self._shape(lay_out(self.table, micro.rows, self.widths))
            self.weight.fill_(micro.weight)
            if step == first and self.on_device:
                frozen = frozen_by_capture(self.model, self._drawn(shape, seed))
                if frozen := self._agreed(frozen):
                    return frozen
            torch.manual_seed(seed)
            passes = self.strategy.micro_step(True) if self.together and step == first else nullcontext()
            with torch.set_grad_enabled(step == first), passes:
                expected = self._forward(shape)
                if step == first:
                    self.strategy.backward(expected)
            expected = expected.detach()  # what accumulates gradients belongs to the stream that made it
            if step == first:
                self.unused = [p for p in self.trained if p.grad is None]
                grads = [None if p.grad is None else local(p.grad) for p in self.trained]
                self.grads = [None if p.grad is None else torch.zeros_like(p.grad) for p in self.trained]
            mean = self.strategy.reduce_sum(expected) / run.world.size if self.together else expected
            for variant in dict.fromkeys([(False, False), self.variants[0]]):
                self._captured(shape, variant)
                torch.manual_seed(seed)
                self._go(shape, variant)
                reason, found, wanted = "", self.loss.detach(), mean if variant[1] else expected
                if self.changed:
                    reason = "how many elements a mask of its forward pass selects changes from step to step"
                elif not torch.isclose(found, wanted, atol=within / 5, rtol=within / 5, equal_nan=True):
                    reason = f"the captured loss of step {step + 1} is {float(found):.4f}, not {float(wanted):.4f}"
                elif step == first and variant == (False, False) and expected.isfinite():
                    name, error = parity.worst_gradient(
                        names, grads, [g if g is None else local(g) for g in self.grads]
                    )
                    self.gradient_error = max(self.gradient_error, error)
                    if error > within:
                        reason = f"the captured gradient of {name} is {error:.0%} off the eager one"
                if reason := self._agreed(reason):
                    return reason
        if (False, False) not in self.variants:
            for shape in self.shapes.values():
                if (graph := shape.graphs.pop((False, False), None)) is not None:
                    graph.reset()
            self.grads = []
        return ""

    def _drawn(self, shape: Shape, seed: int) -> Callable[[], Tensor]:
        """Return the forward pass with the same random numbers of the device each time; the host's go on."""

        def loss() -> Tensor:
            torch.cuda.manual_seed(seed)
            with torch.no_grad():
                return self._forward(shape)

        return loss

    # Steps

    def take(self, rates: list[float]) -> StepResult:
        """See `TrainStep`."""
        if not self.whole:
            return super().take(rates)
        run, config = self.run, self.run.config
        told = torch.zeros(3, len(rates), device=self.device)
        for number, rate in enumerate(rates):
            step = run.step + number
            set_rate(self.optimizer, rate)
            for tensor, group in zip(self.rates, self.optimizer.param_groups, strict=True):
                tensor.fill_(group["lr"])
            torch.manual_seed(step_seed(config.seed, step, run.world.rank))
            batches = self.feed.step(step, run.micro_batch)
            self.attempts.attempt(partial(self._gradients, batches), self.order.rows(step))
            told[0, number], told[1, number], told[2, number] = self.loss, self.norm, self.changed
        notice = told.new_tensor([float(self.notice())])
        if self.together:
            notice = self.strategy.reduce_sum(notice)
        *losses, end = torch.cat([told[0], notice]).tolist()
        norms = [norm if self.clip_norm is not None else None for norm in told[1].tolist()]
        right = told[2].tolist().index(1.0) if self.changed else len(rates)
        if right < len(rates):
            more = self._by_hand(right, rates[right:])
            losses[right:], norms[right:] = more.losses, more.norms
        return StepResult(losses, norms, end > 0)

    def _by_hand(self, number: int, rates: list[float]) -> StepResult:
        """Take the last steps of a block eagerly, from the one whose rows a graph did not fit: it changed nothing, nor
        did those after it."""
        log.debug("step %d and those after it are taken again, eagerly", self.run.step + number + 1)
        begun = self.run.step
        losses: list[float] = []
        norms: list[float | None] = []
        self.changed.zero_()
        self.model.zero_grad(set_to_none=True)
        self.by_hand = True
        try:
            for at, rate in enumerate(rates):
                self.run.step = begun + number + at
                taken = super().take([rate])
                losses, norms = losses + taken.losses, norms + taken.norms
                if not np.isfinite(losses[-1]):  # the loop ends here
                    break
        finally:
            self.run.step, self.by_hand = begun, False
        missing = len(rates) - len(losses)
        return StepResult(losses + [losses[-1]] * missing, norms + [None] * missing, False)

    def _gradients(self, batches: Iterator[Item]) -> Tensor:
        """See `EagerStep`; where the update is captured too, it is done as well."""
        if self.by_hand:
            return super()._gradients(batches)
        with self.strategy.no_sync() or nullcontext():
            loss = self._replayed(batches)
        self.strategy.all_reduce_grads()
        return loss

    def _replayed(self, batches: Iterator[Item]) -> Tensor:
        if self.sharded:  # a graph has no hooks: what a validation left would hide shards from whoever clips
            let_go(self.model)
        first = True
        for micro, tensors in self._waited(batches):
            shape = self._shape(tensors)
            shape.fill(tensors)
            self.weight.fill_(micro.weight)
            variant = (not first, micro.last and self.whole)
            self._captured(shape, variant)
            self._go(shape, variant)
            self.real_tokens += int(self.order.lengths[micro.rows].sum())
            together = self.table.streamed or self.table.unpadded
            self.computed_tokens += self.widths(micro.rows) * (1 if together else len(micro.rows))
            first = False
        return self.loss

    @property
    def padding_share(self) -> float:
        """Share of the computed tokens that was padding."""
        return 1 - self.real_tokens / max(self.computed_tokens, 1)

    def close(self) -> None:
        """See `TrainStep`: the graphs and their memory."""
        for shape in self.shapes.values():
            for graph in shape.graphs.values():
                if graph is not None:
                    graph.reset()
        self.shapes, self.grads = {}, []

    # One micro-batch

    def _go(self, shape: Shape, variant: tuple[bool, bool]) -> None:
        """Compute what lies in the buffers: by the graph, or eagerly where there is none."""
        graph = shape.graphs[variant]
        if variant != (False, True):
            self._link()
        if graph is not None:
            graph.replay()
        else:
            self._run(shape, *variant)

    def _run(self, shape: Shape, add: bool, update: bool) -> None:
        """Forward and backward pass, added to the step's loss and gradient so far, and the update after it."""
        if update and not add:  # gradients need no place of their own
            for p in self.trained:
                p.grad = None
        elif not add:
            torch._foreach_zero_(self.places)
        loss = self._forward(shape)
        self.strategy.backward(loss)
        self.loss.copy_(self.loss + loss.detach() if add else loss.detach())
        if update:
            self._update()

    def _loss(self, tensors: dict[str, Tensor]) -> Tensor:
        """See `EagerStep`."""
        with unpadded(self.model, self.blocks, tensors):
            return super()._loss(tensors)

    def _forward(self, shape: Shape) -> Tensor:
        with self.strategy.autocast():
            return self._loss(dict(shape.inputs)) * self.weight

    def _update(self) -> None:
        """Clip and update, without a word to or from the host."""
        for p in self.unused:  # FSDP gives it a 0, which would have it decay
            p.grad = None
        own = [local(p.grad) for p in self.trained if p.grad is not None]
        if self.together:
            squares = torch.nn.utils.get_total_norm(own).square() / self.strategy.replicas
            told = torch.stack([self.loss / self.run.world.size, self.changed, squares])
            torch.distributed.all_reduce(told)
            self.loss.copy_(told[0])
            self.changed.copy_(told[1].sign())
        if self.clip_norm is not None:
            self.norm.copy_(told[2].sqrt() if self.together else torch.nn.utils.get_total_norm(own))
            # As torch.nn.utils.clip_grad_norm_, which multiplies by the inverse.
            self.factor.copy_(((self.norm + 1e-6) / self.clip_norm).clamp(min=1))
        else:
            self.factor.fill_(1)
        self.skip.copy_(torch.stack([(~self.loss.isfinite()).float(), self.hold, self.changed]).amax())
        update(self.optimizer, self.rates, self.factor, self.skip)

    def _link(self) -> None:
        """Have the backward pass write where gradients stay."""
        for p, grad in zip(self.trained, self.grads, strict=True):
            p.grad = grad

    # Shapes

    @property
    def places(self) -> list[Tensor]:
        """What this process holds of the gradients that stay between graphs."""
        return [local(grad) for grad in self.grads if grad is not None]

    def _agreed(self, reason: str) -> str:
        """Return why something is not to be, on some process where passes are of all together."""
        return self.strategy.agreed(reason) if self.together else reason

    def _cut(self, step: int) -> list[MicroBatch]:
        world = self.run.world
        return self.order.micro_batches(step, world.rank, world.size, self.run.micro_batch)

    def _cut_all(self, step: int) -> list[MicroBatch]:
        """Return the micro-batches whose shapes this process must know: its own, or those of all."""
        size, ranks = self.run.world.size, range(self.run.world.size) if self.together else [self.run.world.rank]
        return [micro for rank in ranks for micro in self.order.micro_batches(step, rank, size, self.run.micro_batch)]

    def _shape(self, tensors: dict[str, Tensor]) -> Shape:
        key = tuple((name, tensor.dtype, *tensor.shape) for name, tensor in tensors.items())
        if key not in self.shapes:
            self.shapes[key] = Shape({name: tensor.to(self.device, copy=True) for name, tensor in tensors.items()})
        return self.shapes[key]

    def _captured(self, shape: Shape, variant: tuple[bool, bool]) -> None:
        """Capture a variant where that was not done yet. A shape of which no graph can be had, once steps are taken, is
        computed eagerly."""
        if variant in shape.graphs:
            return
        shape.graphs[variant] = None
        if not self.on_device or (self.ready and self.together):  # the others would not take part
            return
        assert self.grads or variant == (False, True), "gradients have no place"
        with self._unchanged() if self.ready else nullcontext():
            try:
                with self._compiled(), by_distance(self.model):
                    places = [] if variant == (False, True) else self.places
                    kept = [grad.clone() for grad in places]
                    if places:
                        self._link()
                    run = partial(self._run, shape, *variant)
                    try:
                        graph, reason = capture(run, self.changed, self.pool, self.stream), ""
                    except NotCapturable as error:
                        reason = str(error)
                    if reason := self._agreed(reason):
                        raise NotCapturable(reason)
                    shape.graphs[variant] = graph
                    if graph.answers.sizes and not self.whole:
                        raise NotCapturable("how much a mask of its forward pass selects is not known before")
                    for grad, before in zip(places, kept, strict=True):
                        grad.copy_(before)
                    for p in self.trained:
                        p.grad = None
            except Exception as error:
                if not self.ready:
                    raise
                log.warning("rows of this shape are computed eagerly, not captured: %s", reason_of(error))

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Have what is called within run on the stream of captures."""
        if self.stream is None:
            yield
            return
        here = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            yield
        here.wait_stream(self.stream)

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Leave buffers of the model, random numbers, the loss so far and the model's own settings as they were."""
        buffers = [*self.model.buffers(), self.loss, self.changed]
        kept = [buffer.clone() for buffer in buffers]
        settings: Any = getattr(self.model, "config", None)
        cache = getattr(settings, "use_cache", None)
        if cache:
            settings.use_cache = False  # keys and values of earlier tokens, which training has no use for
        self.hold.fill_(1)
        try:
            with random_kept(self.device):
                yield
        finally:
            self.hold.fill_(0)
            if cache:
                settings.use_cache = cache
            for buffer, before in zip(buffers, kept, strict=True):
                buffer.copy_(before)

    @contextmanager
    def _compiled(self) -> Iterator[None]:
        """Have calls of the model's blocks go to their compiled form, with the random numbers that torch draws."""
        if not self.programs:
            yield
            return
        name = "forward" if self.sharded else "_compiled_call_impl"
        before = [vars(block).get(name) for block in self.programs]
        for block, program in self.programs.items():
            setattr(block, name, program)
        try:
            with compiled_as_eager():
                yield
        finally:
            for block, own in zip(self.programs, before, strict=True):
                vars(block).pop(name) if own is None else setattr(block, name, own)
