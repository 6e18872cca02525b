"""What a run writes down about itself: the history file, and which step had the best weights."""

import json
from typing import Any

from ..config import RunConfig, Select, UserError
from .callbacks import Callback, Run
from .flops import peak, utilization


class History(Callback):
    """Writes `history.jsonl` on rank 0: every `log.every_steps` steps, the last step, and every validation."""

    def __init__(self) -> None:
        self._mark = (0, 0, 0.0, 0.0, 0.0)
        self._file: Any = None
        self.records: list[dict[str, Any]] = []
        """All records so far; a checkpoint holds them, so that another machine has them too."""

    def restore(self, run: Run, records: list[dict[str, Any]]) -> None:
        """Go on from a checkpoint's records."""
        self.records = records
        self._mark = _totals(run)

    def on_run_start(self, run: Run) -> None:
        """Open the file, with what was recorded before."""
        if run.world.main:
            run.job.history.parent.mkdir(parents=True, exist_ok=True)
            self._file = run.job.history.open("w", encoding="utf-8")
            self._file.writelines(json.dumps(record) + "\n" for record in self.records)

    def on_step_end(self, run: Run) -> None:
        """Write a step's record; rates are means since the record before."""
        if self._file is None or not (run.step % run.config.log.every_steps == 0 or run.step == run.total_steps):
            return
        rows, tokens, seconds, flops, waited = self._mark
        span = max(run.train_seconds - seconds, 1e-9)
        world = run.world
        mfu = utilization(run.flops - flops, span, world.size, peak(world.describe(), world.precision))
        self._write(
            kind="step",
            step=run.step,
            epoch=round(run.step / run.steps_per_epoch, 4),
            loss=run.loss,
            lr=run.lr,
            grad_norm=run.grad_norm,
            rows=run.rows,
            tokens=run.tokens,
            samples_per_s=round((run.rows - rows) / span, 2),
            tokens_per_s=round((run.tokens - tokens) / span, 1),
            mfu=None if mfu is None else round(mfu, 4),
            data_wait_share=round((run.data_seconds - waited) / span, 4),
            peak_memory_bytes=world.peak_memory_bytes(),
            elapsed_s=round(run.train_seconds, 3),
        )
        self._mark = _totals(run)

    def on_validation_end(self, run: Run) -> None:
        """Write a validation's record."""
        if self._file is not None:
            self._write(
                kind="validation",
                step=run.step,
                epoch=round(run.step / run.steps_per_epoch, 4),
                split="validation",
                metrics=run.metrics,
                elapsed_s=round(run.train_seconds, 3),
            )

    def on_run_end(self, run: Run) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    on_exception = on_run_end

    def _write(self, **record: Any) -> None:
        self.records.append(record)
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()


def _totals(run: Run) -> tuple[int, int, float, float, float]:
    return run.rows, run.tokens, run.train_seconds, run.flops, run.data_seconds


class BestWeights(Callback):
    """Remembers the step of the best validation; the checkpoint of that step has its weights.

    The metric is the same on all processes, so they agree without asking each other.
    """

    def __init__(self, config: RunConfig) -> None:
        self.metric = config.checkpoint.metric
        mode = config.checkpoint.mode
        self.smaller = mode == "min" or (mode == "auto" and self.metric == "loss")
        self.keep = config.checkpoint.select is Select.best
        self.best: dict[str, Any] | None = None
        self.saved_step: int | None = None

    def on_validation_end(self, run: Run) -> None:
        """Compare."""
        if self.metric not in run.metrics:
            raise UserError(f"checkpoint.metric={self.metric}: the validation gave only {', '.join(run.metrics)}")
        value = run.metrics[self.metric]
        if value == value and (self.best is None or self._better(value, self.best["value"])):
            self.best = {"step": run.step, "metric": self.metric, "value": value}

    def wanted(self, run: Run) -> int | None:
        """Return the step whose weights are to be handed on where they are not the present ones."""
        return self.best["step"] if self.keep and self.best and self.best["step"] != run.step else None

    def _better(self, value: float, than: float) -> bool:
        return value < than if self.smaller else value > than
