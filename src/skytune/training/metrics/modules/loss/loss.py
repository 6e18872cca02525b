"""Cross-entropy, as a local `evaluate` module: `evaluate.load("<this folder>")` asks no hub."""

import datasets
import evaluate

from skytune.training import metrics

DESCRIPTION = """The mean negative log-likelihood of the true class in nats, from logits, in float64."""

INPUTS = """
Args:
    predictions (list of list of float): logits, a row a text.
    references (list of int): true classes.

Returns:
    loss (float).
"""


class Loss(evaluate.Metric):
    """Cross-entropy."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation="",
            inputs_description=INPUTS,
            features=datasets.Features(
                {"predictions": datasets.Sequence(datasets.Value("float64")), "references": datasets.Value("int64")}
            ),
        )

    def _compute(self, predictions: list[list[float]], references: list[int]) -> dict[str, float]:
        return {"loss": metrics.cross_entropy(predictions, references)}
