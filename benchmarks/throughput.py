"""Training throughput: the published loop, the HF Trainer and this package, on the same rows, in turn, on one device.

    python benchmarks/throughput.py --data FOLDER --out benchmarks/results      one GPU, BERT-base from its config
    python benchmarks/throughput.py --data FOLDER --model FOLDER --quick        a CPU, the packaged encoder

FOLDER of the data holds `train` and `validation` as `skytune.data.tables.write_split` leaves them (tokens of
bert-base-uncased's vocabulary). Needs torch, transformers, accelerate, pyarrow and this source tree alone. Every case
runs in a process of its own; the steady state is timed after a warm-up, between two synchronizations of the device.
Long rows are made: lengths of 16 to 512 tokens, 254 on average, random tokens.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import numpy as np
import torch

from skytune.config import Precision
from skytune.data.batches import TokenTable
from skytune.training.flops import peak, work_of

LONG = {"kind": "ours", "fast": "auto", "long": True, "buckets": 1}
CASES: dict[str, dict[str, Any]] = {
    "published loop, fp32": {"kind": "loop", "batch": 8, "steps": 300, "warm": 50},
    "HF Trainer, bf16": {"kind": "trainer", "batch": 32, "bf16": True, "steps": 250, "warm": 50},
    "HF Trainer, fp32": {"kind": "trainer", "batch": 32, "steps": 250, "warm": 50},
    "skytune eager, buckets, bf16": {"kind": "ours", "batch": 256, "fast": "off", "steps": 160, "warm": 40},
    "skytune": {"kind": "ours", "batch": 32, "fast": "auto", "steps": 2000, "warm": 400, "buckets": 1},
    "skytune ": {"kind": "ours", "batch": 256, "fast": "auto", "steps": 700, "warm": 200, "buckets": 1},
    "skytune, 3 epochs and validations": {"kind": "ours", "batch": 32, "fast": "auto", "epochs": 3, "buckets": 1},
    "skytune, long rows": {
        "kind": "ours",
        "batch": 32,
        "fast": "auto",
        "steps": 400,
        "warm": 100,
        "long": True,
        "buckets": 1,
    },
    "skytune, long rows ": {
        "kind": "ours",
        "batch": 128,
        "fast": "auto",
        "steps": 160,
        "warm": 40,
        "long": True,
        "buckets": 1,
    },
}
QUICK: dict[str, dict[str, Any]] = {
    "HF Trainer, fp32": {"kind": "trainer", "batch": 32, "steps": 150, "warm": 50},
    "HF Trainer, fp32, group_by_length": {"kind": "trainer", "batch": 32, "steps": 150, "warm": 50, "grouped": True},
    "skytune": {"kind": "ours", "batch": 32, "fast": "auto", "steps": 150, "warm": 50},
}
"""Both sort within groups of 50 batches, the Trainer from long to short: whole groups are timed, or one would look
faster than it is."""

RATIOS = [
    (("skytune", 32), ("HF Trainer, bf16", 32)),
    (("skytune", 32), ("HF Trainer, fp32", 32)),
    (("skytune", 32), ("HF Trainer, fp32, group_by_length", 32)),
    (("skytune", 32), ("published loop, fp32", 8)),
    (("skytune", 256), ("skytune eager, buckets, bf16", 256)),
]
"""What is compared: (name, batch) of ours, and of the baseline."""

DETAIL = ("phases", "steps_taken", "fast", "padding_share")
"""What a row keeps of a run's result."""


def model_of(arguments: argparse.Namespace) -> Any:
    """Return the model on the CPU: the given folder's, or BERT-base with random weights."""
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    if arguments.model:
        return transformers.AutoModelForSequenceClassification.from_pretrained(arguments.model, num_labels=2)
    return transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=2))


def long_rows(rows: int = 6000) -> "Any":
    """Return an Arrow table of made rows, 254 tokens on average, at most 512."""
    import pyarrow as pa

    random = np.random.default_rng(0)
    lengths = np.clip(random.normal(254, 120, rows), 16, 512).astype(int)
    ids = [np.concatenate([[101], random.integers(1000, 30000, n - 2), [102]]).astype(np.int32) for n in lengths]
    mask = [np.ones(n, dtype=np.int8) for n in lengths]
    return pa.table({"input_ids": ids, "attention_mask": mask, "labels": random.integers(0, 2, rows)})


def write_rows(table: Any, folder: Path) -> None:
    """Write an Arrow table as a split."""
    import pyarrow as pa

    folder.mkdir(parents=True)
    with pa.OSFile(str(folder / "data-00000.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)


def synchronize() -> None:
    """Wait for the device."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def loop(arguments: argparse.Namespace, case: dict[str, Any]) -> dict[str, Any]:
    """The loop of the course that the published recipe follows: random batches, torch's AdamW, linear decay."""
    from torch.utils.data import DataLoader
    from transformers import get_scheduler

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model_of(arguments).to(device).train()
    table = TokenTable.open(arguments.data / "train")
    batches = DataLoader(range(len(table)), batch_size=case["batch"], shuffle=True, collate_fn=lambda r: np.array(r))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    schedule = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=case["steps"])
    started, tokens = 0.0, 0
    for step, rows in enumerate(batches):
        if step == case["warm"]:
            synchronize()
            started, tokens = time.perf_counter(), 0
        if step == case["steps"]:
            break
        batch = {name: tensor.to(device) for name, tensor in table.batch(rows).items()}
        model(**batch).loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        tokens += int(table.lengths[rows].sum())
    synchronize()
    return {"seconds": time.perf_counter() - started, "steps": case["steps"] - case["warm"]}


def trainer(arguments: argparse.Namespace, case: dict[str, Any]) -> dict[str, Any]:
    """The HF Trainer with dynamic padding."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    table = TokenTable.open(arguments.data / "train")

    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(table)

        def __getitem__(self, index: int) -> dict[str, Any]:
            cut = slice(table.columns["input_ids"].offsets[index], table.columns["input_ids"].offsets[index + 1])
            return {"row": int(index), "input_ids": table.columns["input_ids"].values[cut]}

    class Clock(TrainerCallback):
        started = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == case["warm"]:
                synchronize()
                self.started = time.perf_counter()

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            synchronize()
            self.seconds = time.perf_counter() - self.started

    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        grouped = {"train_sampling_strategy": "group_by_length"} if case.get("grouped") else {}
        settings = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=case["batch"],
            max_steps=case["steps"],
            learning_rate=5e-5,
            bf16=bool(case.get("bf16")),
            report_to="none",
            save_strategy="no",
            logging_steps=10,
            disable_tqdm=True,
            remove_unused_columns=False,
            use_cpu=not torch.cuda.is_available(),
            **grouped,
        )
        Trainer(
            model=model_of(arguments),
            args=settings,
            train_dataset=Rows(),
            callbacks=[clock],
            data_collator=lambda rows: table.batch(np.array([row["row"] for row in rows])),
        ).train()
    return {"seconds": clock.seconds, "steps": case["steps"] - case["warm"]}


def ours(arguments: argparse.Namespace, case: dict[str, Any]) -> dict[str, float]:
    """This package's worker on a job directory: loading, schedule, logging and history included."""
    from skytune.config import RunConfig, from_dict
    from skytune.job import Job, JobDir
    from skytune.launch.local import LocalLauncher

    with tempfile.TemporaryDirectory() as folder:
        model = Path(arguments.model or Path(folder) / "model")
        if not arguments.model:
            model_of(arguments).save_pretrained(model)
        job = JobDir(Path(folder) / "job")
        job.inputs.mkdir(parents=True)
        if case.get("long"):
            write_rows(long_rows(), job.inputs / "train")
        else:
            shutil.copytree(arguments.data / "train", job.inputs / "train")
        shutil.copytree(arguments.data / "validation", job.inputs / "validation")
        shutil.copytree(model, job.inputs / "weights")
        values: dict[str, Any] = {
            "model": {"name": str(model)},
            "batch": {"global_size": case["batch"], "bucket_batches": case.get("buckets", 50)},
            "compute": {"packed": case["fast"]},
            "tracker": {"names": []},
            "checkpoint": {"every_minutes": 0, "select": "last"},
            "launch": {"num_processes": 1},
        }
        if "epochs" in case:
            values["epochs"] = case["epochs"]
        else:
            values["max_steps"] = case["steps"]
            values["eval"] = {"every_epochs": 0}
            values["limit_eval_batches"] = 2
        config = from_dict(RunConfig, values)
        job.write_job(
            Job(
                kind="train",
                run_key="throughput",
                config=config,
                labels=["negative", "positive"],
                train="inputs/train",
                evaluation={"validation": "inputs/validation"},
                tokenizer=None,
                weights="inputs/weights",
            )
        )
        LocalLauncher().run(job, config.compute)
        result, history = job.read_result(), [r for r in job.read_history() if r["kind"] == "step"]
    assert result is not None
    if "epochs" in case:
        seconds = result["phases"]["train_s"] + result["phases"]["validate_s"]
        return {"seconds": seconds, "steps": result["steps"], "result": result}
    first = next(record for record in history if record["step"] >= case["warm"])
    last = history[-1]
    return {
        "seconds": last["elapsed_s"] - first["elapsed_s"],
        "steps": last["step"] - first["step"],
        "result": result,
    }


def one(arguments: argparse.Namespace, case: dict[str, Any]) -> dict[str, Any]:
    """Run one case in this process; return its row."""
    seen = {"loop": loop, "trainer": trainer, "ours": ours}[case["kind"]](arguments, case)
    table = TokenTable(long_rows()) if case.get("long") else TokenTable.open(arguments.data / "train")
    work = work_of(model_of(arguments))
    assert work is not None, "a transformer"
    rows_a_second = seen["steps"] * case["batch"] / seen["seconds"]
    most = peak(torch.cuda.get_device_name(), Precision.bf16) if torch.cuda.is_available() else None
    flops = work.of(table.lengths) / len(table.lengths)
    return {
        "batch": case["batch"],
        "samples_per_s": round(rows_a_second, 1),
        "ms_per_step": round(1e3 * seen["seconds"] / seen["steps"], 3),
        "mfu": round(rows_a_second * flops / most, 4) if most else None,
        **({"detail": {key: seen["result"].get(key) for key in DETAIL}} if "result" in seen else {}),
    }


def main() -> int:
    """Run all cases in turn, print the table, write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=lambda text: Path(text).absolute(), required=True)
    parser.add_argument("--model", type=lambda text: str(Path(text).absolute()))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="the few cases that a CPU can run")
    parser.add_argument("--only", nargs="*", help="cases that contain one of these words")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print("RESULT " + json.dumps(one(arguments, json.loads(arguments.one))))
        return 0
    rows, failed = [], 0
    for name, case in (QUICK if arguments.quick else CASES).items():
        if arguments.only and not any(word in name for word in arguments.only):
            continue
        command = [sys.executable, __file__, "--data", str(arguments.data), "--one", json.dumps(case)]
        command += ["--model", arguments.model] if arguments.model else []
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TQDM_DISABLE": "1"})
        line = next((text for text in done.stdout.splitlines() if text.startswith("RESULT ")), None)
        if line is None:
            failed += 1
            print(f"{name.strip():36} FAILED\n{done.stdout[-800:]}\n{done.stderr[-1500:]}", flush=True)
            continue
        row = {"name": name.strip(), **json.loads(line.removeprefix("RESULT "))}
        rows.append(row)
        mfu = f"{100 * row['mfu']:5.1f}%" if row["mfu"] else "  n/a"
        print(
            f"{row['name']:36} batch {row['batch']:4d} {row['ms_per_step']:9.2f} ms/step "
            f"{row['samples_per_s']:10.1f} samples/s {mfu}",
            flush=True,
        )
        if arguments.out:
            write(arguments.out, rows)  # after each: what was measured survives a time limit
    return 1 if failed else 0


def write(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Write the table as JSON and as Markdown; rows of earlier calls on such a device stay until measured again."""
    import transformers

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    head = {
        "device": device,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
    command = "python benchmarks/throughput.py " + " ".join(sys.argv[1:])
    now = [{**row, "date": date.today().isoformat(), "command": command} for row in rows]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ("throughput.json" if torch.cuda.is_available() else "throughput-cpu.json")
    before = json.loads(file.read_text()) if file.is_file() else {}
    measured = {(row["name"], row["batch"]) for row in now}
    if all(before.get(key) == value for key, value in head.items()):
        now = [row for row in before["rows"] if (row["name"], row["batch"]) not in measured] + now
    file.write_text(json.dumps({**head, "rows": now}, indent=1) + "\n")
    file.with_suffix(".md").write_text("\n".join(page(head, now)) + "\n")


def page(head: dict[str, str], rows: list[dict[str, Any]]) -> list[str]:
    """Return the table as lines of Markdown."""
    lines = [f"# Training throughput on one {head['device']}", ""]
    lines += [f"- {key}: {value}" for key, value in head.items() if key != "device"]
    calls = list(dict.fromkeys((row["date"], row["command"]) for row in rows))
    lines += [f"- call {number}, {day}: `{command}`" for number, (day, command) in enumerate(calls, 1)]
    lines += ["", "| what | batch | ms/step | samples/s | MFU | call |", "|---|---|---|---|---|---|"]
    for row in rows:
        mfu, call = f"{100 * row['mfu']:.1f}%" if row["mfu"] else "n/a", calls.index((row["date"], row["command"])) + 1
        lines.append(
            f"| {row['name']} | {row['batch']} | {row['ms_per_step']} | {row['samples_per_s']} | {mfu} | {call} |"
        )
    rates = {(row["name"], row["batch"]): row["samples_per_s"] for row in rows}
    for ours, theirs in RATIOS:
        if ours in rates and theirs in rates:
            ratio = rates[ours] / rates[theirs]
            lines += ["", f"{ours[0]} at batch {ours[1]}: {ratio:.2f} times {theirs[0]} at batch {theirs[1]}."]
    for row in rows:
        if "detail" in row:
            spent = ", ".join(f"{key} {value}" for key, value in row["detail"]["phases"].items())
            taken = row["detail"].get("fast") or "not taken"
            lines += ["", f"{row['name']}, batch {row['batch']}: {spent}; fast path: {taken}"]
    return lines


if __name__ == "__main__":
    sys.exit(main())
