"""Every number of one evaluation: the packaged metrics, modules out of a folder, and functions of the user's own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from skytune.config import METRICS, ConfigError, UserError
from skytune.config.targets import locate, split_spec

from . import classification
from .user import Inputs, add, folder_script, run_folder, run_target

Packaged = Callable[[str, Inputs], float]


def compute(
    metrics: list[str], extra: dict[str, dict[str, Any]], logits: np.ndarray, labels: np.ndarray
) -> dict[str, float]:
    """Return every metric of one split by name, plus `loss` (mean cross-entropy in nats) and `n_rows`.

    The predicted class is the one with the largest logit, the first of equals. With two columns of logits, F1,
    precision and recall are those of class 1; with more they are macro averages. ROC-AUC is NaN where it is not
    defined: more than two classes, or only one class among the labels.

    Args:
        metrics: names out of `skytune.config.METRICS`, or folders of `evaluate` modules (`path/name` with `name.py`).
        extra: the user's own, by name: `{_target_: package.module.function, ...}`; see `user.run_target`.
        logits: [n, k], any float type; computed in float64.
        labels: [n], class numbers from 0 to k - 1.

    Raises:
        UserError: no rows; a label below 0 (unlabelled) or of no class; logits that are not finite; a metric that
            fails or returns something else than numbers, by name.
    """
    return _score(metrics, extra, Inputs.checked(logits, labels), _with_numpy)


def score_with_modules(
    metrics: list[str], extra: dict[str, dict[str, Any]], logits: np.ndarray, labels: np.ndarray
) -> dict[str, float]:
    """Return the same numbers as `compute`, through the packaged `evaluate.Metric` modules.

    Needs `evaluate` and `datasets`; asks no hub and writes no rows to disk.
    """
    return _score(metrics, extra, Inputs.checked(logits, labels), _with_module)


def check(metrics: list[str], extra: dict[str, dict[str, Any]]) -> None:
    """Find every metric that is not ours, so that a wrong name is told before hours of training and not after.

    Raises:
        UserError: there is none of that name.
    """
    for name in metrics:
        if name not in METRICS:
            folder_script(name)
    for name, spec in extra.items():
        locate(split_spec(spec)[0], f"eval.extra_metrics.{name}._target_")


def module_path(name: str) -> Path:
    """Return the folder of a packaged metric (or of `loss`), to be given to `evaluate.load(str(folder))`.

    Raises:
        ConfigError: no such metric.
    """
    if name not in (*METRICS, "loss"):
        raise ConfigError(f"unknown metric '{name}'; allowed: {', '.join(METRICS)}, loss")
    return Path(__file__).parent / "modules" / name


def _score(
    metrics: list[str], extra: dict[str, dict[str, Any]], inputs: Inputs, packaged: Packaged
) -> dict[str, float]:
    results: dict[str, float] = {"loss": packaged("loss", inputs)}
    for name in dict.fromkeys(metrics):
        found = {name: packaged(name, inputs)} if name in METRICS else run_folder(name, inputs)
        add(results, found, f"eval.metrics: {name}")
    for name, spec in extra.items():
        add(results, run_target(name, spec, inputs), f"eval.extra_metrics.{name}")
    return {**results, "n_rows": len(inputs.labels)}


def _with_numpy(name: str, inputs: Inputs) -> float:
    if name == "loss":
        return classification.cross_entropy(inputs.logits, inputs.labels)
    if name == "roc_auc":
        return classification.roc_auc(inputs.scores, inputs.labels) if inputs.binary else float("nan")
    if name in ("accuracy", "matthews"):
        return getattr(classification, name)(inputs.predictions, inputs.labels)
    return getattr(classification, name)(inputs.predictions, inputs.labels, average=inputs.average)


def _with_module(name: str, inputs: Inputs) -> float:
    import evaluate

    if name == "roc_auc" and not inputs.binary:
        return float("nan")
    try:
        # In memory: two runs at once would share (and wait for) one file of rows in evaluate's cache.
        module = evaluate.load(str(module_path(name)), keep_in_memory=True)
    except OSError as error:
        raise UserError(
            f"metric '{name}': evaluate cannot write its cache ({error}): set HF_HOME to a folder that is yours"
        ) from error
    given: dict[str, Any] = {"references": inputs.labels}
    if name == "roc_auc":
        given["prediction_scores"] = inputs.scores
    else:
        given["predictions"] = inputs.logits if name == "loss" else inputs.predictions
    options = {} if name in ("loss", "roc_auc", "accuracy", "matthews") else {"average": inputs.average}
    return float(module.compute(**given, **options)[name])
