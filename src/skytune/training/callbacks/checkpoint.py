"""Checkpoints of a run: what they hold, when they are saved, what becomes of saves, how a run goes on from one, and
which one has the weights that it hands on.

model, optimizer, ema        tensors; random numbers are functions of (seed, step, rank) and need no file
optimizer, history           documents
state                        small JSON in the manifest: position, totals, best metrics, callbacks
"""

import logging
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...checkpoint.async_writer import Event, SaveFailed, Tensors, Writer
from ...checkpoint.broadcast import check_store_shared, fetch, fetch_everywhere
from ...checkpoint.lease import Lease, acquire
from ...checkpoint.resume import Chosen, choose, mark_finished
from ...checkpoint.retry import Retry
from ...checkpoint.sharded_writer import Board, ShardWriter
from ...checkpoint.shards import Stored, load_document, open_tensors
from ...checkpoint.store import Found, Store
from ...config import NotReachable, OnSaveError, RunConfig, UserError
from ...distributed.collectives import main_does
from .base import Callback, Callbacks, Run
from .ema import Ema
from .history import BestWeights, History

if TYPE_CHECKING:
    from ...distributed.context import DistContext
    from ..strategy import Strategy

log = logging.getLogger(__name__)

ASK_EVERY_STEPS = 10
"""Steps between two looks at rank 0's clock where each takes an exchange between all processes."""


TOTALS = (
    "step",
    "rows",
    "tokens",
    "epoch",
    "metrics",
    "train_seconds",
    "data_seconds",
    "flops",
    "skipped",
    "stop",
    "out_of_memory",
    "validation_owed",
)
"""Fields of `Run` that go on from where they stood."""


@dataclass
class TrainState:
    """The parts of a run that have a state."""

    strategy: "Strategy"
    best: BestWeights
    history: History
    callbacks: Callbacks
    ema: Ema | None

    def take(self) -> tuple[Tensors, dict[str, Any]]:
        """Return the tensors where they are and JSON values, by file (collective where the strategy's state is).

        The optimizer has tensors of its own only after a step.
        """
        weights, (tensors, values) = self.strategy.state(), self.strategy.optimizer_state()
        files = {"model": weights, "optimizer": tensors}
        if self.ema is not None:
            files["ema"] = self.ema.tensors()
        return files, {"optimizer": values, "history": self.history.records}

    def state(self, run: Run) -> dict[str, Any]:
        """Return what goes into the manifest."""
        return {
            **{name: getattr(run, name) for name in TOTALS},
            "micro_batch": run.micro_batch,
            "ranking": self.best.ranking,
            "callbacks": self.callbacks.state(),
            "spent": run.spent(),
            "scaling": self.strategy.scaling(),
        }

    def restore_weights(self, found: Found) -> None:
        """Put weights, optimizer and loss scaling back."""
        self.strategy.load(open_tensors(found, "model"))
        self.strategy.load_optimizer(open_tensors(found, "optimizer"), load_document(found, "optimizer"))
        if self.ema is not None:
            self.ema.restore(open_tensors(found, "ema"))
        self.strategy.load_scaling(found.manifest.state.get("scaling"))

    def restore(self, run: Run, found: Found) -> None:
        """Put everything back.

        Raises:
            UserError: the checkpoint does not fit.
        """
        self.restore_weights(found)
        state = found.manifest.state
        for name in TOTALS:  # a version before this one may not have known all of them
            setattr(run, name, state.get(name, getattr(run, name)))
        run.resumed_from, run.earlier = run.step, state.get("spent", {})
        self.best.ranking = [(value, step) for value, step in state.get("ranking", [])]
        self.history.restore(run, load_document(found, "history"))
        self.callbacks.load_state(state.get("callbacks", {}))
        if run.config.batch.auto and run.out_of_memory:
            run.micro_batch = min(run.micro_batch, state["micro_batch"])


class CheckpointCallback(Callback):
    """Saves while training runs, and puts a run back where it stood.

    Rank 0 writes, or every process its part where the strategy shards the state. A save that fails does not end
    training, unless `checkpoint.on_save_error` says so: it is told at once, and again at the end. A run that another
    launch has taken over ends.
    """

    def __init__(
        self,
        config: RunConfig,
        run_key: str,
        default_store: Path,
        decisive: dict[str, Any],
        world: "DistContext",
        snapshot: TrainState,
    ) -> None:
        self.config, self.world, self.snapshot, self.decisive = config, world, snapshot, decisive
        self.strategy = snapshot.strategy
        self.own_store = config.checkpoint.store is None
        self.cache = default_store / ".fetched"
        retry = Retry(deadline_seconds=config.launch.timeouts.store)
        self.store = Store.open(config.checkpoint.store or str(default_store), run_key, retry=retry)
        self.writer: Writer | None = None
        self.lease: Lease | None = None
        self.failure = ""
        self.fetched: Found | None = None
        self.saved_at = time.monotonic()
        self.saved_step = -1
        self.prepared = False
        self.stall_seconds = 0.0

    def open(self, launch: str) -> None:
        """Take the run's lease, once nobody else trains this run any more, and see that the store can be written.

        Raises:
            UserError: the store refuses.
        """
        main_does(self.world, lambda: self._open(launch))
        settings = self.config.checkpoint
        options: dict[str, Any] = {
            "keep": settings.keep,
            "max_wait_seconds": settings.stall_seconds,
            "decisive": self.decisive,
            "lease": self.lease,
        }
        if self.strategy.sharded:
            check_store_shared(self.world, self.store, self.strategy.name)
            board = Board(self.world.rank, self.world.size)
            self.writer = ShardWriter(self.store, board, own=self.strategy.private_state_files, **options)
        elif self.world.main:
            self.writer = Writer(self.store, world_size=self.world.size, **options)

    def _open(self, launch: str) -> None:
        self.store.check_writable()
        self.lease = acquire(
            self.store,
            launch,
            heartbeat_seconds=self.store.backend.heartbeat_seconds * self.config.launch.timeouts.heartbeat / 30.0,
            wait_seconds=float("inf"),
            say=lambda line: log.warning("%s", line),
        )
        if not self.lease.atomic:
            log.warning("%s: the store cannot lock: never start this run twice at one moment", self.store.location)
        self.store.guard = self.lease.check

    def resume(self, run: Run) -> None:
        """Put the run back where its checkpoint says, and say in one line what was found.

        Raises:
            UserError: `resume=required` and there is none; none that is there is whole; it does not fit.
        """
        try:
            chosen = main_does(self.world, self._choose)
        except BaseException:
            self.close()
            raise
        if chosen is None:
            return
        url, key, step = chosen
        store = Store.open(url, key, retry=self.store.retry)
        found = fetch_everywhere(self.world, store, step, self.cache)
        self.snapshot.restore(run, found)
        self.saved_step = run.step

    def rewind(self, run: Run) -> int:
        """Put weights and optimizer back to the newest checkpoint (collective); return its step.

        Raises:
            UserError: there is none yet.
        """

        def newest() -> int | None:
            if self.writer is not None:
                self.writer.wait()
            found = self.store.newest(into=self.cache)
            return None if found is None else found.manifest.step

        step = main_does(self.world, newest)
        if step is None:
            raise UserError(
                f"on_nan=rewind: at step {run.step + 1} there is no checkpoint yet to go back to; "
                f"checkpoint.every_steps={max(1, run.step // 2)} saves earlier, on_nan=skip needs none"
            )
        self.snapshot.restore_weights(fetch_everywhere(self.world, self.store, step, self.cache))
        return int(step)

    def _choose(self) -> Chosen | None:
        chosen = choose(self.store, self.config.resume, self.decisive, self.cache)
        for name in self.store.sweep():  # only now: a run that cannot go on leaves everything as it found it
            log.info("checkpoint: removed %s, which a save that was cut short had left", name)
        return chosen

    def on_run_start(self, run: Run) -> None:
        """Find out now what should not fail, or hold training up, hours later: callbacks whose state cannot be saved,
        files that are too large for the store, memory that a GPU copies into."""
        self.snapshot.callbacks.state()
        self._prepare()

    def _prepare(self) -> None:
        if self.writer is None and not self.strategy.state_is_collective:
            return
        tensors, _ = self.snapshot.take()
        if self.writer is not None:
            self.writer.prepare(tensors)

    def on_step_end(self, run: Run) -> None:
        """Save when it is time; not before a validation of the same step, which is followed by a save."""
        self._log_events(run, self.writer.poll() if self.writer is not None else [])
        if self.lease is not None and self.lease.lost is not None:
            self.lease.check()
        settings = self.config.checkpoint
        minutes, busy = (time.monotonic() - self.saved_at) / 60, self.writer is not None and self.writer.busy
        if run.unsynced_steps:
            return
        due = (settings.every_steps and run.step % settings.every_steps == 0) or (
            settings.every_minutes
            and self._asks(run)
            and self._decided_by_main(run, minutes >= settings.every_minutes and not busy)
        )
        if not self.prepared:
            self.prepared = True  # the optimizer has its state only after a step
            self._prepare()
        if run.preempted or (due and not (run.validating or run.stop)):
            self.save(run)

    def on_validation_end(self, run: Run) -> None:
        """Save what was just validated."""
        self.save(run)

    def on_run_end(self, run: Run) -> None:
        """Wait for the last save."""
        main_does(self.world, lambda: self.writer.wait() if self.writer is not None else None)
        if self.writer is not None:
            self._log_events(run, self.writer.close(), ended=True)

    def on_exception(self, run: Run) -> None:
        """Let a running save come to its end."""
        if self.writer is not None:
            self.writer.close(timeout=60)

    def save(self, run: Run) -> None:
        """Save the state after `run.step` (once a step); `on_run_end` waits for the last one."""
        if self.saved_step == run.step:
            return
        run.gather_full_state()
        if self.writer is None and not self.strategy.state_is_collective:
            return
        self.saved_step, self.saved_at = run.step, time.monotonic()
        must, wait = run.preempted or run.stop or run.step == run.total_steps, not self.config.checkpoint.async_save
        if self.strategy.sharded and not (must or wait) and not self._all_ready(run):
            return
        tensors, documents = self.snapshot.take()
        if self.writer is not None:
            self.stall_seconds += self.writer.submit(
                run.step,
                tensors,
                self.snapshot.state(run),
                documents=documents,
                best=self.snapshot.best.steps,
                wait=wait,
                must=must,
            )

    def _all_ready(self, run: Run) -> bool:
        """Return whether no process is busy with an earlier save (collective); else all of them skip this one."""
        assert self.writer is not None
        started = time.perf_counter()
        if self.strategy.total(not self.writer.ready()) == 0:
            return True
        self.stall_seconds += self.writer.skip(run.step, started)
        return False

    def _asks(self, run: Run) -> bool:
        """Return whether the clock is looked at: where all processes must agree, not in every step."""
        # Where they collect the state first, this is the end of a block of steps, but for callbacks that see every one.
        every_step = self.strategy.state_is_collective or (run.collect is not None and run.config.callbacks)
        return run.step % ASK_EVERY_STEPS == 0 or self.world.size == 1 or not every_step

    def _decided_by_main(self, run: Run, wish: bool) -> bool:
        """Return rank 0's wish on every process that saves or helps to; their clocks differ."""
        if self.world.size == 1 or not (self.strategy.state_is_collective or run.collect is not None):
            return wish
        return self.strategy.total(wish and self.world.main) > 0

    def finish(self) -> None:
        """Mark the run as finished; the run folder's own checkpoints have done their work and go.

        Where something could not be saved, neither: the same command goes on from what was.
        """
        if not self.world.main or self.failure:
            return
        try:
            self.store.guard(True)
            mark_finished(self.store)
            if self.own_store:
                self.store.clear()
        except UserError as error:  # the results are there
            log.warning("the checkpoints are left as if this run were not finished: %s", error)

    def best_step(self, present: int) -> int | None:
        """Return the step whose weights are to be handed on where that is not the `present` one; the same on every
        process (collective). Where the best ones cannot be had, that is told, and the next best are taken."""
        if not self.snapshot.best.keep:
            return None
        step = main_does(self.world, lambda: self._obtainable(present))
        return step if step != present else None

    def _obtainable(self, present: int) -> int:
        """Return the best step whose weights can be had (rank 0)."""
        best = self.snapshot.best
        while best.best is not None and (step := best.best["step"]) != present:
            try:
                self.fetched = fetch(self.store, step, self.cache)
                return int(step)
            except UserError as error:
                self.failure = f"the best weights, of step {step}, cannot be handed on: {error}"
                log.warning("BEST WEIGHTS LOST: %s", self.failure)
                # A store that is away is not asked for the next best, too.
                others = best.steps[1:] if isinstance(error, NotReachable) else [step]
                for other in {step, *others} - {present}:
                    best.forget(other)
        return present

    def best_weights(self, step: int) -> Stored:
        """Return the weights that one checkpoint hands on: the averaged ones where there are any (collective)."""
        found = fetch_everywhere(self.world, self.store, step, self.cache, self.fetched)
        model = open_tensors(found, "model")
        return model if self.snapshot.ema is None else model.under(open_tensors(found, "ema"))

    def close(self) -> None:
        """Give the lease back."""
        if int(os.environ.get("LOCAL_RANK", "0")) == 0:  # one process a machine
            shutil.rmtree(self.cache, ignore_errors=True)
        if self.lease is not None:
            self.lease.release()

    def _log_events(self, run: Run, events: list[Event], ended: bool = False) -> None:
        """Say what became of saves; a failure is kept until a later save succeeds.

        Raises:
            UserError: a save failed, there are steps left, and this run may not or shall not go on without.
        """
        for event in events:
            if isinstance(event, SaveFailed) and event.skipped:
                log.warning("checkpoint: step %d %s", event.step, event.message)
            elif isinstance(event, SaveFailed):
                self.failure = f"step {event.step}: {event.message}"
                if event.lost and not ended:
                    raise UserError(event.message)
                if self.config.checkpoint.on_save_error is OnSaveError.stop and not ended:
                    raise UserError(f"checkpoint.on_save_error=stop: {self.failure}")
                log.warning("CHECKPOINT NOT SAVED, %s%s", self.failure, "" if ended else "; training goes on")
            else:
                self.failure = ""
                if not self.world.main:
                    continue
                log.info(
                    "checkpoint: step %d saved (%.0f MB in %.1f s, training held up %.2f s)",
                    event.step,
                    event.bytes / 1e6,
                    event.seconds,
                    event.stall_seconds,
                )
                if event.warning:
                    log.warning("%s", event.warning)
                run.saved_step, run.saved_url = event.step, event.location
                self.snapshot.callbacks("on_checkpoint_saved", run)
