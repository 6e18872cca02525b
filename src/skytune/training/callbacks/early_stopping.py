"""Ends a run whose validations get no better."""

import logging
from typing import Any

from ...config import EarlyStoppingConfig
from .base import Callback, Run

log = logging.getLogger(__name__)


class EarlyStopping(Callback):
    """Counts validations in a row that are not better than the best one by more than `min_delta`.

    A metric that is no number is not better. The count is part of every checkpoint, so a run that was cut short stops
    where it would have stopped.

    Args:
        metric: name in `run.metrics`.
        smaller: whether less is better.
    """

    def __init__(self, config: EarlyStoppingConfig, metric: str, smaller: bool) -> None:
        assert config.patience is not None
        self.patience, self.min_delta = config.patience, config.min_delta
        self.metric, self.smaller = metric, smaller
        self.best: float | None = None
        self.step = 0
        self.count = 0

    def on_validation_end(self, run: Run) -> None:
        """Compare, and stop the run when patience is at its end."""
        value = run.metrics[self.metric]
        if self._better(value):
            self.best, self.step, self.count = value, run.step, 0
            return
        self.count += 1
        if self.count >= self.patience and run.step < run.total_steps:
            run.stop = True
            if run.world.main:
                since = f"is no better than {self.best} (step {self.step})" if self.step else "never was a number"
                log.info(
                    "early stopping after step %d of %d: %s %s, %d validation%s in a row",
                    run.step,
                    run.total_steps,
                    self.metric,
                    since,
                    self.count,
                    "s" if self.count > 1 else "",
                )

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"best": self.best, "step": self.step, "count": self.count}

    def load_state(self, values: dict[str, Any]) -> None:
        """Go on counting from a checkpoint."""
        self.best, self.step, self.count = values["best"], values["step"], values["count"]

    def _better(self, value: float) -> bool:
        if value != value:
            return False
        if self.best is None:
            return True
        gain = self.best - value if self.smaller else value - self.best
        return gain > self.min_delta
