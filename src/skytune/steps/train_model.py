"""Step `train_model`: a job for the worker processes, and what they bring back."""

import logging
from typing import Annotated, Any

from zenml import log_metadata, step

from ..materializers import ModelFolder
from .context import input_metadata, named_sets, run_config, started, stored_tokenizer
from .types import Dataset, DatasetDict, Datasets, TokenizerFiles

log = logging.getLogger(__name__)


@step
def train_model(
    train_dataset: Dataset,
    validation_dataset: Datasets,
    test_dataset: Dataset,
    tokenizer: TokenizerFiles,
    decisive: dict[str, Any],
    fingerprints: dict[str, str],
) -> tuple[
    Annotated[ModelFolder, "model"],
    Annotated[DatasetDict, "predictions"],
    Annotated[dict[str, Any], "training_report"],
]:
    """Fine-tune and predict in worker processes; `decisive` and `fingerprints` are there for the cache alone."""
    from ..aws.launching import launcher_of
    from ..launch import class_names, read_predictions, train
    from ..pricing.cost import cost_of
    from ..training.outputs import last_values

    log.info("train_model: starting the worker processes")
    sets = named_sets(validation_dataset)
    config = run_config()
    # A step operator says where the workers run; without one, here.
    launcher = launcher_of(config)
    if launcher is not None:
        config = launcher.completed(config)
    files = stored_tokenizer(tokenizer)
    splits, take = {**sets, "test": test_dataset}, config.search.take is not None
    done = train(config, train_dataset, splits, files, fingerprints, launcher, started(), take=take)
    done.keep()
    report = {"result": done.result, "history": done.history, "data": input_metadata("train_dataset", "data")}
    numbers = {key: value for key, value in done.result.items() if isinstance(value, (int, float, str))}
    best = {f"best/{key}": value for key, value in (done.result.get("best") or {}).items()}
    cost = cost_of(done.result, config.compute.usd_per_hour)
    log_metadata({**numbers, **last_values(done.history), **best, **cost.as_dict(), "cost": cost.line()})
    predictions = read_predictions(done.job, [*sets, "test"])
    for split in predictions.values():
        split.class_names = class_names(test_dataset)  # for the dashboard, while this process stores it
    return ModelFolder(done.job.model), predictions, report
