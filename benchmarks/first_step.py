"""How long it takes on a GPU until the first step, with nothing compiled yet and with all of it kept: cold and warm.

    python benchmarks/first_step.py --out benchmarks/results
    python benchmarks/first_step.py --only bert-base --tiny      a small model on the CPU, to see that it runs

Starts the worker process that `python src/run.py` starts, twice in an empty home of its own, for a run of 600 steps:
long enough that blocks are compiled. The clock stops when the first step stands in the history, which is written after
the first steps that are taken together. Models of `architectures.py` with random weights, rows as long as SST-2's. What
the command does before the worker starts needs ZenML, and is in startup.md. Needs torch, transformers, accelerate,
pyarrow, scikit-learn and this source tree alone.
"""

import argparse
import json
import os
import shutil
import tempfile
import threading
import time
from datetime import date
from pathlib import Path
from typing import Any

import architectures
import pyarrow as pa
import torch

from skytune.config import RunConfig, from_dict
from skytune.job import Job, JobDir
from skytune.launch.local import LocalLauncher

NAMES = ["bert-base", "electra-base", "gpt2", "deberta-v3-base"]
STEPS = 600


def write_split(folder: Path, table: Any) -> None:
    """Write rows as `skytune.data.tables.read_split` reads them."""
    folder.mkdir(parents=True)
    columns = {}
    for name in ("input_ids", "attention_mask"):
        column = table.columns[name]
        columns[name] = pa.ListArray.from_arrays(pa.array(column.offsets.astype("i4")), pa.array(column.values))
    made = pa.table({**columns, "labels": pa.array(table.labels)})
    with pa.OSFile(str(folder / "data-00000.arrow"), "wb") as sink, pa.ipc.new_stream(sink, made.schema) as out:
        out.write_table(made)


def run(work: Path, name: str, model: Path, device: str, steps: int) -> dict[str, Any]:
    """Start the worker of a run; return seconds by phase, and which steps were taken."""
    job = JobDir(work / name)
    for inside, place in (("train", work / "rows"), ("validation", work / "few"), ("weights", model)):
        shutil.copytree(place, job.inputs / inside)
    values: dict[str, Any] = {
        "task": {"name": "text-classification"},
        "model": {"name": str(model)},
        "max_steps": steps,
        "epochs": 99,
        "log": {"every_steps": 1},
        "launch": {"num_processes": 1},
        "compute": {"device": device},
        "tracker": {"names": []},
        "checkpoint": {"select": "last", "metric": "loss"},
    }
    config = from_dict(RunConfig, values)
    given = Job(kind="train", run_key=name, config=config, labels=["no", "yes"], tokenizer=None)
    given.train, given.weights, given.evaluation = "inputs/train", "inputs/weights", {"validation": "inputs/validation"}
    job.write_job(given)
    began, seen = time.perf_counter(), list[float]()

    def watch() -> None:
        while not any(record["kind"] == "step" for record in job.read_history()):
            time.sleep(0.02)
        seen.append(time.perf_counter() - began)

    threading.Thread(target=watch, daemon=True).start()
    LocalLauncher().run(job, config.compute)
    result = job.read_result() or {}
    phases = {key: result["phases"][key] for key in ("start_s", "load_s")}
    rest = seen[0] - sum(phases.values())
    return {"to_first_step_s": seen[0], **phases, "rest_s": rest, "steps": result.get("steps_taken")}


def main() -> int:
    """Start all, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=NAMES, choices=list(architectures.ARCHITECTURES))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    device, steps = ("cpu", 8) if given.tiny else ("auto", STEPS)
    lines = [
        "# From the start of the worker to the end of the first step",
        "",
        f"{date.today().isoformat()}, {torch.cuda.get_device_name() if torch.cuda.is_available() else 'CPU'}, torch "
        f"{torch.__version__}. Seconds. `python benchmarks/first_step.py`; what comes before it: startup.md.",
        "",
        "| model | steps | cold | warm | warm: start | load | kernels, graphs, steps until the first is told of |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in given.only:
        with tempfile.TemporaryDirectory() as text:
            work = Path(text)
            os.environ["SKYTUNE_HOME"] = str(work / "home")
            model = architectures.model_of(name, **(architectures.TINY if given.tiny else {}))
            model.save_pretrained(work / "model")
            for folder, rows in (("rows", 64 if given.tiny else architectures.ROWS), ("few", 64)):
                write_split(work / folder, architectures.table_of(model, rows=rows))
            cold, warm = (run(work, again, work / "model", device, steps) for again in ("cold", "warm"))
        print(json.dumps({"name": name, "cold": cold, "warm": warm}), flush=True)
        cells = [
            cold["to_first_step_s"],
            *(warm[key] for key in ("to_first_step_s", "start_s", "load_s", "rest_s")),
        ]
        lines.append(f"| {name} | {warm['steps']} | " + " | ".join(f"{cell:.1f}" for cell in cells) + " |")
    print("\n".join(lines))
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "first_step.md").write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
