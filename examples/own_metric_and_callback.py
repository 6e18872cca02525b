"""A metric and a callback of your own: the metric is in the report and in every tracker, the callback sees the run.

PYTHONPATH=examples python src/run.py plugins=[own_metric_and_callback] metric=fbeta callback=diary debug=smoke
"""

import json
from pathlib import Path
from typing import Any

from skytune.config.targets import configurable


@configurable("metric", "fbeta")
def fbeta(predictions: list[int], references: list[int], beta: float = 2.0) -> float:
    """F-beta of class 1."""
    hits = sum(predicted and true for predicted, true in zip(predictions, references, strict=True))
    return (1 + beta**2) * hits / max(1, sum(predictions) + beta**2 * sum(references))


@configurable("callback", "diary")
class Diary:
    """Keeps every validation in a file of its own, also across interruptions."""

    def __init__(self, file: str = "diary.json") -> None:
        self.file = Path(file)
        self.entries: list[dict[str, Any]] = []

    def on_validation_end(self, run: Any) -> None:
        """Note the step and its numbers."""
        self.entries.append({"step": run.step, **run.metrics})

    def on_run_end(self, run: Any) -> None:
        """Write the file, by one process."""
        if run.world.main:
            self.file.write_text(json.dumps(self.entries))

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of this."""
        return {"entries": self.entries}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        self.entries = state["entries"]
