"""The part of a network that answers a task's question: which class of transformers has it, and what it is told."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

KINDS = {
    "AutoModelForSequenceClassification": "text classifier",
    "AutoModelForTokenClassification": "token classifier",
    "AutoModelForImageClassification": "image classifier",
    "AutoModelForCausalLM": "language model",
}
"""Heads that are built and loaded, as messages call them."""

OWN = "skytune_"
"""What settings of ours begin with; transformers keeps them in config.json and looks at none."""


@dataclass(frozen=True)
class Head:
    """What a task asks of a network. The defaults are those of one class a text."""

    auto: str = "AutoModelForSequenceClassification"
    """Class of transformers that builds and loads it, one of `KINDS`."""

    settings: Mapping[str, Any] = field(default_factory=lambda: {"problem_type": "single_label_classification"})
    """What is written into the model's configuration. Those that begin with `skytune_` come back with a saved model, a
    module of one's own included."""

    ready: Callable[[Any, Mapping[str, Any]], None] | None = None
    """Called with the network and the splits (`TokenTable`s by name) before anything else is done with them."""

    stream: Callable[[Any, Any, Any], str] | None = None
    """Whether rows can be laid out one after the other without a difference (`TokenTable.stream`): tried with the
    network, the train split and the context of a forward pass; returns why not. None: they cannot."""

    loss: Callable[[Any, Any], Any] | None = None
    """Called with logits and labels in the place of the model's own loss: returns the mean over what `weigh` counts."""


TEXT = Head()


def auto_class(name: str) -> Any:
    """Return the class of transformers that builds and loads this kind of head."""
    import transformers

    assert name in KINDS, name
    return getattr(transformers, name)


def auto_of(architectures: Any) -> str | None:
    """Return which of `KINDS` a `config.json` names; None where its model has no such head."""
    names = [str(name) for name in architectures or []]
    return next((auto for auto in KINDS if any(auto.removeprefix("AutoModel") in name for name in names)), None)


def of_ours(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those settings that mean nothing to transformers."""
    return {key: value for key, value in settings.items() if key.startswith(OWN)}


def own_settings(model: Any) -> dict[str, Any]:
    """Return the settings of ours that a model has, or brought along when it was loaded."""
    told: Any = getattr(model, "config", None)
    found = told.to_dict() if hasattr(told, "to_dict") else {}
    found = {**found, **(getattr(model, "skytune_target", None) or {}).get("settings", {})}
    return of_ours(found)


def give_settings(model: Any, settings: Mapping[str, Any]) -> None:
    """Have a model bring settings of ours along when it is saved."""
    own = of_ours(settings)
    if own and hasattr(model, "skytune_target"):
        model.skytune_target = {**model.skytune_target, "settings": {**model.skytune_target.get("settings", {}), **own}}
    elif own and getattr(model, "config", None) is not None:
        model.config.update(own)
