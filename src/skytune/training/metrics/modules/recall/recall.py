"""Recall, as a local `evaluate` module: `evaluate.load("<this folder>")` asks no hub."""

import datasets
import evaluate

from skytune.training import metrics

DESCRIPTION = """True positives / all positives; 0 where there is none."""

INPUTS = """
Args:
    predictions (list of int): predicted classes.
    references (list of int): true classes.
    average (str): "binary" (class 1 alone) or "macro" (mean over the classes that occur).

Returns:
    recall (float).
"""


class Recall(evaluate.Metric):
    """Recall."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation="",
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}),
        )

    def _compute(self, predictions: list[int], references: list[int], average: str = "binary") -> dict[str, float]:
        return {"recall": metrics.recall(predictions, references, average)}
