"""`eval`, `checkpoint`, `log`: what is measured, which weights are kept, and how often something is said."""

from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from typing import Any

from ..checks import at_least, has_targets
from ..errors import ConfigError

METRICS = ("accuracy", "f1", "precision", "recall", "matthews", "roc_auc")
"""Metrics of classification that ship with the package; the loss is always there."""

ERRORS = ("rmse", "mae")
CORRELATIONS = ("pearson", "spearman", "r2")
"""Metrics of numbers."""

SETS = ("f1_micro",)
"""Metrics of sets of classes, beside those of `METRICS`."""

ENTITIES = ("entity_f1", "entity_precision", "entity_recall")
"""Metrics of entities."""

MORE = ("pr_auc", "f1_macro", "f1_weighted", "precision_weighted", "recall_weighted")
"""Of classification too, where `eval.metrics` names them."""

LANGUAGE = ("perplexity", "exact_match")
"""Of language models; the second where answers are generated."""

IMAGES = ("top_5",)
"""Of images, beside those of `METRICS`: the right class is among the five most probable ones."""

PACKAGED = (*METRICS, *MORE, *ERRORS, *CORRELATIONS, *SETS, *ENTITIES, *LANGUAGE, *IMAGES)
"""Metrics of all tasks that ship with the package."""

SMALLER = ("loss", "perplexity", *ERRORS)
"""Those of which less is better."""


@dataclass(kw_only=True)
class EvalConfig:
    """Validation during training, and the metrics of every evaluation."""

    every_epochs: int = 1
    """Validate after every so many epochs; 0 only at the end."""

    every_steps: int = 0
    """Validate after every so many optimizer steps as well; 0 never."""

    batch_size: int = 64
    """Rows computed at once, per process, when nothing is learned."""

    metrics: list[str] | None = None
    """Metrics by name; the folder of an `evaluate` module; or the name of one on the Hub, whose code is then run. Empty
    means the task's own; of single classes accuracy, f1, precision, recall, matthews and roc_auc. There are pr_auc,
    f1_macro, f1_weighted, precision_weighted and recall_weighted, too."""

    generate: bool = False
    """`task=sft`: at the end let the model answer every prompt of the evaluation splits, greedily, and compare."""

    max_new_tokens: int = 64
    """Tokens of a generated answer at most."""

    extra_metrics: dict[str, Any] = field(default_factory=dict)
    """Your own, by name: `{_target_: package.module.function, ...}`, called with `predictions` and `references`
    (lists of ints), returning a number or a dict of numbers; an `evaluate.Metric` class works too."""

    threshold: Any = None
    """Where a class begins to hold: a probability, or `f1`, which chooses it on the validation split when training is
    over (of several classes a row, one each) and keeps it in the model's config.json. Of two classes it is that of the
    second. Empty means the more probable class, and 0.5 for several classes a row."""

    sets: dict[str, str] = field(default_factory=dict)
    """Further evaluation sets by name: split names or files, like `data.validation`. Scored at the end."""

    def __post_init__(self) -> None:
        at_least(self, "eval", 0, "every_epochs", "every_steps")
        at_least(self, "eval", 1, "batch_size", "max_new_tokens")
        number = isinstance(self.threshold, float) and 0 < self.threshold < 1
        if self.threshold not in (None, "f1") and not number:
            raise ConfigError(f"eval.threshold={self.threshold}: must be f1, or a probability between 0 and 1")
        for name in self.metrics or ():
            if name not in PACKAGED and (not name or ("/" not in name and get_close_matches(name, PACKAGED, 1, 0.5))):
                raise ConfigError(
                    f"eval.metrics: unknown metric '{name}'; allowed: {', '.join(PACKAGED)}, a folder, or a name of "
                    f"the Hub's, such as evaluate-metric/{name}"
                )
        has_targets("eval.extra_metrics", self.extra_metrics, "function")
        for name in self.sets:
            if name in ("train", "validation", "test"):
                raise ConfigError(f"eval.sets.{name}: this name is taken by the data set's own split")


# By name, because `continue` is a word of Python's.
OnSaveError = Enum("OnSaveError", [("continue", "continue"), ("stop", "stop")], type=str)
"""What a save that failed means for training."""


class Select(str, Enum):
    """Which weights a training run hands on."""

    best = "best"
    last = "last"


@dataclass(kw_only=True)
class CheckpointConfig:
    """Which weights are kept and handed on."""

    path: str | None = None
    """A trained model (folder or Hub id) for `pipeline=evaluate`; `checkpoint=PATH` is short for it."""

    select: Select = Select.best
    """`best`: the weights with the best `metric` on the validation split; `last`: those after the last step."""

    metric: str = "auto"
    """The validation metric that decides; `loss` and the names in `eval.extra_metrics` work too. `auto` is the task's
    main one, or the first of `eval.metrics` where that is not among them."""

    mode: str = "auto"
    """`max`, `min`, or `auto` (min for the loss and for errors, max otherwise)."""

    store: str | None = None
    """Where checkpoints are kept: a folder or a URL (`file://`, `s3://bucket/prefix`, `hf://user/name`). Empty means
    the run's own folder, which is cleared of them when the run is finished."""

    every_steps: int = 0
    """Save after every so many optimizer steps; 0 never. Every validation is followed by a save anyway."""

    every_minutes: float = 10.0
    """Save when the last save is so many minutes old; 0 never."""

    keep: int = 2
    """Checkpoints that are kept beside the best one; an older one goes only after a newer one is complete."""

    async_save: bool = True
    """Write in the background while training goes on; only the copy to host memory holds it up."""

    stall_seconds: float = 60.0
    """How long one background save that is still running may hold training up in all, where the next one is due; after
    that the next ones are skipped until it is done, the last one of a run never."""

    on_save_error: OnSaveError = OnSaveError["continue"]
    """When a save has failed: `continue` says so and trains on (if the last one failed, the command ends with code 76);
    `stop` ends the run with an error."""

    def __post_init__(self) -> None:
        at_least(self, "checkpoint", 1, "keep")
        at_least(self, "checkpoint", 0, "every_steps", "every_minutes", "stall_seconds")
        self.on_save_error = OnSaveError(self.on_save_error)
        if self.mode not in ("auto", "max", "min"):
            raise ConfigError(f"checkpoint.mode={self.mode}: allowed are auto, max, min")


@dataclass(kw_only=True)
class LogConfig:
    """What is said while training runs."""

    every_steps: int = 10
    """A line in `history.jsonl` (and in the curves of the report) after every so many optimizer steps."""

    every_seconds: float = 5.0
    """On something that is not a terminal: a progress line at most every so many seconds."""

    def __post_init__(self) -> None:
        at_least(self, "log", 1, "every_steps")
        at_least(self, "log", 0, "every_seconds")
