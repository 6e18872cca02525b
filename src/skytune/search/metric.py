"""The number by which trials are compared: which one it is, and what it is of a run."""

import math

from .. import tasks
from ..config import ConfigError, RunConfig
from ..config.schema.evaluation import SMALLER
from ..job import JobDir
from ..tasks import Scoring
from ..training.outputs import load_predictions


def metric_of(config: RunConfig) -> tuple[str, bool]:
    """Return the metric by which trials are compared, and whether more is better.

    Raises:
        ConfigError: there is no such metric.
    """
    design, checkpoint = config.search, config.checkpoint
    task = tasks.chosen(config.task, config.data, config.model)
    measured = list(task.metrics) if config.eval.metrics is None else config.eval.metrics
    main = next((metric for metric in (*task.metrics[:1], *measured) if metric in measured), "loss")
    chosen = main if checkpoint.metric == "auto" else checkpoint.metric
    name, own = design.metric or chosen, tuple(config.eval.extra_metrics)
    if name not in (*measured, "loss") and not (own and name.startswith(own)):
        key = "search.metric" if design.metric else "checkpoint.metric"
        there = ", ".join([*measured, *own])
        raise ConfigError(f"{key}={name}: not among eval.metrics ({there}), loss or eval.extra_metrics")
    mode = design.mode if design.mode != "auto" else checkpoint.mode if name == chosen else "auto"
    return name, name not in SMALLER if mode == "auto" else mode == "max"


def scores_of(job: JobDir, split: str) -> dict[str, float]:
    """Return the metrics of one split's predictions, NaN where one is not defined."""
    written, result = job.job, job.read_result() or {}
    _, targets, collected = load_predictions(job.predictions(split))
    scoring = Scoring.of(written.config.eval, written.labels, settings=result.get("settings", {}))
    scored = tasks.find_task(written.config.task).score(collected, targets, scoring)
    return {name: math.nan if value is None else value for name, value in scored.metrics.items()}
