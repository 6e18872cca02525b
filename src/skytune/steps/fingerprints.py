"""What a step's result depends on besides its inputs: code, package versions, the user's own modules.

ZenML's cache looks at a step's parameters, its inputs' ids and the source of the step function, not at the modules that
function calls. So these hashes are passed to the steps as parameters.

The code of a step is the set of this package's modules that its work imports, found by following import statements
(those inside functions too) from the module that does the work. It is compared as a syntax tree without docstrings:
comments and layout do not count, a changed default does.
"""

import ast
import functools
import hashlib
import importlib.util
import sys
from importlib import metadata
from pathlib import Path

import skytune

from ..config import RunConfig
from ..config.targets import split_spec

ROOTS = {
    "load_data": ("skytune.data.prepare", "skytune.data.tables"),
    "train_model": ("skytune.training.session",),
    "evaluate_model": ("skytune.report", "skytune.training.metrics", "skytune.training.outputs"),
}
"""Modules that do the work of each step."""

PACKAGES = {
    "load_data": ("datasets", "transformers", "tokenizers", "pyarrow", "numpy"),
    "train_model": ("torch", "transformers", "accelerate", "safetensors", "numpy"),
    "evaluate_model": ("evaluate", "numpy"),
}
"""Packages whose version may change a step's result."""

PACKAGE = Path(skytune.__file__).resolve().parent

UNCOUNTED = ("skytune.config", "skytune.job")
"""Typed values and file layout: what they hold reaches the steps as parameters anyway."""


def fingerprints(step: str, config: RunConfig) -> dict[str, str]:
    """Return `code`, `versions` and, where the config names modules of the user's, `own` for one step."""
    found = {"code": code_hash(ROOTS[step]), "versions": versions(PACKAGES[step])}
    own = _own_modules(config)
    if own:
        found["own"] = code_hash(own, everything=True)
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


def code_hash(roots: tuple[str, ...], everything: bool = False) -> str:
    """Return a hash of the modules reached from `roots`: this package's, or with `everything` the user's as well."""
    digest = hashlib.sha256()
    for module, tree in sorted(_closure(roots, everything).items()):
        digest.update(f"{module}\n{tree}\n".encode())
    return digest.hexdigest()[:16]


def _closure(roots: tuple[str, ...], everything: bool) -> dict[str, str]:
    seen: dict[str, str] = {}
    waiting, looked_at = list(roots), set[str]()
    while waiting:
        module = waiting.pop()
        if module in looked_at or module.startswith(UNCOUNTED):
            continue
        looked_at.add(module)
        path = _source(module, everything)
        if path is None:
            continue
        tree, imports = _parsed(path, path.stat().st_mtime_ns, module)
        seen[module] = tree
        waiting += imports
    return seen


def _source(module: str, everything: bool) -> Path | None:
    """Return the file of a module of this package, or of the user's (neither standard library nor installed)."""
    if module.split(".")[0] == "skytune":  # by path: looking it up as a module would import its parents
        base = PACKAGE.joinpath(*module.split(".")[1:])
        return next((file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file()), None)
    path = _own_source(module) if everything and module else None
    foreign = (Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve())
    return None if path is None or any(root in path.parents for root in foreign) else path


def _own_source(module: str) -> Path | None:
    """Return the file of a module on the path.

    Below the outermost package it is looked for by name: asking Python would run the packages' code.
    """
    top, *parts = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    if not parts:
        return Path(spec.origin).resolve() if spec.origin and spec.origin.endswith(".py") else None
    for folder in spec.submodule_search_locations or []:
        base = Path(folder).resolve().joinpath(*parts)
        for file in (base / "__init__.py", base.with_name(base.name + ".py")):
            if file.is_file():
                return file
    return None


@functools.lru_cache(maxsize=512)
def _parsed(path: Path, changed_ns: int, module: str) -> tuple[str, tuple[str, ...]]:
    """Return (syntax tree as text without docstrings, modules it imports)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    imports: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, [base, node.module or ""]))
            imports += [base, *(f"{base}.{alias.name}" for alias in node.names)]
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [item for item in node.body if not _is_docstring(item)]
    return ast.dump(tree), tuple(imports)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _own_modules(config: RunConfig) -> tuple[str, ...]:
    """Return the modules of everything that the config gives by import path, and the packages that they lie in."""
    targets = [config.model._target_, config.data._target_, config.optimizer._target_, config.schedule._target_]
    targets += [split_spec(spec)[0] for spec in (*config.callbacks.values(), *config.eval.extra_metrics.values())]
    modules = [target.rpartition(".")[0] for target in targets if target] + list(config.plugins)
    # What comes before the last dot may be a class (`module.Class.method`); a name that is no module is left out later.
    return tuple(sorted({".".join(m.split(".")[:n]) for m in modules for n in range(1, m.count(".") + 2)}))
