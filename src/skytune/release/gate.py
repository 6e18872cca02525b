"""Two trained models on the same held-out rows: what each predicts there, and which of these rows it was trained on."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..config import (
    ComputeConfig,
    LaunchConfig,
    ModelConfig,
    Pipeline,
    PromoteConfig,
    RunConfig,
    SearchConfig,
    UploadConfig,
    UserError,
    to_dict,
)
from ..data.batches import Ragged
from ..data.tables import content_hash, read_split
from ..job import JobDir
from ..launch import predict
from ..launch.remote.machine import machines_asked
from ..models import saved_model
from ..report.training_rows import rows_trained_on
from ..runs import reproduce
from ..tasks import Scoring, Shown, Task, find_task, resolved
from ..tasks.prepared import prepared
from ..tasks.trained import with_checkpoint
from ..training.outputs import load_predictions, taken
from .results import run_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GateScores:
    """A model on the gate: the rows on which a promotion is decided."""

    name: str
    rows: np.ndarray
    """int64 [n], their numbers in the gate."""

    targets: np.ndarray | Ragged
    collected: Ragged
    scoring: Scoring
    task: Task
    metric: str
    """The main number."""

    trained_on: int = 0
    """How many rows of the gate it was trained on."""

    def on(self, rows: np.ndarray) -> "GateScores":
        """Return the model on some of these rows, in this order."""
        order = np.argsort(self.rows)
        at = order[np.searchsorted(self.rows, rows, sorter=order)]
        shown = self.scoring.shown
        scoring = replace(self.scoring, shown=shown.picked(rows) if isinstance(shown, Shown) else shown)
        collected, targets = self.collected.take(at), taken(self.targets, at)
        return replace(self, rows=rows, targets=targets, collected=collected, scoring=scoring)


def base_of(checkpoint: str) -> dict[str, Any]:
    """Return the values to which the command line of `pipeline=promote` is added: those of the run, whose test split is
    the gate unless the command says otherwise; where it is computed, the command says.

    Raises:
        UserError: the checkpoint lies in no run's folder.
    """
    values = reproduce.base(run_of(checkpoint))
    values = {name: value for name, value in values.items() if name != "sagemaker"}
    fresh = {"promote": PromoteConfig(), "search": SearchConfig(), "compute": ComputeConfig(), "launch": LaunchConfig()}
    return values | {name: to_dict(config) for name, config in fresh.items()}


def on_the_gate(config: RunConfig, checkpoint: str) -> GateScores:
    """Return what a run's model says to the test rows of a configuration: as it was predicted when it was trained,
    where these are the very rows, else predicted now.

    Raises:
        UserError: no run's model, no record of the rows that it was trained on, or data that cannot be had.
    """
    run = run_of(checkpoint)
    job = JobDir(run.folder)
    if not any((job.inputs / "train").glob("data-*.arrow")):
        raise UserError(f"{run.key}: the record of the rows that it was trained on ({job.inputs}/train) is gone")
    local = not machines_asked(config.compute)
    config = with_checkpoint(
        replace(
            config,
            pipeline=Pipeline.evaluate,
            checkpoint=replace(config.checkpoint, path=checkpoint, store=None),
            model=ModelConfig(),
            eval=replace(config.eval, sets={}),
            compute=config.compute if local else ComputeConfig(),
            promote=PromoteConfig(),
            upload=UploadConfig(),
            search=SearchConfig(),
        )
    )
    found = prepared(config, config.seed, saved_model(checkpoint).labels)
    config = resolved(config, found.test.features)
    result, file = run.result, job.predictions("test")
    if not (file.is_file() and _same(found.test, job.inputs / "test")):
        log.info("promote_model: predicting the gate with %s", run.key)
        done = predict(config, checkpoint, {"test": found.test}, found.tokenizer)
        result, file = done.result, done.job.predictions("test")
        done.claim.close()
    rows, targets, collected = load_predictions(file)
    trained_on = rows_trained_on(checkpoint, {"test": found.test}, config).get("rows", {}).get("test", 0)
    shown = Shown(found.test, found.tokenizer, rows, found.texts.get("test"))
    scoring = Scoring.of(config.eval, found.labels, settings=result.get("settings") or {}, shown=shown)
    task = find_task(config.task)
    return GateScores(run.key, rows, targets, collected, scoring, task, config.checkpoint.metric, trained_on)


def _same(split: Any, folder: Path) -> bool:
    try:
        return content_hash(split.with_format("arrow")[:]) == content_hash(read_split(folder))
    except UserError:
        return False
