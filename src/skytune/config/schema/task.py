"""`task`: what is learned from a row of the data."""

from dataclasses import dataclass, field
from typing import Any

from ..checks import at_least, below_one, together
from ..errors import ConfigError

AUTO = "auto"
FIRST = "text-classification"
"""The task that a configuration from before there were several has."""


@dataclass(kw_only=True)
class TaskConfig:
    """A task by name, or of one's own."""

    name: str = AUTO
    """What is learned: the presets of `task` (`--help` lists them). `auto` goes by the columns of the data and the
    model's config.json, and says what it found."""

    _target_: str | None = None
    """Import path of a `skytune.tasks.Task` of your own, or of a function that returns one."""

    args: dict[str, Any] = field(default_factory=dict)
    """Arguments of `_target_`."""

    def __post_init__(self) -> None:
        together(self, "task", "args", "_target_")
        if not self.name:
            raise ConfigError("task.name is empty: auto goes by the data")

    @property
    def is_auto(self) -> bool:
        """Whether nobody has said which task it is."""
        return self._target_ is None and self.name == AUTO

    @property
    def is_first(self) -> bool:
        """Whether this is one class a text, of which run keys from before there were several tasks say nothing."""
        return self._target_ is None and self.name in (AUTO, FIRST)


@dataclass(kw_only=True)
class LossConfig:
    """How far off an answer is, where it is one class: cross-entropy, unless something here is set. Scores have the
    plain cross-entropy as their `loss` all the same."""

    class_weights: Any = None
    """How much a row of each class counts: `balanced` (as much less as there are more of them: rows / (classes * rows
    of the class)), or a list of numbers in the order of the classes."""

    label_smoothing: float = 0.0
    """Share of the right answer that is spread over all classes (Szegedy et al. 2016)."""

    focal_gamma: float = 0.0
    """Focal loss: rows that are right already count less, by (1 - probability of their class) to this power (Lin et al.
    2017; 2 there). 0 switches it off."""

    def __post_init__(self) -> None:
        below_one(self, "loss", "label_smoothing")
        at_least(self, "loss", 0, "focal_gamma")
        weights = self.class_weights
        numbers = (
            isinstance(weights, list) and all(type(w) in (int, float) and w >= 0 for w in weights) and any(weights)
        )
        if weights not in (None, "balanced") and not numbers:
            raise ConfigError(f"loss.class_weights={weights}: must be balanced, or numbers as in [1,2.5]")

    @property
    def is_plain(self) -> bool:
        """Whether it is cross-entropy as it stands."""
        return self == LossConfig()


@dataclass(kw_only=True)
class AugmentConfig:
    """`task=image-classification`: how images of the train split are changed anew in every epoch. What is drawn depends
    on `seed`, epoch and row alone: a resumed run, and one on more processes, sees the same."""

    crop: float = 1.0
    """A part of the image of at least this share of its area, with sides of 3:4 to 4:3, stretched to the model's size
    (0.08 for ImageNet, 0.8 where the edges matter). 1 takes the whole image."""

    flip: float = 0.0
    """Probability with which left and right are exchanged (0.5 for photographs, 0 for letters and digits)."""

    rand_ops: int = 0
    """RandAugment (Cubuk et al. 2020): so many changes of colour or shape, drawn from 14."""

    rand_magnitude: int = 9
    """How strong they are, from 0 to 10."""

    mixup: float = 0.0
    """Mix every image with another one of the train split, and its class likewise, with a share drawn from
    Beta(mixup, mixup) (Zhang et al. 2018; 0.2 there). 0 switches it off."""

    cutmix: float = 0.0
    """Put a rectangle of another image into every image, its area drawn from Beta(cutmix, cutmix) (Yun et al. 2019; 1
    there). With `mixup` as well, either of the two with equal probability."""

    def __post_init__(self) -> None:
        at_least(self, "augment", 0, "flip", "rand_ops", "rand_magnitude", "mixup", "cutmix")
        if not 0 < self.crop <= 1:
            raise ConfigError(f"augment.crop={self.crop}: must be above 0 and at most 1 (the whole image)")
        for key, most in (("flip", 1), ("rand_magnitude", 10)):
            if getattr(self, key) > most:
                raise ConfigError(f"augment.{key}={getattr(self, key)}: must be at most {most}")

    @property
    def is_off(self) -> bool:
        """Whether images stay as they are."""
        return self == AugmentConfig()

    @property
    def mixes(self) -> bool:
        """Whether a row has shares of several classes."""
        return bool(self.mixup or self.cutmix)
