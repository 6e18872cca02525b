"""`promote`: which model serves, and what a better one has to show."""

import re
from dataclasses import dataclass
from enum import Enum

from ..checks import at_least
from ..errors import ConfigError


class ModelStage(str, Enum):
    """Stages of ZenML's Model Control Plane that one version of a model has at a time."""

    staging = "staging"
    production = "production"


@dataclass(kw_only=True)
class PromoteConfig:
    """Promotion by a test on held-out rows: `pipeline=promote`, or at the end of a training."""

    stage: ModelStage | None = None
    """`staging` or `production`; `stage=production` for short with `pipeline=promote checkpoint=PATH`, and
    `promote=staging` with a training, which then ends with it. Empty promotes nothing."""

    model: str | None = None
    """Name in ZenML's Model Control Plane under which versions follow each other. Empty means `<data>-<task>`, so that
    other base models for the same data compete for the same stage."""

    alpha: float = 0.05
    """The gain must be this improbable by chance: the p-value of McNemar's exact test for accuracy; for other metrics
    an interval of 1 - alpha, of a paired bootstrap over the rows, that lies above 0."""

    max_class_drop: float = 0.05
    """No class may lose more than this of its F1."""

    max_calibration_rise: float = 0.05
    """The expected calibration error may rise by this much."""

    rollback: bool = False
    """Give the stage back to the version that had it before; needs `stage`, and `promote.model` or
    `checkpoint=PATH`."""

    force: bool = False
    """Promote whatever the test says; what it said is kept with the decision."""

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise ConfigError(f"promote.alpha={self.alpha}: must lie between 0 and 1")
        at_least(self, "promote", 0, "max_class_drop", "max_calibration_rise")
        if self.model is not None and not re.fullmatch(r"\w[\w .+-]{0,99}", self.model):
            raise ConfigError(f"promote.model={self.model!r}: letters, digits, blanks and . _ + - are allowed")
        if (self.rollback or self.force) and self.stage is None:
            raise ConfigError("promote.rollback and promote.force need promote.stage (staging or production)")
