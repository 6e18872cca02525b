"""How long it takes on a GPU until the first step, with nothing compiled yet and with all of it kept: cold and warm.

    python benchmarks/first_step.py --out benchmarks/results
    python benchmarks/first_step.py --worker --out benchmarks/results
    python benchmarks/first_step.py --only bert-base --tiny      a small model on the CPU, to see that it runs

Runs `python src/run.py` twice in an empty home of its own, the second time with another learning rate (the data come
out of ZenML's cache, training does not), for 600 steps: long enough that blocks are compiled. The clock runs from the
start of the command until the first step stands in the history, which is written after the first steps that are taken
together. Models of `architectures.py` with random weights, rows as long as SST-2's. `--worker` starts the worker
process alone, which needs torch, transformers, accelerate, pyarrow, scikit-learn and this source tree, but no ZenML.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from pathlib import Path
from typing import Any

import architectures
import numpy as np
import pyarrow as pa
import torch

from skytune.config import RunConfig, from_dict
from skytune.job import Job, JobDir
from skytune.launch.local import LocalLauncher

ROOT = Path(__file__).resolve().parents[1]
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


def write_inputs(work: Path, rows: int) -> None:
    """Write a model's tokenizer, one token a word, and a table of texts as long as SST-2's."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    words = [*special.values(), *(f"w{number}" for number in range(20_000))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(work / "model")
    random = np.random.default_rng(0)
    lines = []
    for length in np.clip(random.lognormal(2.4, 0.6, rows), 4, 66).astype(int) - 2:
        text = " ".join(random.choice(words[4:], length))
        lines.append(f"{text}\t{random.choice(['no', 'yes'])}")
    (work / "rows.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")


def command(work: Path, name: str, device: str, steps: int, rate: float) -> dict[str, Any]:
    """Run the command; return seconds to its first step, and those of the phases before it."""
    home = work / "home"
    env = {**os.environ, "SKYTUNE_HOME": str(home), "ZENML_CONFIG_PATH": str(work / "zenml"), "TQDM_DISABLE": "1"}
    words = [
        f"model.name={work / 'model'}",
        "data=files",
        f"data.train={work / 'rows.tsv'}",
        f"compute.device={device}",
    ]
    words += [f"max_steps={steps}", "epochs=99", f"optimizer.lr={rate}", "log.every_steps=1", "tracker=none"]
    words += ["launch.num_processes=1", f"name={name}", "checkpoint.select=last", "checkpoint.metric=loss"]
    before, began = set(home.glob("runs/*/outputs")), time.time()
    with (work / "output.log").open("w+") as log:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "src" / "run.py"), *words], env=env, stdout=log, stderr=subprocess.STDOUT
        )
        first = 0.0
        while process.poll() is None and not first:
            for outputs in set(home.glob("runs/*/outputs")) - before:
                if '"kind": "step"' in _text(outputs / "history.jsonl"):
                    first = time.time()
            time.sleep(0.02)
        if process.wait():
            log.seek(0)
            raise SystemExit(f"the command failed:\n{log.read()}")
    (outputs,) = set(home.glob("runs/*/outputs")) - before
    result = json.loads((outputs / "result.json").read_text())
    phases = {"before_s": (outputs.parent / "job.json").stat().st_mtime - began}
    phases |= {key: result["phases"][key] for key in ("start_s", "load_s")}
    rest = first - began - sum(phases.values())
    return {"to_first_step_s": first - began, **phases, "rest_s": rest, "steps": result.get("steps_taken")}


def _text(file: Path) -> str:
    return file.read_text() if file.is_file() else ""


def main() -> int:
    """Start all, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=NAMES, choices=list(architectures.ARCHITECTURES))
    parser.add_argument("--worker", action="store_true", help="the worker alone")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    device, steps, rows = ("cpu", 8, 64) if given.tiny else ("auto", STEPS, architectures.ROWS)
    asked = " ".join(["python benchmarks/first_step.py", *(["--worker"] if given.worker else [])])
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    lines = [
        f"# From the start of the {'worker' if given.worker else 'command'} to the end of the first step",
        "",
        f"{date.today().isoformat()}, {gpu}, torch {torch.__version__}. Seconds. `{asked}`.",
        "",
        "| model | steps | cold | warm | warm: until the job is written | start of the worker | data, model "
        "| kernels, graphs, steps until the first is told of |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in given.only:
        with tempfile.TemporaryDirectory() as text:
            work = Path(text)
            os.environ["SKYTUNE_HOME"] = str(work / "home")
            model = architectures.model_of(name, **(architectures.TINY if given.tiny else {}))
            model.save_pretrained(work / "model")
            if given.worker:
                for folder, number in (("rows", rows), ("few", 64)):
                    write_split(work / folder, architectures.table_of(model, rows=number))
                cold, warm = (run(work, again, work / "model", device, steps) for again in ("cold", "warm"))
            else:
                write_inputs(work, rows)
                cold, warm = (command(work, name, device, steps, rate) for rate in (1e-5, 2e-5))
        print(json.dumps({"name": name, "cold": cold, "warm": warm}), flush=True)
        phases = ("to_first_step_s", "before_s", "start_s", "load_s", "rest_s")
        cells = [cold["to_first_step_s"], *(warm.get(key, 0.0) for key in phases)]
        lines.append(f"| {name} | {warm['steps'] or 'eager'} | " + " | ".join(f"{cell:.1f}" for cell in cells) + " |")
    print("\n".join(lines))
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "first_step.md").write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
