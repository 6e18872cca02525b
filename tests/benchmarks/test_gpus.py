"""`benchmarks/gpus.py` on CPU processes, with nothing but what a bare GPU machine has; then its page."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytestmark = pytest.mark.soak
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "gpus.py"

BARE = """
import importlib.abc, runpy, sys
ABSENT = ("zenml", "hydra", "hydra_zen", "omegaconf", "datasets", "sky", "matplotlib", "scipy", "boto3", "evaluate")
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
sys.meta_path.insert(0, Absent())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(*words: str, bare: bool = True) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *(["-c", BARE] if bare else []), str(SCRIPT), *words]
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, sentences: Callable[..., Any]) -> Path:
    """Rows of two cells of the tiny model, one row each."""
    from datasets import ClassLabel, Dataset, Features, Sequence, Value
    from transformers import AutoTokenizer

    from skytune.data.tables import write_split

    folder = tmp_path_factory.mktemp("gpus")
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    kinds = Features(
        {
            "input_ids": Sequence(Value("int32")),
            "attention_mask": Sequence(Value("int8")),
            "labels": ClassLabel(names=["negative", "positive"]),
        }
    )
    for name, count in (("train", 96), ("validation", 48)):
        texts, labels = zip(*sentences(count, seed=len(name)), strict=True)
        tokens = tokenizer(list(texts))
        columns = {"input_ids": tokens["input_ids"], "attention_mask": tokens["attention_mask"], "labels": list(labels)}
        write_split(Dataset.from_dict(columns, features=kinds), folder / "data" / name)
    out = folder / "rows.jsonl"
    done = run(
        "--data",
        str(folder / "data"),
        "--model",
        str(tiny_model),
        "--models",
        "packaged",
        "--gpus",
        "1",
        "2",
        "--seeds",
        "1",
        "--rows",
        "64",
        "--per-device",
        "8",
        "--limit",
        "200",
        "--out",
        str(out),
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert sum(line.startswith("ROW {") for line in done.stdout.splitlines()) == 2
    return out


@pytest.mark.slow
def test_a_row_a_cell_without_orchestrator_or_plots(rows: Path) -> None:
    one, two = (json.loads(line) for line in rows.read_text().splitlines())
    assert [(r["devices"], r["global_batch"], r["steps"], r["samples"]) for r in (one, two)] == [
        (1, 8, 8, 64),
        (2, 16, 4, 64),
    ]
    assert one["status"] == two["status"] == "done" and one["train_rows"] == 64
    assert two["peak_lr"] == pytest.approx(one["peak_lr"] * 2**0.5)
    assert 0 <= one["accuracy"] <= 1 and one["eval_rows"] == 48
    assert one["usd_total"] is None, "no EC2 machine is comparable with a CPU that nobody knows"


@pytest.mark.slow
def test_table_and_page_come_out_of_the_rows(rows: Path, tmp_path: Path) -> None:
    done = run("--draw", str(rows), "--out", str(tmp_path), bare=False)
    assert done.returncode == 0, done.stderr
    assert list(pd.read_parquet(tmp_path / "results.parquet")["devices"]) == [1, 2]
    page = (tmp_path / "report.html").read_text()
    assert "Speed-up" in page and "n/a" in page and "Measured on cpu" in page


def test_prices_are_those_of_the_machine_with_such_a_card() -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        import gpus
    finally:
        sys.path.remove(str(SCRIPT.parent))
    source = "p5.48xlarge on demand, us-east-1, 2025-11-30, divided by its 8 cards"
    assert gpus.price("cuda NVIDIA H100 80GB HBM3") == (55.04 / 8, source)
    assert gpus.price("cpu") == (None, "")


@pytest.mark.slow
def test_the_time_limit_ends_in_rows_that_say_so(rows: Path, tmp_path: Path, tiny_model: Path) -> None:
    out = tmp_path / "rows.jsonl"
    done = run(
        "--data",
        str(rows.parent / "data"),
        "--model",
        str(tiny_model),
        "--models",
        "packaged",
        "--gpus",
        "1",
        "--seeds",
        "1",
        "2",
        "--limit",
        "-1",
        "--out",
        str(out),
    )
    assert done.returncode == 1, done.stderr
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["status"] for row in found] == ["stopped", "stopped"]
    assert all(row["reason"].startswith("time limit: ") for row in found)
