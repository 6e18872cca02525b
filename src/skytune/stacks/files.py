"""Stack files (`configs/stacks/*.yaml`) and the machine that `--compute` names."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from ..config import ConfigError, from_dict
from ..config.cli_grammar import INSTANCE_TYPE
from ..launch.remote.machine import HERE

T = TypeVar("T")


@dataclass(kw_only=True)
class StackFile:
    """What a stack is made of; words of the command line come before it."""

    region: str | None = None
    """Region of the machines and the bucket; empty means that of the AWS profile or `AWS_DEFAULT_REGION`."""

    bucket: str | None = None
    """Bucket for checkpoints; empty makes one for this stack. One that is there already is used and left as it is."""

    compute: str | None = None
    """Machine of runs that name none: a preset of configs/compute or an instance type."""

    spot: bool = False
    """Spot machines, unless a run says otherwise."""

    keep_days: int = 30
    """Age in days at which checkpoints are deleted from a bucket that was made for this stack."""

    machine: dict[str, Any] = field(default_factory=dict)
    """Any other key of `compute` (`max_hourly_usd`, `idle_minutes_to_autostop`, `disk_size`, `image_id`, ...)."""

    def __post_init__(self) -> None:
        if self.keep_days < 1:
            raise ConfigError(f"keep_days={self.keep_days}: must be at least 1")


def read(configs: Path, name: str) -> StackFile:
    """Return the stack file of a name, or a given path's.

    Raises:
        ConfigError: there is none, or it says something that no stack has.
    """
    folder = configs / "stacks"
    file = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not file.is_file():
        known = ", ".join(sorted(each.stem for each in folder.glob("*.yaml"))) or "none"
        raise ConfigError(f"stack {name}: there is no {file} (there are: {known}); --file NAME takes another's")
    return checked(StackFile, _yaml(file), "", f"{file}: ")


def checked(cls: type[T], values: dict[str, Any], key: str, where: str = "") -> T:
    """Return values as what they should be.

    Raises:
        ConfigError: they are not; what a message says of keys of a run's own has no place here.
    """
    try:
        return from_dict(cls, values, key)
    except ConfigError as error:
        raise ConfigError(where + str(error).partition(" (a key of your own")[0]) from error


def machine(configs: Path, word: str | None) -> dict[str, Any]:
    """Return the keys of `compute` that a preset or an instance type stands for; of neither, none.

    Raises:
        ConfigError: there is no such preset, or it is one for this machine.
    """
    if not word:
        return {}
    if INSTANCE_TYPE.fullmatch(word):
        return {"instance_type": word}
    folder = configs / "compute"
    file = folder / f"{word}.yaml"
    presets = {each.stem: _yaml(each) for each in sorted(folder.glob("*.yaml"))}
    if not file.is_file():
        known = ", ".join(name for name, keys in presets.items() if machine_keys(keys)) or "none"
        raise ConfigError(f"--compute {word}: neither a preset for machines (there are: {known}) nor an instance type")
    found = machine_keys(presets[word])
    if not found:
        raise ConfigError(f"--compute {word}: is a preset for this machine, not for one in the cloud")
    return found


def machine_keys(preset: dict[str, Any]) -> dict[str, Any]:
    """Return what a preset says of the machine; devices and the fast path are the run's own affair."""
    return {key: value for key, value in preset.items() if key not in HERE}


def _yaml(file: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{file}, line {line}: is no YAML: {error.problem}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{file}: must be keys and values")
    return found
