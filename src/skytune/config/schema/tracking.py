"""`tracker`: where the numbers of a run are shown while it trains. None of it decides the result."""

import os
from dataclasses import dataclass, field
from enum import Enum
from importlib.util import find_spec
from typing import Any

from ..errors import ConfigError, UserError
from ..installing import add_extra

EXTRAS = {"tensorboard": "train", "wandb": "wandb"}
"""Trackers, which are named like their packages, and the extra of this package that installs each."""

AUTO = "auto"

OURS = ("config", "dir", "resume")
"""Arguments of `wandb.init` that the run itself decides."""


class WandbMode(str, Enum):
    """How Weights & Biases is used."""

    online = "online"
    offline = "offline"
    disabled = "disabled"


@dataclass(kw_only=True)
class WandbConfig:
    """Weights & Biases. The key comes from `WANDB_API_KEY` or `wandb login`, never from here."""

    project: str | None = None
    """The project; empty follows WANDB_PROJECT, else `skytune`."""

    mode: WandbMode | None = None
    """`online`; `offline` writes files for `wandb sync`; `disabled` does nothing. Empty follows WANDB_MODE, else
    `online`. What cannot go online (no network, a bad key) is written as with `offline`, and said once."""

    args: dict[str, Any] = field(default_factory=dict)
    """Whatever else `wandb.init` takes, such as `entity`, `group`, `tags`, `notes`, `save_code`, `job_type` or
    `settings`."""

    def __post_init__(self) -> None:
        for name in self.args:
            if name in OURS:
                raise ConfigError(f"tracker.wandb.args.{name}: the run decides it")
            if name in self.__dataclass_fields__:
                raise ConfigError(f"tracker.wandb.args.{name}: has a key of its own, tracker.wandb.{name}")

    def effective_mode(self) -> str:
        """Return the mode: what is set here, else WANDB_MODE, else online."""
        return self.mode.value if self.mode else os.environ.get("WANDB_MODE") or WandbMode.online.value


@dataclass(kw_only=True)
class TrackerConfig:
    """Trackers get the numbers of `history.jsonl` as they come up, and the configuration without its secrets."""

    names: list[str] = field(default_factory=lambda: [AUTO])
    """`tensorboard`, `wandb`, both, or `[]` for none. `auto` is tensorboard where its package is installed; a tracker
    that is named and not installed is refused."""

    dir: str | None = None
    """Folder in which every run gets a folder for its trackers' files. Empty means the run's own, `outputs/trackers`,
    which starts empty whenever the run is started or continued (a tracker is given the whole history then)."""

    wandb: WandbConfig = field(default_factory=WandbConfig)
    """Weights & Biases."""

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in (AUTO, *EXTRAS):
                raise ConfigError(
                    f"tracker.names: unknown tracker '{name}'; allowed: {', '.join((AUTO, *EXTRAS))}, or [] for none"
                )
        if self.dir == "":
            raise ConfigError("tracker.dir is empty: give a folder, or null for the run's own")

    def wanted(self) -> list[str]:
        """Return the trackers to be used, each once, in the order of `names`."""
        names = dict.fromkeys("tensorboard" if name == AUTO else name for name in self.names)
        return [name for name in names if name != "wandb" or self.wandb.effective_mode() != WandbMode.disabled.value]


def check_trackers_installed(tracker: TrackerConfig) -> None:
    """Refuse a tracker that was asked for by name and whose package is not installed in this Python.

    Raises:
        UserError: with the way to install it.
    """
    for name in tracker.wanted():
        if name in tracker.names and find_spec(name) is None:
            raise UserError(f"tracker={name}: {not_installed(name)}, or go on with tracker=none")


def not_installed(name: str) -> str:
    """Return that a tracker's package is missing, and how to install it."""
    return f"the package {name} is not installed here: {add_extra(EXTRAS[name])}"
