"""`benchmarks/first_step.py` with a small model on the CPU: the real command, or a real worker, started twice."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "first_step.py"


@pytest.mark.soak
@pytest.mark.parametrize("alone", [[], ["--worker"]])
def test_the_time_to_the_first_step_is_taken_cold_and_warm(tmp_path: Path, alone: list[str]) -> None:
    words = ["--only", "bert-base", "--tiny", *alone, "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    *_, row = (tmp_path / "first_step.md").read_text().splitlines()
    cold, warm, *parts = map(float, row.strip("| ").split(" | ")[2:])
    assert cold > 0 and abs(sum(parts) - warm) < 0.3
