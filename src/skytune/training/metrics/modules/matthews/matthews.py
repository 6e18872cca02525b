"""Matthews' correlation coefficient, as a local `evaluate` module: `evaluate.load("<this folder>")` asks no hub."""

import datasets
import evaluate

from skytune.training import metrics

DESCRIPTION = """Matthews' correlation coefficient, for any number of classes; 0 where it is not defined."""

INPUTS = """
Args:
    predictions (list of int): predicted classes.
    references (list of int): true classes.

Returns:
    matthews (float).
"""


class Matthews(evaluate.Metric):
    """Matthews' correlation coefficient."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation="Gorodkin, Comparing two K-category assignments by a K-category correlation coefficient, 2004",
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}),
        )

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, float]:
        return {"matthews": metrics.matthews(predictions, references)}
