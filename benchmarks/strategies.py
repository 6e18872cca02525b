"""Measures every strategy that the installed software allows, with the package's own loop; needs torch, transformers,
accelerate and this source tree alone.

    python benchmarks/strategies.py                        all models on 1, 2, 4, ... GPUs, within --budget seconds
    python benchmarks/strategies.py --models bert          a part of it; results are added to those of earlier calls
    python benchmarks/strategies.py --quick                a few steps of tiny models on 1 and 2 CPU processes

Rows are random tokens: `bert` has SST-2's lengths (13 tokens on average), `llama` has 1.0 billion weights and rows of
64 to 256 tokens. Rates are means over all steps after the first ten (64 on the fast path). Writes strategies.json and
strategies.md.
"""

import argparse
import dataclasses
import gc
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import numpy as np
import torch

from skytune.data.batches import TokenTable

WARMUP = {"off": 10, "auto": 64, "on": 64}
"""Steps that are not counted, without and with the fast path: that takes 32 at a time, and the first of them meet every
graph and every connection between cards for the first time."""
TIMED = 96
"""Steps of a large model whose time is taken, however long the run is said to be: from 500 its blocks are compiled."""

STATES = {
    "single": (16, 0),
    "dp": (16, 0),
    "ddp": (16, 0),
    "optimizer_sharding": (8, 8),
    "zero1": (8, 8),
    "zero2": (4, 12),
    "fsdp": (0, 16),
    "zero3": (0, 16),
}
"""Bytes a weight that every process has, and that all share: float32 weight 4, gradient 4, Adam's averages 8."""

Case = dict[str, Any]


def rows_of(lengths: np.ndarray, vocabulary: int) -> TokenTable:
    """Return random rows of given lengths."""
    import pyarrow as pa

    ends = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    tokens = np.random.default_rng(1).integers(5, vocabulary, lengths.sum()).astype(np.int32)
    ids = pa.ListArray.from_arrays(ends, pa.array(tokens))
    mask = pa.ListArray.from_arrays(ends, pa.array(np.ones_like(tokens, dtype=np.int8)))
    return TokenTable(pa.table({"input_ids": ids, "attention_mask": mask, "labels": lengths % 2}))


class Meter:
    """Totals between the end of the warm-up and the end of the run, and the memory of this process."""

    def __init__(self, warmup: int, most: int) -> None:
        self.warmup, self.most = warmup, most
        self.begin: tuple[float, ...] = ()
        self.end: tuple[float, ...] = ()
        self.losses: list[float] = []

    def on_step_end(self, run: Any) -> None:
        """Look at the clock."""
        self.losses.append(run.loss)
        now = (run.step, run.rows, run.tokens, run.flops, run.train_seconds, run.data_seconds)
        if run.step == self.warmup:
            self.begin = now
            if run.world.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
        self.end = now
        run.stop = run.step >= self.warmup + self.most


def model_of(name: str, quick: bool) -> tuple[Any, np.ndarray, int]:
    """Return a model's configuration, the lengths of its rows, and its number of tokens to draw from."""
    from transformers import BertConfig, LlamaConfig

    draw = np.random.default_rng(0)
    if name == "bert":
        small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        config = BertConfig(**(small if quick else {}))
        return config, np.clip(np.exp(draw.normal(2.35, 0.6, 200_000)), 3, 66).astype(np.int64), config.vocab_size
    sizes = (64, 2, 128, 4, 2) if quick else (2048, 22, 5632, 32, 4)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=sizes[0],
        num_hidden_layers=sizes[1],
        intermediate_size=sizes[2],
        num_attention_heads=sizes[3],
        num_key_value_heads=sizes[4],
        pad_token_id=0,
        use_cache=False,
    )
    return config, draw.integers(64, 257, 100_000), config.vocab_size


def measure(case: Case, world: Any, quick: bool) -> Case:
    """Train with one strategy; return what was measured (the same on all processes)."""
    from transformers import AutoModelForSequenceClassification

    from skytune.config import Precision, RunConfig, from_dict
    from skytune.data.order import SampleOrder
    from skytune.distributed.precision import set_matmul
    from skytune.job import JobDir
    from skytune.training.callbacks.base import Callbacks, Run
    from skytune.training.flops import peak, utilization, work_of
    from skytune.training.loop import train
    from skytune.training.select_step import open_steps
    from skytune.training.strategy import build_strategy

    world = dataclasses.replace(world, precision=Precision(case["precision"]))
    set_matmul(world.precision)
    devices = case["gpus"]
    config = from_dict(
        RunConfig,
        {
            "strategy": case["strategy"],
            "precision": case["precision"],
            "max_steps": case["steps"],
            "batch": {"global_size": case["batch"] * devices},
            "optimizer": {"lr": 1e-5},
            "compute": {"device": "cpu" if world.device.type == "cpu" else "auto", "packed": case["fast"]},
            "eval": {"every_epochs": 0},
            "compile": {"mode": case.get("compile", "off")},
        },
    )
    settings, lengths, vocabulary = model_of(case["model"], quick)
    torch.manual_seed(0)
    with torch.device(world.device):
        model = AutoModelForSequenceClassification.from_config(settings, dtype=torch.float32)
    parameters, work = sum(p.numel() for p in model.parameters()), work_of(model)
    strategy = build_strategy(config, world)
    strategy.prepare(model)
    optimizer = strategy.make_optimizer(config.optimizer)
    order = SampleOrder(lengths, seed=1, global_size=config.batch.global_size)
    run = Run(
        config=config,
        job=JobDir("/nonexistent"),
        world=world,
        model=strategy.model,
        work=work,
        total_steps=case["steps"],
        steps_per_epoch=order.steps_per_epoch,
        micro_batch=case["batch"],
    )
    meter = Meter(min(WARMUP[case["fast"]], case["steps"] // 2), TIMED if case["model"] == "llama" else case["steps"])
    steps_of = open_steps(run, strategy, optimizer, order, rows_of(lengths, vocabulary), lambda: False)
    train(
        run,
        steps=steps_of,
        strategy=strategy,
        order=order,
        callbacks=Callbacks([("meter", meter)]),
        validate=lambda: {},
        rewind=lambda _: 0,  # no checkpoint is kept
    )
    steps, rows, tokens, flops, seconds, waited = (b - a for a, b in zip(meter.begin, meter.end, strict=True))
    memory = torch.zeros(world.size, dtype=torch.float64)
    if world.device.type == "cuda":
        indices = range(torch.cuda.device_count()) if strategy.name == "dp" else [world.device.index]
        memory[world.rank] = max(torch.cuda.max_memory_allocated(i) for i in indices)
    memory = strategy.reduce_sum(memory.float().to(world.device)).cpu()
    own, shared = STATES[strategy.name]
    groups = config.strategy.shard_processes or devices
    share = utilization(flops, seconds, devices, peak(world.describe(), world.precision))
    return {
        **case,
        "steps": case["steps"],
        "steps_taken": run.report.get("steps_taken", "plain"),
        "compiled": run.report.get("captured", {}).get("compiled"),
        "parameters": parameters,
        "step_ms": 1000 * seconds / steps,
        "samples_per_s": rows / seconds,
        "tokens_per_s": tokens / seconds,
        "mfu": share,
        "peak_memory_bytes": float(memory.max()) or None,
        "theory_bytes": parameters * (own + shared / groups),
        "data_wait_share": waited / seconds,
        "first_loss": meter.losses[0],
        "last_loss": meter.losses[-1],
    }


def work(arguments: argparse.Namespace) -> None:
    """Be one process: measure the cases of a file one after the other, write each result as it comes."""
    from skytune.config import RunConfig, from_dict
    from skytune.distributed.context import join

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ.get("WORLD_SIZE", "1"))))
    device = {"compute": {"device": "cpu"}} if arguments.quick else {}
    _, world = join(from_dict(RunConfig, {**device, "precision": "fp32"}), None)
    cases = json.loads(arguments.worker.read_text())
    done = arguments.worker.with_suffix(".done")
    for number, case in enumerate(cases):
        say: Case = {"number": number}
        try:
            say["result"] = measure(case, world, arguments.quick)
        except BaseException as error:
            # Peers may wait for this process: the parent starts the rest anew.
            message = (str(error) or type(error).__name__).splitlines()[0][:300]
            with done.open("a") as file:
                file.write(json.dumps({**say, "error": f"{type(error).__name__}: {message}"}) + "\n")
            os._exit(1)
        gc.collect()
        if world.device.type == "cuda":
            torch.cuda.empty_cache()
        if world.main:
            with done.open("a") as file:
                file.write(json.dumps(say) + "\n")


def cases_of(
    models: list[str], gpus: int, steps: int, large_steps: int, deepspeed: bool, quick: bool, most: bool
) -> list[Case]:
    """Return what is measured on so many GPUs, the most important first; `most` where these are all GPUs."""
    precision = "fp32" if quick else "bf16"
    found: list[Case] = []

    def add(model: str, batch: int, label: str, processes: int | None = None, **strategy: Any) -> None:
        count = steps if model == "bert" else large_steps
        count = min(count, 50) if label == "dp" else count  # known to be slow
        count = 4 * count if "fast" in label and model == "bert" else count
        found.append(
            {
                "model": model,
                "batch": batch,
                "label": label,
                "strategy": {"name": label.split()[0], **strategy},
                "gpus": gpus,
                "processes": processes or gpus,
                "steps": count,
                "precision": precision,
                # FSDP on several GPUs is captured where that is asked for.
                "fast": "off" if "fast" not in label else "on" if label == "fsdp fast" and gpus > 1 else "auto",
            }
        )

    small, large, row = (4, 8, 4) if quick else (32, 128, 16)
    zero = ["zero1", "zero2", "zero3"] if deepspeed and gpus > 1 else []
    if "bert" in models:
        for batch in (large, small):
            add("bert", batch, "single" if gpus == 1 else "ddp")
            if not quick:
                add("bert", batch, "single fast" if gpus == 1 else "ddp fast")
        if gpus > 1:
            add("bert", large, "fsdp")
            add("bert", large, "optimizer_sharding")
            for name in zero:
                add("bert", large, name)
            if most:
                add("bert", large, "fsdp grad_op", sharding="grad_op")
            if most and not quick:
                add("bert", large, "dp", processes=1)
    if "llama" in models:
        plain = "single" if gpus == 1 else "ddp"
        for label in (plain, "fsdp") if quick else (plain, f"{plain} fast", "fsdp", "fsdp fast"):
            add("llama", row, label)
        if gpus > 1:
            for name in zero:
                add("llama", row, name)
            if most:
                add("llama", row, "optimizer_sharding")
                add("llama", row, "fsdp grad_op", sharding="grad_op")
                add("llama", row, "fsdp recomputing", activation_checkpointing=True)
    return found


def parts_of(cases: list[Case]) -> list[list[Case]]:
    """Return the cases by what may share processes, the plain ones first.

    DeepSpeed's engines keep their memory, and stage 3 changes torch's own modules: each has processes of its own.
    """
    own = [case for case in cases if case["label"].startswith("zero")]
    rest = [case for case in cases if case not in own]
    counts = sorted({case["processes"] for case in rest}, reverse=True)
    return [[case for case in rest if case["processes"] == count] for count in counts] + [[case] for case in own]


def launch(cases: list[Case], folder: Path, quick: bool, until: float) -> tuple[list[Case], list[str]]:
    """Measure cases that need the same processes; return results, and what could not be run with the reason."""
    results: list[Case] = []
    failed: list[str] = []
    left = list(cases)
    while left:
        what = f"{left[0]['label']}, {left[0]['model']}, {left[0]['gpus']} GPUs"
        if time.monotonic() > until:
            failed += [f"{c['label']}, {c['model']}, batch {c['batch']}, {c['gpus']} GPUs: out of time" for c in left]
            break
        file = folder / "cases.json"
        done = file.with_suffix(".done")
        done.unlink(missing_ok=True)
        file.write_text(json.dumps(left))
        processes = left[0]["processes"]
        start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        command = [sys.executable, *(start if processes > 1 else []), __file__, "--worker", str(file)]
        env = dict(os.environ)
        if not quick:
            shown = env.get("CUDA_VISIBLE_DEVICES", "").split(",") if env.get("CUDA_VISIBLE_DEVICES") else None
            env["CUDA_VISIBLE_DEVICES"] = ",".join((shown or [str(i) for i in range(64)])[: left[0]["gpus"]])
        tail = ""
        try:
            child = subprocess.run(
                [*command, *(["--quick"] if quick else [])],
                env=env,
                timeout=max(30.0, until - time.monotonic()),
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
            tail = (child.stderr or "").strip()[-300:]
        except subprocess.TimeoutExpired:
            tail = "out of time"
        said = [json.loads(line) for line in done.read_text().splitlines()] if done.is_file() else []
        ended = {s["number"]: s["result"] for s in said if "result" in s}
        for number in sorted(ended):
            results.append(ended[number])
            print(line(ended[number]), flush=True)
        if len(ended) < len(left):
            reason = next((s["error"] for s in said if "error" in s), tail)
            what = "{label}, {model}, batch {batch}, {gpus} GPUs".format(**left[len(ended)])
            failed.append(f"{what}: {reason}")
            print(f"FAILED {failed[-1]}", flush=True)
        left = left[len(ended) + 1 :]
    return results, failed


def line(r: Case) -> str:
    """Return a result as one line."""
    share = "n/a" if r["mfu"] is None else f"{100 * r['mfu']:.1f} %"
    memory = "n/a" if r["peak_memory_bytes"] is None else f"{r['peak_memory_bytes'] / 2**30:.2f} GiB"
    return (
        f"{r['model']:6} {r['label']:20} {r['gpus']} GPU x {r['batch']:3}  {r['step_ms']:7.1f} ms  "
        f"{r['samples_per_s']:9.1f} samples/s  MFU {share}  {memory}  {r['steps_taken']}"
    )


def table(report: dict[str, Any]) -> str:
    """Return all results as Markdown; results put together from several machines say which `call` they are of."""
    ones = [r for r in report["results"] if r["gpus"] == 1]
    alone = {(r["model"], r["batch"], r["fast"], r.get("call")): r["tokens_per_s"] for r in ones}
    calls = any("call" in r for r in report["results"])
    text = [
        "# Strategies measured",
        "",
        f"{report['date']}, {report['device']}, " + ", ".join(f"{k} {v}" for k, v in report["versions"].items()) + ".",
        f"`{report['command']}`. Rates are means after {WARMUP['off']} steps, {WARMUP['auto']} on the fast path; a "
        "step ends when the device is done. MFU counts no padding. Efficiency compares tokens/s (other rows come by on "
        "other numbers of GPUs) with one GPU at the same batch a GPU, the fast path with the fast path. Memory is "
        "the most that tensors took on any GPU after the warm-up; in theory, weights, gradients and Adam's averages "
        "alone take the last column.",
        "",
        "| model | weights | strategy | precision | GPUs | batch a GPU | steps | ms a step | samples/s | tokens/s "
        "| MFU | efficiency | GiB a GPU | states in theory, GiB |" + (" call |" if calls else ""),
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|" + ("---|" if calls else ""),
    ]
    order = sorted(report["results"], key=lambda r: (r["model"], -r["batch"], r["gpus"], r["label"], r.get("call", 0)))
    for r in order:
        one = alone.get((r["model"], r["batch"], r["fast"], r.get("call")))  # other machines have other CPUs
        efficiency = "n/a" if one is None else f"{100 * r['tokens_per_s'] / one / r['gpus']:.0f} %"
        share = "n/a" if r["mfu"] is None else f"{100 * r['mfu']:.1f} %"
        memory = "n/a" if r["peak_memory_bytes"] is None else f"{r['peak_memory_bytes'] / 2**30:.2f}"
        text.append(
            f"| {r['model']} | {r['parameters'] / 1e6:.0f} M | {r['label']} | {r['precision']} | {r['gpus']} "
            f"| {r['batch']} | {r['steps']} | {r['step_ms']:.1f} | {r['samples_per_s']:.0f} | {r['tokens_per_s']:.0f} "
            f"| {share} | {efficiency} | {memory} | {r['theory_bytes'] / 2**30:.2f} |"
            + (f" {r.get('call', '')} |" if calls else "")
        )
    text += [line for note in report.get("notes", []) for line in ("", note)]
    text += ["", "Not run:", ""] + [f"- {reason}" for reason in report["not_run"] or ["nothing"]]
    return "\n".join(text) + "\n"


def main() -> int:
    """Run everything; return the exit code: 1 where nothing could be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=["bert", "llama"], default=["bert", "llama"])
    parser.add_argument("--labels", nargs="+", help="only these strategies, as the table names them; default all")
    parser.add_argument("--gpus", nargs="+", type=int, help="numbers of GPUs; default 1, 2, 4, ... as there are")
    parser.add_argument(
        "--whole", type=int, help="number of GPUs on which the rarer strategies run too; default the most"
    )
    parser.add_argument("--steps", type=int, default=200, help="of bert")
    parser.add_argument("--large-steps", type=int, default=100, help="of llama")
    parser.add_argument("--budget", type=float, default=460, help="seconds; what does not fit is said")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--quick", action="store_true", help="tiny models on CPU processes")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments)
        return 0
    there = 2 if arguments.quick else torch.cuda.device_count()
    if there == 0:
        print("no GPU is visible: --quick runs on the CPU", file=sys.stderr)
        return 1
    numbers = arguments.gpus or [n for n in (1, 2, 4, 8) if n <= there]
    steps, large = (12, 12) if arguments.quick else (arguments.steps, arguments.large_steps)
    has_zero = importlib.util.find_spec("deepspeed") is not None
    has_zero = has_zero and (not arguments.quick or os.environ.get("DS_ACCELERATOR") == "cpu")
    arguments.output.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + arguments.budget
    results: list[Case] = []
    failed = [] if has_zero else ["zero1, zero2, zero3: DeepSpeed is not installed there"]
    failed += [f"more than {max(numbers)} GPUs: not there, or not asked for"]
    for number in sorted(numbers, key=lambda n: (n != 1, -n)):  # what lies between the ends comes last
        most = number == (arguments.whole or max(numbers))
        cases = cases_of(arguments.models, number, steps, large, has_zero, arguments.quick, most)
        for part in parts_of([case for case in cases if case["label"] in (arguments.labels or [case["label"]])]):
            found, missing = launch(part, arguments.output, arguments.quick, until)
            results, failed = results + found, failed + missing
    for name in ("cases.json", "cases.done"):
        (arguments.output / name).unlink(missing_ok=True)
    write(arguments, results, failed, there)
    return 0 if results else 1


def write(arguments: argparse.Namespace, results: list[Case], failed: list[str], there: int) -> None:
    """Write both files; results of earlier calls stay where this one has none of the same case."""
    from skytune.training.versions import versions

    name = "strategies-quick" if arguments.quick else "strategies"
    file = arguments.output / f"{name}.json"
    old = json.loads(file.read_text()) if file.is_file() else {}
    before = old.get("results", [])

    def key(r: Case) -> tuple[Any, ...]:
        return r["model"], r["label"], r["gpus"], r["batch"]

    now = {key(r) for r in results}
    device = f"{platform.machine()} CPU" if arguments.quick else f"{there} x {torch.cuda.get_device_name(0)}"
    shown = {k: v for k, v in versions().items() if k in ("python", "torch", "transformers", "accelerate")}
    report = {
        "date": date.today().isoformat(),
        "device": device,
        "versions": {**shown, "CUDA": str(torch.version.cuda)},
        "command": "python benchmarks/strategies.py " + " ".join(sys.argv[1:]),
        "results": [r for r in before if key(r) not in now] + results,
        "not_run": failed,
        "notes": old.get("notes", []),  # written by hand
    }
    file.write_text(json.dumps(report, indent=1))
    (arguments.output / f"{name}.md").write_text(table(report))
    print(f"wrote {file} and {name}.md beside it")


if __name__ == "__main__":
    sys.exit(main())
