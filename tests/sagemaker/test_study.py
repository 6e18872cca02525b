"""The study of instances by the command itself, its cells trained on the stand-in."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def test_the_study_runs_its_cells_as_training_jobs_and_says_what_they_cost(sage: Any, tmp_path: Path) -> None:
    rows = tmp_path / "rows.tsv"
    lines = dict.fromkeys(f"{text}\t{label}" for text, label in sage.more(300))
    rows.write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    words = [
        "pipeline=study",
        "experiment=sagemaker-study",
        f"model.name={sage.model}",
        "data.source=files",
        f"data.train={rows}",
        "data.text=text",
        "data.label=label",
        "data.validation_fraction=0.2",
        "data.test_fraction=0.1",
        "data.max_length=64",
        "batch.global_size=8",
        "compute.device=cpu",
        "launch.threads=1",
        "study.factors={rows: [40], compute: [ml.m5.large, ml.m5.large x 2]}",
        "study.machines={ml.m5.large: {accelerator: cpu, devices: 1}}",
        "study.max_usd=1",
        f"study.parallel={2 if sage.standin.network else 1}",
        f"checkpoint.store=s3://{sage.bucket}/runs",
        f"sagemaker.role={sage.role}",
    ]
    done = subprocess.run(
        [sys.executable, str(ROOT / "src" / "run.py"), *words],
        env={**os.environ, "ZENML_CONFIG_PATH": str(tmp_path / "zenml")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with next(tmp_path.rglob("sagemaker-study/results.csv")).open() as file:
        table = list(csv.DictReader(file))
    assert [(row["status"], row["devices"]) for row in table] == [("done", "1"), ("done", "2")], done.stdout
    assert sorted(job.request["ResourceConfig"]["InstanceCount"] for job in sage.standin.jobs.values()) == [1, 2]
    for row, job in zip(table, sorted(sage.standin.jobs.values(), key=lambda job: len(job.hosts)), strict=True):
        billed = round(job.trained + 0.5) / 3600 * 0.115 * len(job.hosts)
        assert float(row["usd_total"]) == pytest.approx(billed, abs=0.0002), json.dumps(row)
    assert sage.standin.running() == []
