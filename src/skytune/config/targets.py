"""Things of your own by import path (`_target_`) or by name (`@configurable`), without Hydra, so that workers can."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from .errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

GROUPS = ("model", "data", "optimizer", "schedule", "metric", "callback")
"""Config groups that take things of your own."""


@dataclass(frozen=True)
class Configurable:
    """One registered function or class."""

    group: str
    name: str
    target: str
    obj: Callable[..., Any]


registry: dict[tuple[str, str], Configurable] = {}
"""What `@configurable` registered in this process, by (group, name)."""


def configurable(group: str, name: str) -> Callable[[F], F]:
    """Register a function or class as preset `name` of `group`: it appears in `--help` and can be chosen by name.

    The decorated object is returned unchanged, so its module imports on a worker that has no Hydra.

    Raises:
        ConfigError: an unknown group, a name that is taken, or something without an import path (a nested function).
    """
    if group not in GROUPS:
        raise ConfigError(f"@configurable('{group}', '{name}'): unknown group; allowed: {', '.join(GROUPS)}")

    def register(obj: F) -> F:
        qualname = obj.__qualname__
        if "<locals>" in qualname:
            raise ConfigError(f"@configurable('{group}', '{name}'): {qualname} must stand at the top of its module")
        module = obj.__module__
        if module == "__main__":
            raise ConfigError(f"@configurable('{group}', '{name}'): put it in a module of its own, not the main script")
        target = f"{module}.{qualname}"
        taken = registry.get((group, name))
        if taken is not None and taken.target != target:
            raise ConfigError(f"@configurable('{group}', '{name}'): the name is taken by {taken.target}")
        registry[group, name] = Configurable(group, name, target, obj)
        return obj

    return register


def import_plugins(modules: list[str]) -> None:
    """Import the user's modules so that their `@configurable` things are registered.

    Raises:
        ConfigError: a module that cannot be imported, with the reason.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"plugins: cannot import '{module}': {type(error).__name__}: {error}") from error


def locate(target: str, key: str = "_target_") -> Any:
    """Return the object at an import path such as `package.module.Class`.

    Raises:
        ConfigError: nothing there; the message names the part that is missing.
    """
    parts = target.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ConfigError(f"{key}={target}: must be an import path like package.module.Class")
    for cut in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:cut])
        try:
            found: Any = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
                raise ConfigError(f"{key}={target}: importing '{name}' failed: {error}") from error
            continue
        except Exception as error:
            raise ConfigError(f"{key}={target}: importing '{name}' failed: {type(error).__name__}: {error}") from error
        for part in parts[cut:]:
            if not hasattr(found, part):
                raise ConfigError(f"{key}={target}: module '{name}' has no '{part}'")
            found = getattr(found, part)
        return found
    raise ConfigError(f"{key}={target}: no module '{parts[0]}' (folders searched: this one and PYTHONPATH)")


def instantiate(
    target: str, args: dict[str, Any], *positional: Any, offered: dict[str, Any] | None = None, key: str = "_target_"
) -> Any:
    """Call the object at `target` with `args`, and with those of `offered` that its signature names.

    `args` win over `offered`. A callable with `**kwargs` gets everything that is offered only if it names it: things
    nobody asked for would end in the arguments of some base class.

    Raises:
        ConfigError: arguments that do not fit the signature.
    """
    from .secrets import resolve_secrets  # it knows `RunConfig`, which knows what is configurable

    function, args = locate(target, key), resolve_secrets(args)
    if not callable(function):
        raise ConfigError(f"{key}={target}: is not callable")
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        parameters = None
    extra = {n: v for n, v in (offered or {}).items() if parameters and n in parameters and n not in args}
    if parameters is not None:
        try:
            inspect.signature(function).bind(*positional, **args, **extra)
        except TypeError as error:
            raise ConfigError(f"{key}={target}: {error}") from error
    return function(*positional, **args, **extra)


def split_spec(spec: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return (import path, arguments) of a `{_target_: ..., ...}` group."""
    from .secrets import resolve_secrets

    arguments = {name: value for name, value in spec.items() if name not in ("_target_", "args")}
    return spec["_target_"], resolve_secrets({**arguments, **(spec.get("args") or {})})


def user_paths() -> list[str]:
    """Return the folders in which a worker must look for the user's modules: this process's path entries that are
    neither the interpreter's own nor installed packages."""
    prefixes = tuple({os.path.realpath(p) for p in (sys.prefix, sys.base_prefix)})
    found = []
    for entry in sys.path:
        path = os.path.realpath(entry or os.getcwd())
        if os.path.isdir(path) and not path.startswith(prefixes) and path not in found:
            found.append(path)
    return found
