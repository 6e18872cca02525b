"""Runs that were trained and scored, and a Hub to publish them on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def scored(run_job: Any, here: None, tokenized: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that trains the tiny model and scores it as the step `evaluate_model` does; `labels` renames
    its classes."""

    def make(**groups: Any) -> Any:
        done = run_job(**groups)
        score_run(done, {"validation": tokenized(16, 1), "test": tokenized(16, 2)})
        from skytune.runs.catalog import RunRecord

        return RunRecord.read(done.job.root)

    return make


def score_run(done: Any, splits: dict[str, Any]) -> None:
    """Score what a run has predicted, and write that beside its model."""
    from skytune.launch import class_names, read_predictions
    from skytune.report.scoring import score, write_beside
    from skytune.tasks import Shown

    names = class_names(splits["test"])
    shown = {name: Shown(split, None) for name, split in splits.items()}
    report = {"result": done.result, "history": done.history}
    found, _, _ = score(done.job.job.config, read_predictions(done.job, list(splits)), names, shown, report)
    write_beside(done.job.root, found, None, {"data": "0123456789abcdef"})


@pytest.fixture
def hub(start_hub: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    server = start_hub()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    return server


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder like a model's."""
    folder = tmp_path / "model"
    (folder / "more").mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "README.md", "more/notes.txt", ".hidden"):
        (folder / name).write_text(f"---\nlicense: mit\n---\ncontent of {name}")
    return folder
