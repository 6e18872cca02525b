"""The package's own callbacks: progress on the screen, the history file, the best weights, the profiler."""

import json
import logging
import os
import sys
import time
from datetime import timedelta
from typing import Any

from ..config import METRICS, RunConfig, Select, UserError
from .callbacks import Callback, Run
from .flops import peak, utilization
from .screen import Frames, Screen

log = logging.getLogger(__name__)


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


class Progress(Callback):
    """A live bar on a terminal, one line every `log.every_seconds` elsewhere; rank 0 only.

    `SKYTUNE_PROGRESS=bar|lines` decides for a worker whose output a launcher passes on.
    """

    def __init__(self) -> None:
        mode = os.environ.get("SKYTUNE_PROGRESS") or ("bar" if sys.stdout.isatty() else "lines")
        self.bar_wanted = mode == "bar" and os.environ.get("TERM") != "dumb"
        self.bar: Any = None
        self.screen: Screen | None = None
        self.said = 0.0
        self.first: tuple[int, float, int, int] | None = None

    def on_run_start(self, run: Run) -> None:
        """Say how long the run is."""
        if not run.world.main:
            return
        batch = run.config.batch
        log.info(
            "training %d steps (%d an epoch) of %d rows on %d x %s in %s",
            run.total_steps, run.steps_per_epoch, batch.global_size, run.world.size, run.world.describe(),
            run.world.precision.value,
        )  # fmt: skip
        if self.bar_wanted:
            from tqdm import tqdm

            self.screen = Screen(sys.stdout).install()
            self.bar = tqdm(
                total=run.total_steps, initial=run.step, file=Frames(self.screen), leave=True, mininterval=0.2,
                # Two columns less: a terminal writes ^C behind the bar.
                ncols=int(os.environ.get("COLUMNS", "80")) - 2, bar_format="{percentage:3.0f}%|{bar}| {desc}",
            )  # fmt: skip

    def on_step_end(self, run: Run) -> None:
        """Show where training stands."""
        if not run.world.main:
            return
        if self.first is None:  # the first step warms things up: rates and ETA count from its end
            self.first = (run.step, run.train_seconds, run.rows, run.tokens)
        step, seconds, rows, tokens = self.first
        span = run.train_seconds - seconds
        rates = eta = ""
        if run.step > step and span > 0:
            rates = f"  {(run.rows - rows) / span:.0f} samples/s  {(run.tokens - tokens) / span:.0f} tokens/s"
            eta = f"  ETA {timedelta(seconds=round(span / (run.step - step) * (run.total_steps - run.step)))}"
        done = f"{run.step}/{run.total_steps}  loss {run.loss:.4f}"
        if self.bar is not None:
            self.bar.set_description_str(done + rates + eta, refresh=False)
            self.bar.update(1)
        if time.monotonic() - self.said >= run.config.log.every_seconds or run.step == run.total_steps:
            self.said = time.monotonic()
            self._log(f"step {done}  lr {run.lr:.2e}{rates}{eta}")

    def on_validation_end(self, run: Run) -> None:
        """Show the validation's numbers: few enough for one line; `history.jsonl` and the report have all."""
        if run.world.main:
            first = ("loss", "accuracy", "f1", run.config.checkpoint.metric)
            own = [name for name in run.metrics if name not in (*METRICS, "n_rows")]
            shown = [name for name in run.metrics if name in first or name in own]
            numbers = "  ".join(f"{name} {run.metrics[name]:.4f}" for name in shown)
            line = f"validation after step {run.step}: {numbers}"
            if self.screen is not None:
                self.screen.write(f"{line}\n")
            self._log(line)

    def on_run_end(self, run: Run) -> None:
        """Leave the terminal tidy."""
        if self.bar is not None and self.screen is not None:
            self.bar.close()
            self.screen.remove()

    on_exception = on_run_end

    def _log(self, line: str) -> None:
        """Say a line; where a bar is on the screen it goes to the log file alone."""
        log.info("%s", line, extra={"file_only": self.bar is not None})


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


class Profiler(Callback):
    """Records `debug.profile_steps` steps after two others; leaves a trace for chrome://tracing and a table."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.profile: Any = None

    def on_run_start(self, run: Run) -> None:
        """Start waiting."""
        import torch

        activities = [torch.profiler.ProfilerActivity.CPU]
        if run.world.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        schedule = torch.profiler.schedule(wait=1, warmup=1, active=self.steps, repeat=1)
        self.profile = torch.profiler.profile(activities=activities, schedule=schedule)
        self.profile.start()

    def on_step_end(self, run: Run) -> None:
        """Count a step."""
        self.profile.step()

    def on_run_end(self, run: Run) -> None:
        """Write what was recorded."""
        self.profile.stop()
        if not run.world.main:
            return
        folder = run.job.outputs / "profile"
        folder.mkdir(parents=True, exist_ok=True)
        self.profile.export_chrome_trace(str(folder / "trace.json"))
        key = "self_device_time_total" if run.world.device.type == "cuda" else "self_cpu_time_total"
        table = self.profile.key_averages().table(sort_by=key, row_limit=20)
        (folder / "operations.txt").write_text(table, encoding="utf-8")
        log.info("profile: %s", folder)
