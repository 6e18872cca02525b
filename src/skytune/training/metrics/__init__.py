"""The room of metrics: numbers out of logits and labels, by `evaluate.Metric`s over scikit-learn and the user's own."""

from .packaged import packaged
from .scoring import check, compute
