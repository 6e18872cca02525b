"""What a checkpoint costs the training loop: asynchronous saves against synchronous ones and against `torch.save`.

    python benchmarks/checkpoint.py --out benchmarks/results          on a GPU machine
    python benchmarks/checkpoint.py --quick                           a small model, to see that it runs

BERT-base from its configuration (110 million parameters, random weights) is trained on random tokens with AdamW. While
its steps run, the whole state is saved again and again, into a folder and into memory. Needs torch, transformers,
safetensors and this source tree alone. Exits with 1 where a copy is not what was saved, or where on a GPU an
asynchronous save to a folder holds the loop up for more than 5% of its duration.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch

from skytune.checkpoint.async_writer import SaveSucceeded, Writer
from skytune.checkpoint.optimizer_state import flatten_optimizer
from skytune.checkpoint.shards import open_tensors
from skytune.checkpoint.store import Store

TARGET = 0.05
"""Largest share of a save's duration that may hold training up, on a GPU, into a folder."""

State = dict[str, dict[str, torch.Tensor]]


class Training:
    """A loop of real steps over random tokens."""

    def __init__(self, quick: bool) -> None:
        from transformers import BertConfig, BertForSequenceClassification

        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
        torch.manual_seed(0)
        self.model = BertForSequenceClassification(BertConfig(**(small if quick else {}))).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        rows, length = (4, 16) if quick else (32, 128)
        self.tokens = torch.randint(0, 30000, (rows, length), device=self.device)
        self.labels = torch.randint(0, 2, (rows,), device=self.device)

    def step(self) -> float:
        """Take an optimizer step; return its seconds."""
        begun = time.perf_counter()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            loss = self.model(input_ids=self.tokens, labels=self.labels).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.synchronize()
        return time.perf_counter() - begun

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def state(self) -> tuple[State, dict[str, Any]]:
        """Return what a checkpoint holds, as the training room saves it: tensors, and the optimizer's plain values."""
        tensors, values = flatten_optimizer(self.optimizer)
        return {"model": self.model.state_dict(), "optimizer": tensors}, values


def measure(training: Training, store: Store, saves: int, apart: int, wait: bool, prepare: bool) -> dict[str, Any]:
    """Save while steps run; return seconds of every save and stall, and of the steps beside them."""
    writer = Writer(store, keep=2)
    prepared = 0.0
    if prepare:
        begun = time.perf_counter()
        writer.prepare(training.state()[0])
        prepared = time.perf_counter() - begun
    alone = [training.step() for _ in range(apart)]
    stalls, seconds, beside, copy = [], [], [], {}
    for number in range(1, saves + 1):
        tensors, values = training.state()
        if number == saves:
            copy = {file: {name: t.detach().clone() for name, t in named.items()} for file, named in tensors.items()}
        training.synchronize()
        stalls.append(writer.submit(number, tensors, {"step": number}, documents={"optimizer": values}, wait=wait))
        while writer.busy:
            beside.append(training.step())
        (event,) = writer.close()
        if not isinstance(event, SaveSucceeded):
            raise SystemExit(f"the save failed: {event.message}")
        seconds.append(event.seconds)
        size = event.bytes
        alone += [training.step() for _ in range(apart)]  # the state has changed when the copies are compared
    return {
        "stall_s": stalls,
        "save_s": seconds,
        "step_ms": 1e3 * statistics.median(alone),
        "step_beside_ms": 1e3 * statistics.median(beside) if beside else None,
        "bytes": size,
        "prepare_s": prepared,
        "same": is_same(store, saves, copy),
    }


def is_same(store: Store, step: int, copy: State) -> bool:
    """Read the checkpoint back and compare every tensor, to the bit, with a copy made when it was submitted."""
    with tempfile.TemporaryDirectory() as folder:
        found = store.get(step, into=Path(folder))
        return all(equal(dict(open_tensors(found, file)), named) for file, named in copy.items())


def equal(there: dict[str, torch.Tensor], here: dict[str, torch.Tensor]) -> bool:
    """Whether the same tensors are in both, to the bit."""
    same = (torch.equal(there[name].cpu(), tensor.cpu()) for name, tensor in here.items())
    return there.keys() == here.keys() and all(same)


def measure_torch_save(training: Training, folder: Path, saves: int, apart: int) -> dict[str, Any]:
    """Do the same with `torch.save`, which the loop waits for; no hash, no manifest, no flush to the disk."""
    seconds, alone = [], [training.step() for _ in range(apart)]
    for number in range(saves):
        path = folder / f"{number % 2}.pt"
        copy = {name: tensor.clone() for name, tensor in training.model.state_dict().items()}
        training.synchronize()
        begun = time.perf_counter()
        torch.save({"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}, path)
        seconds.append(time.perf_counter() - begun)
        alone += [training.step() for _ in range(apart)]
    same = equal(torch.load(path, weights_only=True)["model"], copy)
    return {
        "stall_s": seconds,
        "save_s": seconds,
        "step_ms": 1e3 * statistics.median(alone),
        "step_beside_ms": None,
        "bytes": path.stat().st_size,
        "prepare_s": 0.0,
        "same": same,
    }


def machine(training: Training) -> dict[str, Any]:
    """Return what the numbers depend on."""
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    packages = ("torch", "transformers", "safetensors", "numpy", "fsspec")
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "card": torch.cuda.get_device_name() if training.device.type == "cuda" else None,
        "cpu": f"{cpu}, {cores} cores",
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "parameters": sum(parameter.numel() for parameter in training.model.parameters()),
    }


def table(found: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    where = found["card"] or "no GPU"
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    lines = [
        "# What a checkpoint costs the training loop",
        "",
        f"{found['date']}, {where}; {found['cpu']}; Python {found['python']}, {versions}.",
        f"A model of {found['parameters'] / 1e6:.0f} million parameters with AdamW's state; medians over "
        f"{found['saves']} saves while training steps run (`benchmarks/checkpoint.py`).",
        "",
        "| Store | Way | Checkpoint | Save | Stall | Stall / save | Step | Step beside a save | Copy |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in found["results"]:
        beside = f"{row['step_beside_ms']:.1f} ms" if row["step_beside_ms"] else "-"
        stall, save = statistics.median(row["stall_s"]), statistics.median(row["save_s"])
        lines.append(
            f"| {row['store']} | {row['way']} | {row['bytes'] / 1e6:.0f} MB | {save:.3f} s | {1e3 * stall:.1f} ms "
            f"| {stall / save:.1%} | {row['step_ms']:.1f} ms | {beside} | {'the same' if row['same'] else 'DIFFERS'} |"
        )
    lines += [
        "",
        f"The host's buffers were made before the first save, in {found['prepare_s']:.2f} s. Without that the",
    ]
    lines += [f"first save held the loop up for {found['first_unprepared_s']:.2f} s."]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure, print, write; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model and two saves")
    parser.add_argument("--saves", type=int, help="saves a way (default 7; 2 with --quick)")
    parser.add_argument("--folder", type=Path, help="where the folder store lies (default: the temporary folder)")
    parser.add_argument("--out", type=Path, help="folder that gets checkpoint.json and checkpoint.md")
    arguments = parser.parse_args()
    saves, apart = arguments.saves or (2 if arguments.quick else 7), 2 if arguments.quick else 20
    training = Training(arguments.quick)
    for _ in range(3):
        training.step()  # AdamW makes its state, CUDA its kernels
    results: list[dict[str, Any]] = []

    def add(store: str, way: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        print(f"{store}, {way} ...", file=sys.stderr, flush=True)
        results.append({"store": store, "way": way, **run()})
        return results[-1]

    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        first = measure(training, Store.open(f"file://{folder}/first", "run"), 1, apart, False, False)
        add("file://", "torch.save", lambda: measure_torch_save(training, Path(folder), saves, apart))
        urls = {"file://": f"file://{folder}/store", "memory://": f"memory://{uuid.uuid4().hex}"}
        for kind, url in urls.items():
            for way, wait in (("synchronous", True), ("asynchronous", False)):
                store = Store.open(url, way)
                last = add(kind, way, lambda s=store, w=wait: measure(training, s, saves, apart, w, True))  # type: ignore[misc]
                store.clear()
    found = {
        **machine(training),
        "saves": saves,
        "prepare_s": last["prepare_s"],
        "first_unprepared_s": first["stall_s"][0],
        "results": results,
    }
    text = table(found)
    print(text)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "checkpoint.json").write_text(json.dumps(found, indent=1) + "\n")
        (arguments.out / "checkpoint.md").write_text(text)
    if not all(row["same"] for row in (first, *results)):
        print("a copy is not what was saved", file=sys.stderr)
        return 1
    row = next(row for row in results if (row["store"], row["way"]) == ("file://", "asynchronous"))
    share = statistics.median(row["stall_s"]) / statistics.median(row["save_s"])
    if found["card"] and share > TARGET:
        print(
            f"an asynchronous save holds training up for {share:.1%} of its duration, not {TARGET:.0%}", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
