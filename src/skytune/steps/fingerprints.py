"""What a step's result depends on besides its inputs: code, package versions, the user's own modules.

ZenML's cache looks at a step's parameters, its inputs' ids and the source of the step function, not at the modules that
function calls. So these hashes are passed to the steps as parameters.

The code of a step is the set of this package's modules that its work imports, found by following import statements
(those inside functions too) from the module that does the work. It is compared as a syntax tree without docstrings:
comments and layout do not count, a changed default does.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import skytune

from ..common.files import replacing
from ..common.json import load_json
from ..config import PACKAGED, RunConfig, to_dict
from ..config.folders import home
from ..launch.run_dir import deciding_metrics
from ..models.hashing import parse
from ..tasks.own_metrics import module_script

ROOTS = {
    "load_data": ("skytune.data.prepare", "skytune.data.tables", "skytune.tasks"),
    "train_model": ("skytune.training.trainer",),
    "evaluate_model": ("skytune.report", "skytune.tasks", "skytune.training.outputs"),
}
"""Modules that do the work of each step."""

PACKAGES = {
    "load_data": ("datasets", "transformers", "tokenizers", "pyarrow", "numpy"),
    "train_model": ("torch", "transformers", "accelerate", "safetensors", "numpy"),
    "evaluate_model": ("evaluate", "scikit-learn", "scipy", "numpy"),
}
"""Packages whose version may change a step's result."""

PACKAGE = Path(skytune.__file__).resolve().parent

UNCOUNTED = ("skytune.config", "skytune.job")
"""Typed values and file layout: what they hold reaches the steps as parameters anyway."""


def fingerprints(step: str, config: RunConfig) -> dict[str, str]:
    """Return `code`, `versions` and, where the config names modules of the user's for one step, `own`."""
    own_file = PACKAGE / "steps" / f"{step}.py"  # ZenML itself would compare its docstring, too (see `parameters.on`)
    found = {
        "code": code_hash(ROOTS[step], _parsed(own_file, step)[0]),
        "versions": versions(PACKAGES[step]),
    }
    modules, scripts = _own(step, config)
    if modules or scripts:
        trees = [_parsed(path, path.stem)[0] for path in scripts]
        found["own"] = code_hash(modules, *trees, everything=True)
    return found


def versions(packages: tuple[str, ...]) -> str:
    """Return the installed versions as text, without importing the packages."""
    found = []
    for name in packages:
        try:
            found.append(f"{name}=={metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} absent")
    return " ".join(found)


def code_hash(roots: tuple[str, ...], *more: str, everything: bool = False) -> str:
    """Return a hash of the modules reached from `roots` (this package's, or with `everything` the user's as well), and
    of `more` trees."""
    digest = hashlib.sha256("".join(more).encode())
    for module, tree in sorted(_closure(roots, everything).items()):
        digest.update(f"{module}\n{tree}\n".encode())
    return digest.hexdigest()[:16]


def _closure(roots: tuple[str, ...], everything: bool) -> dict[str, str]:
    seen: dict[str, str] = {}
    waiting, looked_at = list(roots), set[str]()
    with _remembering() as known:
        while waiting:
            module = waiting.pop()
            if module in looked_at or module.startswith(UNCOUNTED):
                continue
            looked_at.add(module)
            path = _source(module, everything)
            if path is None:
                continue
            # Of the user's own modules there are few; two edits within a tick of the clock must not be one.
            own = not path.is_relative_to(PACKAGE)
            seen[module], imports = _parsed(path, module) if own else _known(known, path, module)
            waiting += imports
    return seen


@contextlib.contextmanager
def _remembering() -> Iterator[dict[str, Any]]:
    """Give what is known of this package's files, by path, from one command to the next: parsing them takes half a
    second. What is added in the block is kept; a home that cannot be written only means parsing again."""
    file = home() / "hashes" / f"code-{sys.version_info.major}.{sys.version_info.minor}.json"
    known = _memory(file)
    before = set(known)
    yield known
    if known.keys() != before:
        with contextlib.suppress(OSError), replacing(file, str(os.getpid())) as part:
            part.write_text(json.dumps(known), encoding="utf-8")


@functools.cache
def _memory(file: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        return dict(load_json(file.read_bytes(), dict))
    return {}


def _known(known: dict[str, Any], path: Path, module: str) -> tuple[str, list[str]]:
    status = path.stat()
    key = f"{path} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_size}"
    with contextlib.suppress(KeyError, ValueError, TypeError):
        tree, imports = known[key]
        return str(tree), list(imports)
    for old in [old for old in known if old.startswith(f"{path} ")]:
        del known[old]
    known[key] = tree, imports = _parsed(path, module)
    return tree, imports


def _source(module: str, everything: bool) -> Path | None:
    """Return the file of a module of this package, or of the user's (neither standard library nor installed)."""
    if module.split(".")[0] == "skytune":  # by path: looking it up as a module would import its parents
        base = PACKAGE.joinpath(*module.split(".")[1:])
        return next((file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file()), None)
    path = _own_source(module) if everything and module else None
    foreign = (Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve())
    return None if path is None or any(root in path.parents for root in foreign) else path


def _own_source(module: str) -> Path | None:
    """Return the file of a module on the path. Below the outermost package it is looked for part by part: asking Python
    for the whole name would run the packages' code."""
    name, *parts = module.split(".")
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    for part in parts:
        name = f"{name}.{part}"
        folders = spec.submodule_search_locations if spec else None
        spec = PathFinder.find_spec(name, folders) if folders else None
    return Path(spec.origin).resolve() if spec and spec.origin and spec.origin.endswith(".py") else None


def _parsed(path: Path, module: str) -> tuple[str, list[str]]:
    """Return (hash of the syntax tree without docstrings, modules it imports)."""
    tree = parse(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    imports: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, [base, node.module or ""]))
            imports += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), imports


def _own(step: str, config: RunConfig) -> tuple[tuple[str, ...], list[Path]]:
    """Return the modules of everything that the config gives to a step by import path, the packages that they lie in,
    and the files of `evaluate` modules."""
    specs: list[Any] = [to_dict(config.task), *([to_dict(config.model)] if step != "evaluate_model" else [])]
    folders: list[str] = []
    if step == "load_data":
        specs.append(to_dict(config.data))
    elif step == "train_model":
        specs += [to_dict(config.optimizer), to_dict(config.schedule)]
        specs += [*config.callbacks.values(), *deciding_metrics(config).values()]
    else:
        specs += config.eval.extra_metrics.values()
        folders = [name for name in config.eval.metrics or () if name not in PACKAGED]
    modules = [spec["_target_"].rpartition(".")[0] for spec in specs if spec["_target_"]] + list(config.plugins)
    # What comes before the last dot may be a class (`module.Class.method`); a name that is no module is left out later.
    packages = {".".join(m.split(".")[:n]) for m in modules for n in range(1, m.count(".") + 2)}
    return tuple(sorted(packages)), [path for path in map(module_script, folders) if path.is_file()]
