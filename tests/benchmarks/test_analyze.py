"""The notebook runs: its code cells in order, in a fresh process, on a table of its own. No Jupyter is needed for that
(its kernel would bring twenty packages); so the notebook uses no magic commands."""

import json
import os
import subprocess
import sys
from pathlib import Path

from skytune.study.table import frame, write_table

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "benchmarks" / "analyze.ipynb"


def code_cells() -> list[str]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_it_is_stored_without_output() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert codes and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in codes)
    assert not any(line.lstrip().startswith(("%", "!")) for text in code_cells() for line in text.splitlines())


def test_it_runs(tmp_path: Path) -> None:
    rows = [
        {
            "experiment": "e",
            "cell": f"{n}-{seed}",
            "status": "done",
            "seed": seed,
            "model": "m",
            "data": "d",
            "strategy": "single",
            "precision": "fp32",
            "accelerator": "cpu",
            "samples": n,
            "steps": n // 16,
            "devices": 1,
            "nodes": 1,
            "train_s": n / 50,
            "total_s": 10 + n / 50,
            "setup_s": 10.0,
            "samples_per_s": 50.0,
            "accuracy": 0.5 + n / 5000 + seed / 1000,
            "peak_lr": 1e-4,
            "factor_rows": n,
        }
        for n in (160, 320, 640, 1280)
        for seed in (1, 2)
    ]
    write_table(frame(rows), tmp_path)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "SKYTUNE_RESULTS": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(code_cells())],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "8 of 8 cells done; factors: factor_rows" in done.stdout
    assert "4 cells, leave-one-out error 0.0%" in done.stdout
    assert "- 1,280 rows instead of 160 gains 22.4 points of accuracy" in done.stdout
