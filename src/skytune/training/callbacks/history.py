"""What a run writes down about itself: the history file, and which step had the best weights."""

import json
import logging
import math
from pathlib import Path
from typing import Any

from ...common.files import is_disk_full, replacing
from ...config import RunConfig, Select, UserError
from ...config.schema.evaluation import SMALLER
from ..flops import peak, utilization
from .base import Callback, Run

log = logging.getLogger(__name__)

CANDIDATES = 20
"""Validations that are remembered as the best ones."""


class History(Callback):
    """Writes `history.jsonl` on rank 0: every `log.every_steps` steps, the last step, and every validation.

    A full disk costs lines for as long as it is full: they are written as soon as there is room.
    """

    def __init__(self) -> None:
        self._mark = (0, 0, 0.0, 0.0, 0.0)
        self._path: Path | None = None
        self._behind = False
        """Whether the file lacks records."""
        self.records: list[dict[str, Any]] = []
        """All records so far; a checkpoint holds them, so that another machine has them too."""

    def restore(self, run: Run, records: list[dict[str, Any]]) -> None:
        """Go on from a checkpoint's records."""
        self.records = records
        self._mark = _totals(run)

    def on_run_start(self, run: Run) -> None:
        """Begin the file, with what was recorded before."""
        if run.world.main:
            self._path = run.job.history
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._rewrite()

    def on_step_end(self, run: Run) -> None:
        """Write a step's record; rates are means since the record before."""
        if self._path is None or not (run.step % run.config.log.every_steps == 0 or run.step == run.total_steps):
            return
        rows, tokens, seconds, flops, waited = self._mark
        span = max(run.train_seconds - seconds, 1e-9)
        world = run.world
        mfu = utilization(run.flops - flops, span, run.devices or world.size, peak(world.describe(), world.precision))
        self._write(
            kind="step",
            step=run.step,
            epoch=round(run.step / run.steps_per_epoch, 4),
            loss=run.loss if math.isfinite(run.loss) else None,
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
        if self._path is not None:
            self._write(
                kind="validation",
                step=run.step,
                epoch=round(run.step / run.steps_per_epoch, 4),
                split="validation",
                metrics=run.metrics,
                elapsed_s=round(run.train_seconds, 3),
            )

    def on_run_end(self, run: Run) -> None:
        """Write what could not be written before; a disk that is still full has more to say than this file."""
        if self._behind:
            self._rewrite()

    def _write(self, **record: Any) -> None:
        self.records.append(record)
        assert self._path is not None
        if self._behind:
            self._rewrite()
            return
        try:
            _put(self._path, [record], "a")
        except OSError as error:
            self._fall_behind(error)

    def _rewrite(self) -> None:
        assert self._path is not None
        try:
            with replacing(self._path) as part:
                _put(part, self.records, "w")
            self._behind = False
        except OSError as error:
            self._fall_behind(error)

    def _fall_behind(self, error: OSError) -> None:
        if not is_disk_full(error):
            raise error
        if not self._behind:
            log.warning("%s: %s; lines are missing there until there is room again", self._path, error.strerror)
        self._behind = True


def _put(path: Path, records: list[dict[str, Any]], mode: str) -> None:
    with path.open(mode, encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def _totals(run: Run) -> tuple[int, int, float, float, float]:
    return run.rows, run.tokens, run.train_seconds, run.flops, run.data_seconds


class BestWeights(Callback):
    """Remembers the steps of the best validations; the checkpoint of a step has its weights.

    More than one, because the save of the best one may fail: then the next best is handed on.

    The metric is the same on all processes, so they agree without asking each other.
    """

    def __init__(self, config: RunConfig) -> None:
        self.metric = config.checkpoint.metric
        mode = config.checkpoint.mode
        self.smaller = mode == "min" or (mode == "auto" and self.metric in SMALLER)
        self.keep = config.checkpoint.select is Select.best
        self.ranking: list[tuple[float, int]] = []
        """(value, step) of the best validations, the best one first; of equal ones the earliest."""

    def on_validation_end(self, run: Run) -> None:
        """Compare."""
        if self.metric not in run.metrics:
            raise UserError(f"checkpoint.metric={self.metric}: the validation gave only {', '.join(run.metrics)}")
        value = run.metrics[self.metric]
        if value == value:
            self.ranking.append((value, run.step))
            self.ranking.sort(key=lambda found: found[0] if self.smaller else -found[0])  # stable
            del self.ranking[CANDIDATES:]

    @property
    def best(self) -> dict[str, Any] | None:
        """Step and value of the best validation, None before the first one."""
        if not self.ranking:
            return None
        value, step = self.ranking[0]
        return {"step": step, "metric": self.metric, "value": value}

    @property
    def steps(self) -> list[int]:
        """Steps of the best validations, the best one first."""
        return [step for _, step in self.ranking]

    def forget(self, step: int) -> None:
        """Leave out a validation whose weights cannot be had."""
        self.ranking = [found for found in self.ranking if found[1] != step]
