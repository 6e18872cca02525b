"""The room of metrics: numbers out of logits and labels, in numpy, so that a bare worker machine computes them too.

The same metrics also ship as local `evaluate.Metric` modules (`modules/<name>/<name>.py`), for whoever wants to
`evaluate.load` them; `score_with_modules` does so. Nothing here asks a hub for code.
"""

from .classification import accuracy, cross_entropy, f1, matthews, per_class, precision, recall, roc_auc
from .scoring import check, compute, module_path, score_with_modules

__all__ = [
    "accuracy",
    "check",
    "compute",
    "cross_entropy",
    "f1",
    "matthews",
    "module_path",
    "per_class",
    "precision",
    "recall",
    "roc_auc",
    "score_with_modules",
]
