"""What is not there is said before ZenML is imported: that takes seconds."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from skytune.config import DataConfig, DataSource, ModelConfig, RunConfig, UserError
from skytune.pipelines.validation import validated

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["data=files", "data.train=/no/such.csv"], "data.train=/no/such.csv: no such file"),
        (["+eval.sets.more=/no/such.csv"], "eval.sets.more=/no/such.csv: no such file"),
        (["model.name=/no/such"], "model.name=/no/such: no such folder"),
        (["model._target_=no_such.Thing"], "model._target_=no_such.Thing: no module 'no_such'"),
        (["pipeline=evaluate", "checkpoint=/no/such"], "/no/such"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_what_is_missing_is_said_before_zenml_is_imported(words: list[str], says: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", str(ROOT / "src" / "run.py"), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines() if "|" in line}
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 1 and says in error
    assert "fsspec" in imported or "hydra" in imported
    assert not imported & {"zenml", "torch", "transformers", "datasets", "sky"}


def test_a_models_packages_are_looked_for_before_the_data_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    config = RunConfig(
        model=ModelConfig(_target_="skytune.models.efficientnet.EfficientNetLite0"),
        data=DataConfig(source=DataSource.files, train="/no/such/file.csv"),
    )
    with pytest.raises(UserError, match=r"'efficientnet-lite0' .* is not installed: pip install .*\[demo\]"):
        validated(config)
