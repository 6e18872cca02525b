"""`benchmarks/language.py --gpus` with CPU processes: rates, equal losses, a process killed and the run resumed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "language.py"


@pytest.mark.soak
@pytest.mark.parametrize("case", ["blocks", "lora"])
def test_several_processes_learn_the_same_and_survive_a_kill(case: str, tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    words = ["--gpus", "1", "2", "--tiny", "--cases", case, "--out", str(out)]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "ended by SIGKILL" in done.stdout
    for row in json.loads(out.read_text())["cases"].values():
        assert [rate["gpus"] for rate in row["rates"]] == [1, 2]
        assert all(rate["tokens_per_s"] > 0 for rate in row["rates"])
        assert row["losses_apart"] < 1e-5
        assert row["resumed_from"] == 10
        assert row["resumed_losses_apart"] < 1e-6
