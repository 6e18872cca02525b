"""What takes the place of a model whose files are not on this machine, while the weights come from a checkpoint.

A folder with the model's `config.json`, its tokenizer and the file below stands in for the model's own. The network is
built from it with weights that mean nothing: who builds it must load a checkpoint (`AWAITS`) or stop.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..config import ModelConfig
from ..job import read_json, write_json

MARK = "skytune_stand_in.json"
"""File that marks such a folder; it names the parameters that no file of weights held."""

AWAITS = "skytune_awaits_checkpoint"
"""Attribute of a module whose weights mean nothing until a checkpoint is loaded."""

NEW = "skytune_new_parameters"
"""Attribute of a module that `build_model` made: names of parameters that no file of weights held."""


@dataclass(frozen=True)
class StandIn:
    """One model's stand-in, for this process."""

    model: ModelConfig
    folder: str
    fingerprint: str
    """Of the model's own files, as the machine that had them found it."""

    def names(self) -> set[str]:
        """Return the names in the configuration that mean the folder here."""
        own = None if self.model._target_ and self.model.tokenizer else self.model.name
        return {name for name in (own, self.model.tokenizer) if name}


_current: StandIn | None = None


def stand_in(model: ModelConfig, folder: str, fingerprint: str, new_parameters: Iterable[str]) -> None:
    """Let a folder take the place of a model's and its tokenizer's files from here on.

    Args:
        folder: holds `config.json` (not for a `_target_`) and the tokenizer's files.
        fingerprint: of the files that are not here.
        new_parameters: names of parameters that no file of weights held.
    """
    global _current
    write_json(Path(folder) / MARK, {"new_parameters": sorted(new_parameters)})
    _current = StandIn(model, folder, fingerprint)


def standing_in(model: ModelConfig) -> StandIn | None:
    """Return what stands in for a model, None where its own files are used."""
    keys = ("name", "revision", "tokenizer", "_target_")
    same = _current is not None and all(getattr(_current.model, key) == getattr(model, key) for key in keys)
    return _current if same else None


def folder_for(name: str) -> str | None:
    """Return the folder that a name of a model or tokenizer means while something stands in for it."""
    return _current.folder if _current is not None and name in _current.names() else None


def new_parameters(folder: str) -> set[str] | None:
    """Return the parameters that were new in the model that a folder stands in for; None for an ordinary folder."""
    mark = Path(folder) / MARK
    return set(read_json(mark)["new_parameters"]) if mark.is_file() else None
