"""`task`: what is learned from a row of the data."""

from dataclasses import dataclass, field
from typing import Any

from ..checks import together
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
    def is_first(self) -> bool:
        """Whether this is one class a text, of which run keys from before there were several tasks say nothing."""
        return self._target_ is None and self.name in (AUTO, FIRST)
