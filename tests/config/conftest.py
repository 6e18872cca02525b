"""Helpers of the config room: composing, a module of the user's own, and the command in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from skytune.config import RunConfig, targets

ROOT = Path(__file__).resolve().parents[2]

MODULE = '''
"""A module of the user's own."""
from skytune.config.targets import configurable


@configurable("model", "mine")
def build(width: int = 16, activation: str = "relu", num_labels: int = 2, vocab_size: int | None = None):
    """A small model of mine."""
    return {"width": width, "activation": activation, "num_labels": num_labels, "vocab_size": vocab_size}


@configurable("data", "mine")
def rows(count: int = 10, language: str | None = None):
    """A few rows of mine."""
    return count, language


@configurable("optimizer", "mine")
class Sign:
    """Steps by sign."""

    def __init__(self, params, lr: float = 0.25, weight_decay: float = 0.5, nesterov: bool = False):
        self.lr, self.nesterov = lr, nesterov


@configurable("schedule", "mine")
def steps(step, total_steps, floor: float = 0.1):
    """Down to a floor."""
    return max(floor, 1 - step / total_steps)


@configurable("metric", "mine")
def fbeta(predictions, references, beta: float = 2.0, logits=None):
    """F-beta."""
    return beta if logits is None else -beta


@configurable("callback", "mine")
class Greeter:
    """Says hello."""

    def __init__(self, greeting: str = "hello", config=None):
        self.greeting, self.config = greeting, config

    def on_run_start(self, run):
        print(self.greeting)
'''


@pytest.fixture
def compose() -> Callable[..., RunConfig]:
    """Return a function that composes the repository's presets with overrides."""
    from skytune.config.compose import compose_run

    return lambda *overrides, **options: compose_run(ROOT / "configs", list(overrides), **options)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module on the path that registers one thing in every group; everything is as before afterwards."""
    folder, name = tmp_path / "modules", f"mine_{tmp_path.name.replace('-', '_')}"
    folder.mkdir()
    (folder / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(targets, "registry", registry := dict(targets.registry))
    for user in ("skytune.config.help", "skytune.config.compose"):
        monkeypatch.setattr(f"{user}.registry", registry)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))
    return name


@pytest.fixture
def command() -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Return a function that runs `src/run.py` (or another file) with words."""

    def run(*words: str, file: Path = ROOT / "src" / "run.py", **options: object) -> "subprocess.CompletedProcess[str]":
        launched = ("ACCELERATE_MIXED_PRECISION", "LOCAL_RANK", "WORLD_SIZE", "SKYTUNE_PLUGINS")
        env = {key: value for key, value in os.environ.items() if key not in launched}
        env.update(options.pop("env", {}))  # type: ignore[call-overload]
        return subprocess.run(
            [sys.executable, str(file), *words], env=env, capture_output=True, text=True, timeout=900, **options
        )  # type: ignore[call-overload, no-any-return]

    return run
