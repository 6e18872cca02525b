"""What a person sees of a run while it trains: a live bar on a terminal, a line now and then elsewhere.

Whatever else is printed takes the bar's place, and it comes back below.
"""

import logging
import math
import os
import sys
import time
from datetime import timedelta
from typing import Any, TextIO

from ...config import PACKAGED
from ...tasks import find_task
from .base import Callback, Run

log = logging.getLogger(__name__)

KEPT = 0.9
"""Share of the smoothed loss that stays in every step: it is a mean over about ten steps."""

WORTH_SAYING = 0.02
"""Share of the time that is spent waiting for data."""


class Progress(Callback):
    """A live bar on a terminal, one line every `log.every_seconds` elsewhere; rank 0 only.

    The loss shown is smoothed, an exponential moving average over steps that a resumed run goes on with;
    `history.jsonl` has every step's own.

    `SKYTUNE_PROGRESS=bar|lines` decides for a worker whose output a launcher passes on.
    """

    def __init__(self) -> None:
        mode = os.environ.get("SKYTUNE_PROGRESS") or ("bar" if sys.stdout.isatty() else "lines")
        self.bar_wanted = mode == "bar" and os.environ.get("TERM") != "dumb"
        self.bar: Any = None
        self.screen: Screen | None = None
        self.shown_at = 0.0
        self.first: tuple[int, float, int, int, float] | None = None
        self.smooth = self.weight = 0.0

    def on_run_start(self, run: Run) -> None:
        """Say how long the run is."""
        if not run.world.main:
            return
        batch = run.config.batch
        log.info(
            "training %d steps (%d an epoch) of %d rows on %d x %s in %s",
            run.total_steps,
            run.steps_per_epoch,
            batch.global_size,
            run.world.size,
            run.world.describe(),
            run.world.precision.value,
        )
        if self.bar_wanted:
            from tqdm import tqdm

            self.screen = Screen(sys.stdout).install()
            self.bar = tqdm(
                total=run.total_steps,
                initial=run.step,
                file=Frames(self.screen),
                leave=True,
                mininterval=0.2,
                # Two columns less: a terminal writes ^C behind the bar.
                ncols=int(os.environ.get("COLUMNS", "80")) - 2,
                bar_format="{percentage:3.0f}%|{bar}| {desc}",
            )

    def on_step_end(self, run: Run) -> None:
        """Show where training stands."""
        if math.isfinite(run.loss):  # not before the first step that is not left out (`on_nan`)
            self.smooth = KEPT * self.smooth + (1 - KEPT) * run.loss
            self.weight = KEPT * self.weight + (1 - KEPT)
        if not run.world.main:
            return
        if self.first is None:  # the first step warms things up: rates and ETA count from its end
            self.first = (run.step, run.train_seconds, run.rows, run.tokens, run.data_seconds)
        step, seconds, rows, tokens, waiting = self.first
        span = run.train_seconds - seconds
        rates = eta = ""
        if run.step > step and span > 0:
            rates = f"  {(run.rows - rows) / span:.0f} samples/s"
            if run.tokens - tokens != run.rows - rows:  # an image has none, and counts as one
                rates += f"  {(run.tokens - tokens) / span:.0f} tokens/s"
            waited = (run.data_seconds - waiting) / span
            rates += f"  {waited:.0%} waiting for data" if waited >= WORTH_SAYING else ""
            eta = f"  ETA {timedelta(seconds=round(span / (run.step - step) * (run.total_steps - run.step)))}"
        done = f"{run.step}/{run.total_steps}  loss {self.smooth / (self.weight or math.nan):.4f}"
        if self.bar is not None:
            self.bar.set_description_str(done + rates + eta, refresh=False)
            self.bar.update(1)
        if time.monotonic() - self.shown_at >= run.config.log.every_seconds or run.step == run.total_steps:
            self.shown_at = time.monotonic()
            self._log(f"step {done}  lr {run.lr:.2e}{rates}{eta}")

    def on_validation_end(self, run: Run) -> None:
        """Show the validation's numbers: few enough for one line; `history.jsonl` and the report have all."""
        if run.world.main:
            first = ("loss", *find_task(run.config.task).metrics[:2], run.config.checkpoint.metric)
            own = [name for name in run.metrics if name not in (*PACKAGED, "n_rows")]
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

    def state(self) -> dict[str, float]:
        """Return what a checkpoint keeps: the smoothed loss, before it is divided by the weight it has gathered."""
        return {"smooth": self.smooth, "weight": self.weight}

    def load_state(self, values: dict[str, float]) -> None:
        """Go on from a checkpoint."""
        self.smooth, self.weight = values["smooth"], values["weight"]

    def _log(self, line: str) -> None:
        """Say a line; where a bar is on the screen it goes to the log file alone."""
        log.info("%s", line, extra={"file_only": self.bar is not None})


ERASE = "\r\033[K"
NO_WRAP, WRAP = "\033[?7l", "\033[?7h"
"""DEC private mode 7: text beyond the last column is cut off instead of going to the next line."""


class Screen:
    """Standard output while a bar is on it: what others print (a callback of the user's) stays readable."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.bar_there = False

    def write(self, text: str) -> int:
        """Write text in the place of the bar."""
        if self.bar_there and text:
            self.bar_there = False
            self.stream.write(ERASE)
        return self.stream.write(text)

    def install(self) -> "Screen":
        """Become `sys.stdout`, also of the log handlers that write there."""
        self._exchange(self.stream, self)
        return self

    def remove(self) -> None:
        """Give `sys.stdout` back."""
        self._exchange(self, self.stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    @staticmethod
    def _exchange(old: Any, new: Any) -> None:
        if sys.stdout is old:
            sys.stdout = new
        for handler in logging.getLogger("skytune").handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is old:
                handler.setStream(new)


class Frames:
    """The file that a bar draws to. In a window that was made narrower a frame is cut, so it can still be redrawn."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen

    def write(self, text: str) -> int:
        """Draw a frame."""
        self.screen.bar_there = not text.endswith("\n")
        return self.screen.stream.write(f"{NO_WRAP}{text}{WRAP}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.screen.stream, name)
