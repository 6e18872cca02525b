"""`early_stopping`, `ema`, `upload`: what the package's own callbacks do; each is off by default."""

import re
from dataclasses import dataclass, field

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
    """A copy of the trained model elsewhere, with a card that says what it is and how well it does."""

    url: str | None = None
    """Where the model goes when it has been scored: `hf://user/name`, `s3://bucket/folder`, any other fsspec URL, a
    folder. An upload that fails is told, and ends the command with 76; the model stays in the run's folder, and
    `pipeline=publish checkpoint=PATH` does it later, without what has arrived already. Empty uploads nothing."""

    private: bool = True
    """Whether a repository that the upload makes on the Hub is private."""

    revision: str | None = None
    """Branch on the Hub that the model goes to, made where there is none. Empty means `main`."""

    tag: str | None = None
    """Tag on the Hub for this very model, such as `v1.2`. A tag that another model has is refused."""

    license: str | None = None
    """Licence in the card, as the Hub writes it (`apache-2.0`, `mit`, `other`). Empty leaves the line out: nobody but
    you knows what base model and data allow."""

    language: list[str] = field(default_factory=list)
    """Languages of the texts for the card, as in ISO 639-1: `[en,de]`."""

    template: str | None = None
    """File with a card's text of your own (Markdown for Jinja, as `huggingface_hub.ModelCard` takes it) in place of
    `src/skytune/release/card.md.jinja`, which names what it is given."""

    def __post_init__(self) -> None:
        together(self, "upload", "tag", "url")
        together(self, "upload", "revision", "url")
        for key in ("revision", "tag"):
            name = getattr(self, key)
            if name is None:
                continue
            if not str(self.url).startswith("hf://"):
                raise ConfigError(f"upload.{key}={name}: has an effect only with upload.url=hf://user/name")
            if not re.fullmatch(r"\w[\w.+-]*(/\w[\w.+-]*)*", name) or ".." in name or name.endswith((".", ".lock")):
                raise ConfigError(f"upload.{key}={name!r}: letters, digits and . _ - + / are allowed")
        for code in self.language:
            if not re.fullmatch(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*", code):
                raise ConfigError(f"upload.language: {code!r} is no code of a language, such as en or pt-BR")
        if self.license is not None and not re.fullmatch(r"[\w.+-]+", self.license):
            raise ConfigError(f"upload.license={self.license!r}: write it as the Hub does, such as apache-2.0 or other")
        if self.url is None:
            return
        parts = self.url.removeprefix("hf://").strip("/").split("/")
        if self.url.startswith("hf://") and (len(parts) < 2 or parts[0] in ("datasets", "spaces") or not all(parts)):
            raise ConfigError(f"upload.url={self.url}: write hf://user/name (a model repository), or with a folder")
