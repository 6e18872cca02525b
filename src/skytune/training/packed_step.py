"""Takes optimizer steps of a packed model in blocks: the CPU names rows and rates, and hears of losses at the end.

What a block needs is computed ahead and copied to the device at once; then every step is two small copies and the
replay of a graph. Nothing waits for the device before the block is over.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..config import Precision
from ..data.order import step_seed
from ..packed.architectures import PackedModel
from ..packed.graph_step import GraphStep
from ..packed.packing import GRAIN, DeviceTable, choose_budgets
from .train_step import StepResult, TrainStep

BLOCK = 32
"""Steps that are taken before the CPU waits for the device; a person waits that long for an answer to Ctrl-C."""

BUDGETS = 16
"""Graphs that are captured at most, for steps of different lengths."""

WASTE = 0.03
"""Share of the computed tokens that may be empty, where that many graphs can bring it there."""

EPOCHS = 3
"""Epochs whose steps decide the budgets; a later step that needs more gets a graph of its own."""

COARSE = 8 * GRAIN
"""Budgets that nobody chose are multiples of this, so that few are needed."""


@dataclass(frozen=True)
class Micro:
    """One micro-batch: its rows and the tokens in them."""

    rows: np.ndarray
    tokens: int
    most: int
    """Tokens of the process that has the most: all take the same budget, since they wait for each other anyway."""


@dataclass(frozen=True)
class PackingPlan:
    """The micro-batches of a few steps."""

    first: int
    steps: list[list[Micro]]
    """The micro-batches of every step."""
    whole: Tensor
    """[micro-batches, 1 + rows] on the device, as `GraphStep.whole`."""
    real: Tensor
    """[micro-batches, 5] in host memory, as `GraphStep.real`, the learning rates left out."""


class PackedTrainStep(TrainStep):
    """The steps of one process."""

    most = BLOCK

    def __post_init__(self) -> None:
        run, order, optimizer, world = self.run, self.order, self.optimizer, self.run.world
        assert isinstance(optimizer, torch.optim.AdamW)
        clip_norm = run.config.optimizer.clip_norm
        self.clips = clip_norm is not None
        self.seed, self.rank = run.config.seed, world.rank
        self.world_size, self.micro_size = world.size, run.micro_batch
        compute = torch.bfloat16 if world.precision is Precision.bf16 else torch.float32
        self.model, self.captured = PackedModel(run.model, optimizer, compute), world.device.type == "cuda"
        rows = DeviceTable(self.table, world.device)
        self.packed = GraphStep(self.model, rows, self.micro_size, clip_norm, (world.rank, world.size))
        # From step 0, wherever this process starts: rounding and dropout's masks depend on the budget of a step.
        last = min(run.total_steps, EPOCHS * order.steps_per_epoch)
        totals = [micro.most for step in range(last) for micro in self._micros(step)]
        self.budgets = choose_budgets(np.array(totals or [1]), BUDGETS, waste=WASTE)
        self._plan: PackingPlan | None = None
        self.real_tokens = self.computed_tokens = 0
        self.capture_seconds = 0.0

    def prepare(self) -> None:
        """Capture the graphs of all budgets, so that no step has to wait for it."""
        if not self.captured:
            return
        start = time.perf_counter()
        several = -(-self.order.global_size // self.world_size) > self.micro_size
        variants = [(False, False), (True, False), (True, True)] if several else [(False, True)]
        # The largest first: the others fit into its memory.
        for budget in sorted(self.budgets, reverse=True):
            for add, update in variants:
                self.packed.capture(budget, add=add, update=update)
        torch.cuda.synchronize()
        self.capture_seconds = time.perf_counter() - start

    @property
    def padding_share(self) -> float:
        """Share of the computed tokens that were idle."""
        return 1 - self.real_tokens / max(self.computed_tokens, 1)

    def close(self) -> None:
        """See `TrainStep`: the captured graphs, their memory, and the hold that they have on the exchange between
        processes (NCCL's communicator, whose end waits for theirs)."""
        self.packed.forget()

    def take(self, rates: list[float]) -> StepResult:
        """See `TrainStep`."""
        told = self.advance(self.run.step, rates)
        # One exchange a block: every process's part of the losses, and whether one was told to end.
        totals = torch.cat([told[0], told.new_tensor([float(self.notice())])])
        *losses, end = self.strategy.reduce_sum(totals).tolist()
        norms = told[1].tolist()
        return StepResult(losses, [norm if self.clips else None for norm in norms], end > 0)

    def advance(self, first: int, rates: list[float]) -> Tensor:
        """Take one step from `first` on for every learning rate in `rates`; return [2, steps] on the device.

        The first row holds this process's part of each step's mean loss (the sum over processes is the loss), the
        second the norm of the whole gradient before clipping.
        """
        if self.packed.together is not None:
            self.packed.together.behind = True
        plan = self._plan
        if plan is None or plan.first != first or len(plan.steps) < len(rates):
            plan = self._planned(first, len(rates))
        at = 0
        for rate, micros in zip(rates, plan.steps, strict=False):
            plan.real[at : at + len(micros), 0] = rate
            at += len(micros)
        real = plan.real[:at].to(self.packed.real.device, non_blocking=True)
        told = torch.zeros(2, len(rates), device=real.device)
        at = 0
        for number in range(len(rates)):
            torch.manual_seed(step_seed(self.seed, first + number, self.rank))
            micros = plan.steps[number]
            for index, micro in enumerate(micros):
                self.packed.whole.copy_(plan.whole[at])
                self.packed.real.copy_(real[at])
                budget = self._budget(micro.most)
                self.packed.take(budget, add=index > 0, update=index == len(micros) - 1)
                self.real_tokens += micro.tokens
                self.computed_tokens += budget
                at += 1
            told[0, number].copy_(self.packed.loss)
            told[1, number].copy_(self.model.arena.norm)
        self.model.arena.count(first + len(rates))
        # While the device works: what the next block needs.
        after = first + len(rates)
        self._plan = self._planned(after, min(len(rates), self.run.total_steps - after)) if self.captured else None
        return told

    def collect(self) -> None:
        """Bring weights and optimizer state together where processes update shares of them (collective)."""
        if self.packed.together is not None:
            self.packed.together.collect()

    def _planned(self, first: int, count: int) -> "PackingPlan":
        """Lay out the micro-batches of some steps, and copy their rows to the device."""
        steps = [self._micros(first + number) for number in range(count)]
        count = sum(map(len, steps))
        whole = np.full((count, len(self.packed.whole)), -1, dtype=np.int64)
        real = np.zeros((count, 5), dtype=np.float32)
        at = 0
        for number, micros in enumerate(steps):
            size = len(self.order.rows(first + number))
            corrections = self.model.arena.corrections(first + number + 1)
            for micro in micros:
                whole[at, 0] = step_seed(self.seed, first + number, self.rank) & 0x7FFFFFFF
                whole[at, 1 : 1 + len(micro.rows)] = micro.rows
                real[at, 1:3], real[at, 4] = corrections, 1 / size
                at += 1
        rows, numbers = torch.from_numpy(whole), torch.from_numpy(real)
        if self.captured:
            rows, numbers = rows.pin_memory(), numbers.pin_memory()
        rows = rows.to(self.packed.whole.device, non_blocking=True)
        return PackingPlan(first, steps, rows, numbers)

    def _micros(self, step: int) -> list[Micro]:
        rows = self.order.rows(step)
        cut = self.order.micro_batches(step, self.rank, self.world_size, self.micro_size)
        share = -(-len(rows) // self.world_size)
        size = min(self.micro_size, share)
        # [share, processes] as `micro_batches` deals rows out, then [micro-batches, processes].
        lengths = np.zeros((share, self.world_size), dtype=np.int64)
        lengths.reshape(-1)[: len(rows)] = self.order.lengths[rows]
        tokens = np.add.reduceat(lengths, np.arange(0, share, size), axis=0)
        return [
            Micro(micro.rows[: micro.real], int(own), int(most))
            for micro, own, most in zip(cut, tokens[:, self.rank], tokens.max(1), strict=True)
        ]

    def _budget(self, tokens: int) -> int:
        """Return the budget of a micro-batch; one that is longer than all chosen ones gets a multiple of its own, which
        depends on nothing but its length."""
        return next((budget for budget in self.budgets if tokens <= budget), -(-tokens // COARSE) * COARSE)
