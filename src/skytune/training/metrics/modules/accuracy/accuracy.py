"""Accuracy, as a local `evaluate` module: `evaluate.load("<this folder>")` asks no hub."""

import datasets
import evaluate

from skytune.training import metrics

DESCRIPTION = """The share of rows whose predicted class is right."""

INPUTS = """
Args:
    predictions (list of int): predicted classes.
    references (list of int): true classes.

Returns:
    accuracy (float).
"""


class Accuracy(evaluate.Metric):
    """Accuracy."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation="",
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}),
        )

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, float]:
        return {"accuracy": metrics.accuracy(predictions, references)}
