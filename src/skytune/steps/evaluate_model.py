"""Step `evaluate_model`: the scores, and the report."""

import logging
from pathlib import Path
from typing import Annotated, Any

from zenml import log_metadata, step
from zenml.types import HTMLString

from ..report.scoring import score, write_beside, write_report
from ..report.training_rows import rows_trained_on
from ..tasks import Shown, find_task, resolved
from ..tasks.metrics import check
from ..tasks.task import no_columns
from .context import named_sets, run_config, started, stored_tokenizer
from .types import Dataset, Datasets, Predictions, Texts, TokenizerFiles

log = logging.getLogger(__name__)


@step
def evaluate_model(
    validation_dataset: Datasets,
    test_dataset: Dataset,
    tokenizer: TokenizerFiles,
    evaluation: dict[str, Any],
    fingerprints: dict[str, str],
    predictions: Predictions = None,
    texts: Texts = None,
    training_report: dict[str, Any] | None = None,
    checkpoint: str | None = None,
) -> tuple[Annotated[dict[str, Any], "metrics"], Annotated[HTMLString, "report"]]:
    """Score every evaluation split.

    Where no predictions are given, `checkpoint` predicts them in worker processes first.
    """
    from ..launch import class_names, predict, read_predictions

    log.info("evaluate_model: scoring")
    config = resolved(run_config(), test_dataset.features)
    splits = {**named_sets(validation_dataset), "test": test_dataset}
    files = stored_tokenizer(tokenizer)
    report = training_report or {}
    if predictions is None:
        check(config.eval.metrics, config.eval.extra_metrics)
        done = predict(config, str(checkpoint), splits, files, since=started())
        done.keep()
        predictions = read_predictions(done.job, list(splits))
        seen = rows_trained_on(str(checkpoint), splits, config)
        report = {"result": {**done.result, "predicted_only": True, "trained_on": seen}, "history": []}
    shown = {name: Shown(split, files, own=(texts or {}).get(name)) for name, split in splits.items()}
    found, page, warning = score(config, predictions, class_names(test_dataset), shown, report)
    folder = Path(report["result"]["run_folder"])
    write_report(folder, page)
    places = write_beside(folder, found, checkpoint, fingerprints)
    metrics = {name: {**entry["metrics"], "n_rows": entry["n_rows"]} for name, entry in found.items()}
    numbers = {f"{name}_{key}": value for name, scored in metrics.items() for key, value in scored.items()}
    log_metadata({key: value for key, value in numbers.items() if value is not None})
    headline = {name: list(entry["headline"]) for name, entry in found.items()}
    task = find_task(config.task)
    about: dict[str, Any] = {
        "splits": metrics,
        "headline": headline,
        "pipeline": task.pipeline,
        "predicts": task.predicted is not no_columns,
        "warning": warning,
        "result": report["result"],
        "files": [str(place) for place in places],
    }
    return about, HTMLString(page)
