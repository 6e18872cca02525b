"""What a file wants to have run (a model folder's `skytune_model.json`, a store's `run.json`): it is called only where
the command itself names the module that it lies in, or says `trust=true`."""

import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ..common.text import shorten
from .errors import UserError
from .targets import locate

REACHING = (
    "upload.url",
    "upload.template",
    "launch.hosts",
    "launch.share",
    "tracker.dir",
    "tracker.wandb.args",
    "compute.image_id",
    "compute.resources",
)
"""Keys whose values have things sent elsewhere, or run there."""


def wishes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return, by key, what the plain values of a whole configuration want to have run or sent: import paths, modules,
    folders of metrics, places."""
    found = {key: value for key, value in flat(values) if key.rpartition(".")[2] == "_target_" and value}
    for key in ("plugins", *REACHING):
        group: Any = values
        for part in key.split("."):
            group = group.get(part) if isinstance(group, Mapping) else None
        if group:
            found[key] = group
    folders = [name for name in values.get("eval", {}).get("metrics") or () if "/" in name]
    return {**found, **({"eval.metrics": folders} if folders else {})}


def approve(wanted: Mapping[str, Any], modules: Collection[str], trust: bool, where: str) -> None:
    """Return where everything that a file wants may be had; see `wishes`.

    An optimizer of torch's own may be named by anybody.

    Args:
        modules: those that the command itself names.
        trust: whether it says `trust=true`.
        where: the file, for the message.

    Raises:
        UserError: with all that the file wants and nobody has allowed; something that cannot be what its key asks for.
    """

    def named(key: str, value: Any) -> bool:
        if key == "plugins":
            return set(value) <= set(modules)
        if not key.endswith("_target_"):
            return False
        return _torch_optimizer(key, value) or any(str(value).startswith(f"{module}.") for module in modules)

    refused = {key: value for key, value in wanted.items() if not (trust or named(key, value))}
    if refused:
        listed = ", ".join(f"{key}={_short(value)}" for key, value in refused.items())
        raise UserError(
            f"{where} wants {listed}: code and places that a file names are used only where the command names them "
            "too (plugins=[module], or the key itself), or with trust=true"
        )
    for key, target in wanted.items():
        if not key.endswith("_target_"):
            continue
        found = locate(str(target), key)
        if not _of_kind(found, key):
            raise UserError(f"{where} wants {key}={target}: that is no {key.split('.')[0]}")
        module = str(getattr(found, "__module__", ""))
        if not (trust or _torch_optimizer(key, target) or any(f"{module}.".startswith(f"{m}.") for m in modules)):
            raise UserError(f"{where} wants {key}={target}: that comes from {module}; trust=true allows it")


def flat(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the scalars of nested plain values with their dotted keys."""
    if isinstance(values, Mapping | list):
        for key, value in values.items() if isinstance(values, Mapping) else enumerate(values):
            yield from flat(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, values


def _torch_optimizer(key: str, target: Any) -> bool:
    return key == "optimizer._target_" and re.fullmatch(r"torch\.optim\.[A-Z]\w*", str(target)) is not None


def _of_kind(found: Any, key: str) -> bool:
    """Whether something can be what a key asks for: a class of its kind, or a function written in Python."""
    if key.startswith("task."):
        return inspect.isfunction(found) or hasattr(found, "collect")
    if not inspect.isclass(found):
        return inspect.isfunction(found) or inspect.ismethod(found)
    group = key.split(".")[0]
    if group == "model":
        from torch.nn import Module

        return issubclass(found, Module)
    if group == "optimizer":
        from torch.optim import Optimizer

        return issubclass(found, Optimizer)
    if group == "eval":
        return hasattr(found, "compute")
    return group == "data" or (group == "callbacks" and any(name.startswith("on_") for name in dir(found)))


def _short(value: Any) -> str:
    text = f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)
    return shorten(" ".join(text.split()))
