"""Modules of the user's own that a configuration names, laid out for another machine."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..config import RunConfig
from ..config.targets import split_spec


@contextmanager
def own_modules(config: RunConfig, paths: list[Path]) -> Iterator[tuple[Path, list[str]]]:
    """Lay the modules and packages that the configuration names into a folder; yield it, and their names in it.

    Args:
        paths: where modules of the user's lie. One that another one imports is found beside it if it is in a package.
    """
    targets = [config.model._target_, config.optimizer._target_, config.schedule._target_]
    targets += [split_spec(spec)[0] for spec in (*config.callbacks.values(), *config.eval.extra_metrics.values())]
    tops = {name.split(".")[0] for name in (*filter(None, targets), *config.plugins)} - {"skytune"}
    with tempfile.TemporaryDirectory(prefix="skytune-own-") as folder:
        found = Path(folder)
        for top in sorted(tops):
            for path in paths:
                if (path / top).is_dir():
                    shutil.copytree(path / top, found / top, ignore=shutil.ignore_patterns("__pycache__", ".*"))
                elif (path / f"{top}.py").is_file():
                    shutil.copyfile(path / f"{top}.py", found / f"{top}.py")
                else:
                    continue
                break
        yield found, sorted(entry.name for entry in found.iterdir())
