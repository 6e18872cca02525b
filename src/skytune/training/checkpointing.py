"""Checkpoints of a run: when they are saved, what is in them, and how a run goes on from one."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import RunConfig, UserError
from .callbacks import Callback, Callbacks, Run
from .checkpoint.foreign import refuse_foreign
from .checkpoint.lease import Lease, acquire
from .checkpoint.manifest import step_name
from .checkpoint.opening import locate
from .checkpoint.reading import load_document, open_tensors
from .checkpoint.shard_writer import Board, ShardWriter
from .checkpoint.store import Found, Store
from .checkpoint.writer import Event, Failed, Writer
from .ema import Ema
from .recording import BestWeights, History

if TYPE_CHECKING:
    import torch

    from .devices import World
    from .strategy import Strategy

log = logging.getLogger(__name__)

FINISHED = "finished.json"
"""Object beside a run's checkpoints that says that the run came to its end."""


Chosen = tuple[str, str, int]
"""URL of a store, run key, step."""


def elsewhere(place: str) -> tuple[Store, int | None]:
    """Return the store and the step (None for the newest) that a path or URL names: a checkpoint, a run or a store.

    Raises:
        UserError: a store that holds several runs, or none.
    """
    found = locate(place)
    return Store.open(found.store, found.run_key), found.step


class Checkpoints(Callback):
    """Saves while training runs, and puts a run back where it stood.

    Rank 0 writes. A save that fails does not end training: it is told at once, and again at the end.
    """

    def __init__(
        self,
        config: RunConfig,
        run_key: str,
        default_store: Path,
        decisive: dict[str, Any],
        world: "World",
        strategy: "Strategy",
        optimizer: "torch.optim.Optimizer",
        best: BestWeights,
        history: History,
        others: Callbacks | None = None,
        ema: Ema | None = None,
    ) -> None:
        self.config, self.world, self.strategy, self.optimizer = config, world, strategy, optimizer
        self.best, self.history, self.decisive = best, history, decisive
        self.others, self.ema = others or Callbacks([]), ema
        self.own_store = config.checkpoint.store is None
        self.cache = default_store / ".fetched"
        self.store = Store.open(config.checkpoint.store or str(default_store), run_key)
        self.writer: Writer | None = None
        self.lease: Lease | None = None
        self.failure = ""
        self.saved_at = time.monotonic()
        self.saved_step = -1
        self.stall_seconds = 0.0

    def open(self, launch: str) -> None:
        """Take the run's lease and see that the store can be written (rank 0).

        Raises:
            UserError: somebody else trains this run, or the store refuses.
        """
        if not self.world.main:
            if self.strategy.sharded:
                self.writer = self._shard_writer()
            return
        self.store.check_writable()
        self.lease = acquire(self.store, launch, wait_seconds=float("inf"), say=lambda line: log.warning("%s", line))
        for name in self.store.sweep():
            log.info("checkpoint: removed %s, which a save that was cut short had left", name)
        if self.strategy.sharded:
            self.writer = self._shard_writer()
            return
        settings = self.config.checkpoint
        self.writer = Writer(
            self.store, keep=settings.keep, decisive=self.decisive, world_size=self.world.size, lease=self.lease
        )

    def _shard_writer(self) -> ShardWriter:
        board = Board(self.world.rank, self.world.size)
        keep, decisive = self.config.checkpoint.keep, self.decisive
        own = self.strategy.own_files
        return ShardWriter(self.store, board, keep=keep, decisive=decisive, lease=self.lease, own=own)

    def resume(self, run: Run) -> None:
        """Put the run back where its checkpoint says, and say in one line what was found.

        Raises:
            UserError: `resume=must` and there is none; none that is there is whole; it does not fit.
        """
        chosen = self._agree(self._choose() if self.world.main else None)
        if chosen is None:
            return
        url, key, step = chosen
        found = Store.open(url, key).get(step, into=self.cache)
        self.strategy.load(open_tensors(found, "model"))
        self.strategy.load_optimizer(open_tensors(found, "optimizer"), load_document(found, "optimizer"))
        if self.ema is not None:
            self.ema.restore(open_tensors(found, "ema"))
        state = found.manifest.state
        run.step, run.rows, run.tokens = state["step"], state["rows"], state["tokens"]
        run.skipped, run.flops = state.get("skipped", 0), state.get("flops", 0.0)
        run.data_seconds = state.get("data_seconds", 0.0)
        self.strategy.load_scaling(state.get("scaling"))
        run.train_seconds, run.epoch, run.metrics = state["train_seconds"], state["epoch"], state["metrics"]
        run.resumed_from = run.step
        self.best.best, self.best.saved_step = state["best"], state["best"] and state["best"]["step"]
        self.history.restore(run, load_document(found, "history"))
        self.others.load_state(state.get("callbacks", {}))
        run.stop, run.out_of_memory = state.get("stop", False), state.get("out_of_memory", 0)
        if self.config.batch.auto and run.out_of_memory:
            run.micro_batch = min(run.micro_batch, state["micro_batch"])
        self.saved_step = run.step

    def on_run_start(self, run: Run) -> None:
        """Ask all callbacks for their state: one that cannot be saved should not fail hours later."""
        self.others.state()

    def on_step_end(self, run: Run) -> None:
        """Save when it is time; not before a validation of the same step, which is followed by a save."""
        self._tell(run, self.writer.poll() if self.writer is not None else [])
        if run.ahead:
            return
        settings = self.config.checkpoint
        minutes = (time.monotonic() - self.saved_at) / 60
        due = (settings.every_steps and run.step % settings.every_steps == 0) or (
            settings.every_minutes and self._together(minutes >= settings.every_minutes)
        )
        if run.preempted:
            self.save(run, wait=True)
        elif due and not (run.validating or run.stop):
            self.save(run)

    def on_validation_end(self, run: Run) -> None:
        """Save what was just validated."""
        self.save(run)

    def on_run_end(self, run: Run) -> None:
        """Wait for the last save."""
        if self.writer is not None:
            self._tell(run, self.writer.close())

    def on_exception(self, run: Run) -> None:
        """Let a running save come to its end."""
        if self.writer is not None:
            self.writer.close(timeout=60)

    def save(self, run: Run, wait: bool = False) -> None:
        """Save the state after `run.step` (once a step)."""
        if self.saved_step == run.step or not (self.world.main or self.strategy.together):
            return
        weights, (tensors, values) = self.strategy.state(), self.strategy.optimizer_state()
        best = self.best.best
        if best is not None and best["step"] == run.step:
            self.best.saved_step = run.step
        self.saved_step, self.saved_at = run.step, time.monotonic()
        if self.writer is None:
            return
        self.stall_seconds += self.writer.submit(
            run.step,
            {"model": weights, "optimizer": tensors, **({"ema": self.ema.tensors()} if self.ema else {})},
            {
                "step": run.step, "rows": run.rows, "tokens": run.tokens, "epoch": run.epoch, "metrics": run.metrics,
                "train_seconds": run.train_seconds, "best": best, "callbacks": self.others.state(), "stop": run.stop,
                "micro_batch": run.micro_batch, "out_of_memory": run.out_of_memory, "skipped": run.skipped,
                "flops": run.flops, "data_seconds": run.data_seconds, "scaling": self.strategy.scaling(),
            },
            documents={"optimizer": values, "history": self.history.records},
            best=best["step"] if best else None,
            wait=wait or not self.config.checkpoint.asynchronous,
        )  # fmt: skip

    def weights(self, step: int) -> Mapping[str, "torch.Tensor"]:
        """Return the weights that one checkpoint hands on, on any process (collective): the averaged ones where there
        are any."""
        if self.world.size > 1:
            import torch

            # Rank 0 has waited for the last save before it comes here, and so for this one.
            self.strategy.reduce_sum(torch.zeros((), device=self.world.device))
        found = self.store.get(step, into=self.cache)
        model = open_tensors(found, "model")
        return model if self.ema is None else model.under(open_tensors(found, "ema"))

    def _together(self, wish: bool) -> bool:
        """Return rank 0's wish on every process that saves; their clocks differ."""
        if self.world.size == 1 or not self.strategy.together:
            return wish
        import torch

        own = torch.tensor(float(wish and self.world.main), device=self.world.device)
        return bool(self.strategy.reduce_sum(own).item())

    def finish(self) -> None:
        """Mark the run as finished; the run folder's own checkpoints have done their work and go."""
        if self.writer is None or not self.world.main:
            return
        self.store.attempt(
            lambda: self.store.backend.write(f"{self.store.run_key}/{FINISHED}", b"{}"), f"writing {FINISHED}"
        )
        if self.own_store:
            self.store.clear()

    def close(self) -> None:
        """Give the lease back."""
        if self.lease is not None:
            self.lease.release()

    def _choose(self) -> Chosen | None:
        """Return where to go on from (rank 0), None to start; announce it."""
        wanted, store = self.config.resume, self.store
        if wanted == "never" or (wanted == "auto" and self._is_finished()):
            self._start_anew()
            return None
        found: Found | None
        if wanted.isdecimal():
            found = store.get(int(wanted), into=self.cache)
        elif wanted in ("auto", "must"):
            found = store.newest(into=self.cache)
        else:
            store, step = elsewhere(wanted)
            found = store.newest(into=self.cache) if step is None else store.get(step, into=self.cache)
            if found is None:
                raise UserError(f"resume={wanted}: holds no checkpoint")
            refuse_foreign(found.manifest, self.decisive, wanted)
        if found is None:
            if wanted == "must":
                raise UserError(f"resume=must: {self.store.location} holds no checkpoint (resume=auto starts the run)")
            return None
        for line in found.skipped:
            log.warning("checkpoint passed over: %s", line)
        step = found.manifest.step
        log.info("resuming from step %d (%s/%s)", step, store.location, step_name(step))
        return store.backend.url, store.run_key, step

    def _is_finished(self) -> bool:
        path = f"{self.store.run_key}/{FINISHED}"
        names = self.store.attempt(lambda: self.store.backend.names(self.store.run_key), "looking for a finished run")
        return path.rpartition("/")[2] in names

    def _start_anew(self) -> None:
        self.store.attempt(
            lambda: self.store.backend.delete(f"{self.store.run_key}/{FINISHED}"), f"deleting {FINISHED}"
        )
        self.store.clear()

    def _agree(self, chosen: Chosen | None) -> Chosen | None:
        """Return rank 0's choice on every process."""
        if self.world.size == 1:
            return chosen
        from accelerate.utils import broadcast_object_list

        choice = [chosen]
        broadcast_object_list(choice)
        return choice[0]

    def _tell(self, run: Run, events: list[Event]) -> None:
        """Say what became of saves; a failure is kept until a later save succeeds."""
        for event in events:
            if isinstance(event, Failed):
                self.failure = f"step {event.step}: {event.message}"
                log.warning("CHECKPOINT NOT SAVED, %s; training goes on", self.failure)
            else:
                self.failure = ""
                if not self.world.main:
                    continue
                log.info(
                    "checkpoint: step %d saved (%.0f MB in %.1f s, training held up %.2f s)",
                    event.step, event.bytes / 1e6, event.seconds, event.stall_seconds,
                )  # fmt: skip
                if event.warning:
                    log.warning("%s", event.warning)
                run.saved_step, run.saved_url = event.step, event.location
                self.others("on_checkpoint_saved", run)
