"""A small search on the tiny model, and one process from which all workers of these tests are forked."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skytune.config import RunConfig, from_dict
from skytune.launch import LocalLauncher
from skytune.launch.warm import WarmWorkers


@pytest.fixture(scope="session")
def sentences_file(tmp_path_factory: pytest.TempPathFactory, sentences: Callable[..., Any]) -> Path:
    path = tmp_path_factory.mktemp("sentences") / "rows.tsv"
    rows = dict(sentences(400, seed=3))
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows.items()), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def warm() -> Iterator[Callable[[], LocalLauncher]]:
    """Return a maker of launchers whose workers are forked."""
    workers = WarmWorkers()
    yield lambda: LocalLauncher(warm=workers)
    workers.close()


@pytest.fixture
def values(tiny_model: Path, sentences_file: Path) -> Callable[..., dict[str, Any]]:
    """Return a maker of searches as plain values: keywords are keys of `search`, `run` those of the whole."""

    def make(run: dict[str, Any] | None = None, **search: Any) -> dict[str, Any]:
        base: dict[str, Any] = {
            "pipeline": "search",
            "model": {"name": str(tiny_model)},
            "data": {"source": "files", "name": "files", "train": str(sentences_file), "max_rows": 72},
            "batch": {"global_size": 8},
            "eval": {"metrics": ["accuracy"], "every_epochs": 0},
            "checkpoint": {"select": "last"},
            "tracker": {"names": []},
            "launch": {"threads": 1},
            "compute": {"device": "cpu"},
        }
        for key, value in (run or {}).items():
            base[key] = {**base[key], **value} if isinstance(value, dict) and key in base else value
        space = {"optimizer.lr": "loguniform(1e-4,3e-2)", "model.dropout": "uniform(0,0.3)"}
        return {**base, "search": {"name": "t", "space": space, "metric": "loss", "confirm": 0, **search}}

    return make


@pytest.fixture
def design(values: Callable[..., dict[str, Any]]) -> Callable[..., RunConfig]:
    """Return a maker of searches."""
    return lambda run=None, **search: from_dict(RunConfig, values(run, **search))
