"""Area under the ROC curve, as a local `evaluate` module: `evaluate.load("<this folder>")` asks no hub."""

import datasets
import evaluate

from skytune.training import metrics

DESCRIPTION = """The chance that a row of class 1 scores higher than one of class 0, ties counting half.

NaN where only one class is there."""

INPUTS = """
Args:
    prediction_scores (list of float): any score that grows with the probability of class 1.
    references (list of int): true classes, 0 or 1.

Returns:
    roc_auc (float).
"""


class RocAuc(evaluate.Metric):
    """Area under the ROC curve."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation="Hanley and McNeil, The meaning and use of the area under a ROC curve, 1982",
            inputs_description=INPUTS,
            features=datasets.Features(
                {"prediction_scores": datasets.Value("float64"), "references": datasets.Value("int64")}
            ),
        )

    def _compute(self, prediction_scores: list[float], references: list[int]) -> dict[str, float]:
        return {"roc_auc": metrics.roc_auc(prediction_scores, references)}
