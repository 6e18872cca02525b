"""The benchmark of checkpoints runs, compares its copies, and needs nothing of the orchestrator."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

BLOCKED = ("zenml", "sky", "hydra", "hydra_zen", "omegaconf", "datasets", "accelerate", "s3fs", "boto3", "pyarrow")

RUN = """
import runpy, sys
for name in {blocked!r}: sys.modules[name] = None
sys.argv = ["checkpoint.py", "--quick", "--saves", "2", "--out", sys.argv[1]]
runpy.run_path({script!r}, run_name="__main__")
"""


def test_it_runs_where_only_torch_and_transformers_are(tmp_path: Path) -> None:
    code = RUN.format(blocked=BLOCKED, script=str(ROOT / "benchmarks" / "checkpoint.py"))
    words = [sys.executable, "-c", code, str(tmp_path / "results")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "results" / "checkpoint.json").read_text())
    rows = {(row["store"], row["way"]): row for row in found["results"]}
    assert set(rows) == {
        ("file://", "torch.save"),
        ("file://", "synchronous"),
        ("file://", "asynchronous"),
        ("memory://", "synchronous"),
        ("memory://", "asynchronous"),
    }
    for row in rows.values():
        assert row["same"] is True
        assert len(row["stall_s"]) == len(row["save_s"]) == 2
        assert row["bytes"] > 12 * found["parameters"]  # weights and AdamW's two averages, in fp32
    assert found["versions"]["torch"] and found["cpu"] and found["date"]
    page = (tmp_path / "results" / "checkpoint.md").read_text()
    assert page.strip() in done.stdout and page.count("| the same |") == 5
