"""What happens where memory runs out: a training step is taken again in smaller pieces, on every process together, or
the run ends in one line that says what to change.

A process that fails in the middle of a backward pass whose gradients are exchanged on the way leaves its peers waiting.
So with `batch.auto` gradients are computed without the peers (`Strategy.alone`), then all processes tell each other
whether it worked, and only then are gradients exchanged (`Strategy.exchange`).
"""

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..config import UserError
from .callbacks.base import Run

if TYPE_CHECKING:
    from .strategy.base import Strategy

log = logging.getLogger(__name__)

SIGNS = (
    "defaultcpuallocator: can't allocate memory",
    "defaultcpuallocator: not enough memory",
    "mps backend out of memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "cuda error: out of memory",
    "std::bad_alloc",
)
"""How torch says it in errors that have no class of their own."""


def ran_out(error: BaseException) -> bool:
    """Return whether an error says that memory, of a device or of this machine, ran out."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS)


def release(device: torch.device) -> None:
    """Give back what a failed attempt left: graphs in reference cycles, and blocks that torch's allocator keeps."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Name what was done when memory ran out where nothing can be tried again.

    Raises:
        UserError: memory ran out.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) or not ran_out(error):
            raise
        reason = (str(error).strip() or type(error).__name__).partition("\n")[0]
        raise UserError(f"out of memory while {what}: {reason}; a smaller model or more memory may help") from error


def micro_batch(global_size: int, micro_size: int | None, processes: int) -> int:
    """Return the rows that each process computes at once: its share of the global batch, or `batch.micro_size`."""
    share = -(-global_size // processes)
    return min(micro_size or share, share)


def half(rows: int) -> int:
    """Return the next smaller micro-batch; 1 stays 1."""
    return -(-rows // 2)


@dataclass
class EvalBatchSize:
    """Rows that this process computes at once in evaluations; halved for good where memory runs out."""

    rows: int

    def shrink(self, tried: int, width: int, device: torch.device) -> None:
        """Go on with half of the rows that were too many.

        Raises:
            UserError: it was one row.
        """
        if tried == 1:
            raise UserError(
                f"out of memory: one row of {width} tokens does not fit into the memory of {device}, even for an "
                "evaluation; shorter rows (data.max_length), a smaller model or more memory may help"
            )
        self.rows = half(tried)
        log.warning("out of memory in an evaluation: %d rows at once instead of %d (eval.batch_size)", self.rows, tried)


class OomRetry:
    """Attempts at training steps.

    Args:
        run: `run.micro_batch` is what is halved.
        lengths: int64 [rows], tokens of every row of the train split, for messages.
    """

    def __init__(self, run: Run, strategy: "Strategy", lengths: np.ndarray) -> None:
        self.run, self.strategy, self.lengths = run, strategy, lengths
        self.auto = run.config.batch.auto
        if self.auto and run.world.size > 1 and strategy.no_sync() is None:
            self.auto = False
            log.warning(
                "batch.auto=true has no effect: with this strategy a forward pass needs all processes, so one that "
                "runs out of memory cannot try again; batch.micro_size= sets the micro-batch"
            )

    def attempt(self, compute: Callable[[], torch.Tensor], rows: np.ndarray) -> torch.Tensor | None:
        """Return the loss that `compute` returns, None where memory ran out and `batch.auto` may try again.

        Args:
            rows: of the global batch.

        Raises:
            UserError: memory ran out, and nothing is to be tried.
        """
        device = self.run.world.device
        try:
            with self._alone():
                return compute()
        except Exception as error:
            if not ran_out(error):
                raise
            if not self.auto:
                raise self._error(rows, "") from error
            log.info("out of memory in step %d: %s", self.run.step + 1, str(error).partition("\n")[0])
        # Here, and not above: the traceback holds the frames, and so the tensors, of the failed attempt.
        release(device)
        return None

    def finish(self) -> None:
        """Make the gradients those of all processes, once every process has computed its share."""
        if self.auto:
            self.strategy.all_reduce_grads()

    def shrink(self, rows: np.ndarray, failed: int) -> None:
        """Halve the micro-batch; all processes call this together.

        Args:
            rows: of the global batch that did not fit.
            failed: number of processes that ran out of memory.

        Raises:
            UserError: it was one row.
        """
        run, share = self.run, -(-len(rows) // self.run.world.size)
        tried = min(run.micro_batch, share)
        if tried == 1:
            raise self._error(rows, ", and batch.auto=true has nothing left to halve")
        run.micro_batch, run.out_of_memory = half(tried), run.out_of_memory + 1
        if run.world.main:
            log.warning(
                "out of memory in step %d on %d of %d processes: micro-batch %d instead of %d, accumulation %d; the "
                "global batch stays %d",
                run.step + 1,
                failed,
                run.world.size,
                run.micro_batch,
                tried,
                -(-share // run.micro_batch),
                run.config.batch.global_size,
            )

    def _alone(self) -> AbstractContextManager[None]:
        alone = self.strategy.no_sync() if self.auto else None
        return alone if alone is not None else nullcontext()

    def _error(self, rows: np.ndarray, more: str) -> UserError:
        run, share = self.run, -(-len(rows) // self.run.world.size)
        tried, width = min(run.micro_batch, share), int(self.lengths[rows].max())
        what = f"a micro-batch of {tried} row{'s' if tried > 1 else ''} of up to {width} tokens"
        start = f"out of memory in step {run.step + 1} of {run.total_steps}: {what} does not fit into the memory of "
        start += f"{run.world.describe()}{more}; "
        if tried == 1:
            return UserError(f"{start}shorter rows (data.max_length), a smaller model or more memory may help")
        return UserError(
            f"{start}batch.auto=true finds one that does, batch.micro_size={half(tried)} sets it (the global batch "
            f"stays {run.config.batch.global_size})"
        )
