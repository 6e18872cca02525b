"""`early_stopping`, `ema`, `upload`: what the package's own callbacks do; each is off by default."""

from dataclasses import dataclass

from ..checks import at_least, together
from ..errors import ConfigError


@dataclass(kw_only=True)
class EarlyStoppingConfig:
    """Ending a run whose validations get no better; the metric is `checkpoint.metric`."""

    patience: int | None = None
    """End after so many validations in a row without a better one. Empty switches it off."""

    min_delta: float = 0.0
    """A validation counts as better if it beats the best one by more than this."""

    def __post_init__(self) -> None:
        at_least(self, "early_stopping", 1, "patience", more=", or null for off")
        at_least(self, "early_stopping", 0, "min_delta")
        together(self, "early_stopping", "min_delta", "patience")


@dataclass(kw_only=True)
class EmaConfig:
    """An exponential moving average of the weights, which is what is validated, selected and handed on."""

    decay: float | None = None
    """The share of the old average that stays in every step, e.g. 0.999; early steps keep less, namely
    (1 + step) / (10 + step). Costs one more copy of the trainable weights on the device, and in every checkpoint. Empty
    switches it off."""

    def __post_init__(self) -> None:
        if self.decay is not None and not 0 < self.decay < 1:
            raise ConfigError(f"ema.decay={self.decay}: must lie between 0 and 1, or be null for off")


@dataclass(kw_only=True)
class UploadConfig:
    """A copy of the trained model elsewhere."""

    url: str | None = None
    """Where the model goes when the run ends: `hf://user/name`, `s3://bucket/folder`, any other fsspec URL, a folder.
    An upload that fails is told; the model stays in the run's folder. A result out of the cache is not uploaded. Empty
    uploads nothing."""

    private: bool = True
    """Whether a repository that the upload makes on the Hub is private."""

    def __post_init__(self) -> None:
        if self.url is None:
            return
        parts = self.url.removeprefix("hf://").strip("/").split("/")
        if self.url.startswith("hf://") and (len(parts) < 2 or parts[0] in ("datasets", "spaces") or not all(parts)):
            raise ConfigError(f"upload.url={self.url}: write hf://user/name (a model repository), or with a folder")
