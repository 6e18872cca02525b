"""Language models on several GPUs, by worker processes that a run's own launcher starts: language.py --gpus 1 2 4.

Every GPU gets as many rows a step, so that one card's rate is held against a share of all cards'. Then the same global
batches are learned on one card and on all: their losses for 20 steps; and one process of all is killed (SIGKILL), and
the run goes on with two. Models have random weights, rows random tokens. `--tiny` does all of it with CPU processes.
"""

import argparse
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from language import CASES, SHAPES, build, rows_of

from skytune.config import RunConfig, UserError, from_dict
from skytune.job import Job, JobDir
from skytune.launch.local import LocalLauncher

SPREAD: dict[str, tuple[str, str]] = {
    "135M, rows of reviews, ddp": ("sft", "ddp"),
    "135M, blocks, ddp": ("blocks", "ddp"),
    "1.1B, blocks, ddp": ("full", "ddp"),
    "1.1B, blocks, fsdp": ("full", "fsdp"),
    "1.1B, blocks, fsdp, LoRA": ("lora", "fsdp"),
}
STEPS, WARM = 192, 64
"""Of a run that is timed, and those that are not counted; enough tokens that its blocks are compiled."""

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}


def write_rows(folder: Path, case: dict[str, Any], count: int) -> Path:
    """Write a train split as `skytune.data.tables.read_split` reads it."""
    import pyarrow as pa

    folder.mkdir(parents=True)
    ids = [row.tolist() for row in rows_of(case, count)]
    labels = [[-100, *row[1:]] for row in ids]
    table = pa.table(
        {name: pa.array(rows, pa.list_(pa.int32())) for name, rows in (("input_ids", ids), ("labels", labels))}
    )
    with pa.OSFile(str(folder / "data-00000.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    return folder


class Runs:
    """Starts worker processes for runs of one case, in folders below `work`."""

    def __init__(self, work: Path, label: str, tiny: bool, most: int) -> None:
        self.case_name, self.strategy = SPREAD[label]
        self.case, self.tiny = dict(CASES[self.case_name]), tiny
        self.work = work / label.replace(", ", "-").replace(" ", "-")
        if tiny:
            self.case |= {"rows": 2, "lengths": 24}
        self.model = work / f"model-{self.case['shape']}"
        if not self.model.is_dir():
            build(self.case).save_pretrained(self.model)
        self.few = write_rows(self.work / "few", self.case, 8)
        self.data = write_rows(self.work / "rows", self.case, self.case["rows"] * most * 24)

    def job(self, name: str, gpus: int, rows: int, steps: int, **groups: Any) -> tuple[JobDir, RunConfig]:
        """Write a job that learns `rows` rows a step."""
        job = JobDir(self.work / name)
        for inside, place in (("train", self.data), ("validation", self.few), ("weights", self.model)):
            shutil.copytree(place, job.inputs / inside, copy_function=os.link)
        values: dict[str, Any] = {
            "name": "language",
            "task": {"name": "sft"},
            "model": {"name": str(self.model)},
            "epochs": 99,
            "max_steps": steps,
            "batch": {"global_size": rows, "micro_size": self.case["rows"]},
            "optimizer": {"lr": 1e-5},
            "strategy": {"name": self.strategy if gpus > 1 else "auto"},
            "launch": {"num_processes": gpus},
            "log": {"every_steps": 1},
            "eval": {"every_epochs": 0},
            "tracker": {"names": []},
            "checkpoint": {"every_minutes": 0, "select": "last", "metric": "loss"},
            **groups,
        }
        if self.case.get("rank"):
            values["model"]["lora"] = {"rank": self.case["rank"]}
        if self.tiny:
            values["compute"] = {"device": "cpu"}
        config = from_dict(RunConfig, values)
        given = Job(kind="train", run_key="language", config=config, labels=[], tokenizer=None)
        given.train, given.weights = "inputs/train", "inputs/weights"
        given.evaluation = {"validation": "inputs/validation"}
        job.write_job(given)
        return job, config

    def history(self, job: JobDir) -> list[dict[str, Any]]:
        """Return what was written of each step."""
        return [record for record in job.read_history() if record["kind"] == "step"]

    def rate(self, gpus: int) -> dict[str, Any]:
        """Return the rates of a run with the same rows on every card."""
        steps, warm = (8, 4) if self.tiny else (STEPS, WARM)
        job, config = self.job(f"rate-{gpus}", gpus, self.case["rows"] * gpus, steps)
        LocalLauncher().run(job, config.compute)
        result, seen = job.read_result() or {}, self.history(job)
        first, last = (next(r for r in seen if r["step"] == step) for step in (warm, steps))
        rate = (last["tokens"] - first["tokens"]) / (last["elapsed_s"] - first["elapsed_s"])
        memory = last["peak_memory_bytes"]
        whole = result["mfu"] * rate / result["tokens_per_s"] if result.get("mfu") else None
        return {
            "gpus": gpus,
            "tokens_per_s": round(rate),
            "mfu": whole and round(whole, 4),
            "memory_gb": memory and round(memory / 1e9, 1),
            "steps_taken": result.get("steps_taken"),
            "device": result.get("device"),
        }

    def losses(self, gpus: int, rows: int, name: str, steps: int = 20, **groups: Any) -> list[float]:
        """Return the losses of a run."""
        job, config = self.job(name, gpus, rows, steps, **groups)
        LocalLauncher().run(job, config.compute)
        return [record["loss"] for record in self.history(job)]

    def killed(self, gpus: int, rows: int) -> tuple[list[float], int]:
        """Kill one process of a run that saves every fifth step, and go on with two; return all losses of the second,
        and the step from which it went on."""
        kept = {
            "store": str(self.work / "store"),
            "every_steps": 5,
            "every_minutes": 0,
            "select": "last",
            "metric": "loss",
        }
        job, config = self.job("killed", gpus, rows, 20, checkpoint=kept)
        ended: list[str] = []

        def start() -> None:
            try:
                LocalLauncher().run(job, config.compute)
            except UserError as error:
                ended.append(str(error).partition("\n")[0])

        thread = threading.Thread(target=start)
        thread.start()
        while thread.is_alive() and not any((self.work / "store").glob("**/step-00000010/manifest.json")):
            time.sleep(0.02)
        victim = process_of(job.root, rank=gpus - 1)
        assert victim is not None, "the run was over before it could be killed"
        os.kill(victim, signal.SIGKILL)
        thread.join()
        assert ended, "a run of which a process was killed ended well"
        print(f"    {ended[0]}", flush=True)
        job, config = self.job("resumed", 2, rows, 20, checkpoint=kept)
        LocalLauncher().run(job, config.compute)
        result = job.read_result() or {}
        return [record["loss"] for record in self.history(job)], int(result["resumed_from"])


def process_of(job: Path, rank: int) -> int | None:
    """Return the worker process of a rank of this job."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "environ").read_bytes().split(b"\0")
            if f"RANK={rank}".encode() in words and str(job).encode() in (folder / "cmdline").read_bytes():
                return int(folder.name)
        except OSError:
            continue
    return None


def spread(arguments: argparse.Namespace) -> int:
    """Run all cases; print and write what was found."""
    found: dict[str, Any] = {"torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), "cases": {}}
    most = max(arguments.gpus)
    if arguments.tiny:
        SHAPES.update(
            {name: {**shape, **TINY, "intermediate_size": 64, "vocab_size": 96} for name, shape in SHAPES.items()}
        )
    labels = [label for label, (case, _) in SPREAD.items() if case in arguments.cases]
    with tempfile.TemporaryDirectory() as folder:
        for label in labels:
            runs, row = Runs(Path(folder), label, arguments.tiny, most), found["cases"].setdefault(label, {"rates": []})
            try:
                for gpus in arguments.gpus:
                    row["rates"].append(runs.rate(gpus))
                    share = row["rates"][-1]["tokens_per_s"] / row["rates"][0]["tokens_per_s"]
                    row["rates"][-1]["efficiency"] = round(share * row["rates"][0]["gpus"] / gpus, 4)
                    print(label, json.dumps(row["rates"][-1]), flush=True)
                rows = runs.case["rows"] * most
                one, several = (runs.losses(gpus, rows, f"same-{gpus}") for gpus in (1, most))
                row["losses_apart"] = max(abs(a - b) for a, b in zip(one, several, strict=True))
                resumed, begun = runs.killed(most, rows)
                row["resumed_from"] = begun
                row["resumed_losses_apart"] = max(
                    abs(a - b) for a, b in zip(several[begun:], resumed[begun:], strict=True)
                )
                print(label, json.dumps({key: value for key, value in row.items() if key != "rates"}), flush=True)
            except UserError as error:
                row["failed"] = str(error).partition("\n")[0]
                print(f"{label} FAILED: {row['failed']}", flush=True)
            shutil.rmtree(runs.work)
            if arguments.out:
                arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if any("failed" in row for row in found["cases"].values()) else 0
