"""Training speed of many architectures on one GPU: this package, the HF Trainer and a compiled hand loop, side by side.

    python benchmarks/architectures.py --out benchmarks/results
    python benchmarks/architectures.py --only gpt2 vit-base
    python benchmarks/architectures.py --only bert-base vit-base --tiny      small models, to see that it runs on a CPU

Models have their published shapes and random weights; rows are made: as long as SST-2's (13 tokens on average, at most
66), or long text (254 on average, at most 512), and 224-pixel images as tensors. Needs torch, transformers, accelerate,
pyarrow and this source tree alone. Every way has a process of its own: they compile at once, a few at a time, and
are timed one after the other. `ours` is the step that `compute.packed=auto` takes, fed from the table as in a run,
without callbacks: where rows are padded, those of like lengths together, as is the default (`batch.bucket_batches`);
the HF Trainer pads every batch to its longest row; the hand loop is `torch.compile(mode="reduce-overhead")` over rows
padded to one length, with torch's fused AdamW.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import numpy as np
import torch

from skytune.config import Precision, RunConfig, from_dict
from skytune.data.batches import Padding, TokenTable
from skytune.data.order import SampleOrder
from skytune.distributed.context import DistContext
from skytune.job import JobDir
from skytune.training.callbacks.base import Run
from skytune.training.captured_step import CapturedSteps
from skytune.training.flops import peak, work_of
from skytune.training.select_step import open_steps
from skytune.training.strategy import Strategy
from skytune.training.train_step import TrainStep

BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert-base": ("Bert", {}),
    "roberta-base": ("Roberta", {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}),
    "xlm-roberta-base": ("XLMRoberta", {"vocab_size": 250002, "max_position_embeddings": 514, "type_vocab_size": 1}),
    "electra-base": ("Electra", {**BASE, "embedding_size": 768}),
    "deberta-v3-base": (
        "DebertaV2",
        {
            **BASE,
            "vocab_size": 128100,
            "relative_attention": True,
            "position_buckets": 256,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
            "type_vocab_size": 0,
        },
    ),
    "modernbert-base": ("ModernBert", {}),
    "mpnet-base": ("MPNet", {"vocab_size": 30527, "max_position_embeddings": 514}),
    "gpt2": ("GPT2", {"pad_token_id": 0}),
    "t5-base": ("T5", {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "decoder_start_token_id": 0}),
    "bart-base": (
        "Bart",
        {
            "d_model": 768,
            "encoder_layers": 6,
            "decoder_layers": 6,
            "encoder_attention_heads": 12,
            "decoder_attention_heads": 12,
            "encoder_ffn_dim": 3072,
            "decoder_ffn_dim": 3072,
        },
    ),
    "vit-base": ("ViT", {}),
}
"""Name: (transformers' class, options of its configuration), as published; t5 and bart as classifiers of sentences."""

PADDED = ("deberta-v3-base", "mpnet-base", "t5-base")
"""Whose rows are padded: they do not take their attention from transformers' interface, or add to its scores."""

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}

WARM, TIMED = 64, 256
LONG_WARM, LONG_TIMED = 32, 125
"""Steps of ours before and while time is taken, on short text and on long: an epoch of that has 125, of all lengths."""

TOGETHER = 12
"""Processes that compile at once; they are timed one by one."""

WAYS = ("ours", "long", "hand", "trainer")
"""Ours on short and on long text, a compiled loop, the HF Trainer; each in a process of its own."""

ROWS = 12_000


def model_of(name: str, seed: int = 0, **more: Any) -> Any:
    """Return a classifier with random weights."""
    import transformers

    transformers.logging.set_verbosity_error()
    kind, options = ARCHITECTURES[name]
    config = getattr(transformers, f"{kind}Config")(num_labels=2, **{**options, **more})
    torch.manual_seed(seed)
    task = "Image" if kind == "ViT" else "Sequence"
    return getattr(transformers, f"{kind}For{task}Classification")(config)


class Images:
    """What a table of images gives: a few batches' worth of random ones, again and again."""

    one_length = streamed = unpadded = False
    images, padding = None, Padding()

    def __init__(self, rows: int = 6400, held: int = 256) -> None:
        self.pixels = torch.randn(held, 3, 224, 224, generator=torch.Generator().manual_seed(0))
        self.labels = np.arange(rows) % 2
        self.lengths = np.ones(rows, dtype=np.int64)
        self.columns = {"pixel_values": self.pixels, "labels": self.labels}

    def __len__(self) -> int:
        return len(self.labels)

    def batch(
        self, rows: np.ndarray, multiple: int = 1, epoch: int | None = None, raw: bool = False
    ) -> dict[str, torch.Tensor]:
        """Return a batch as the model takes it."""
        return {
            "pixel_values": self.pixels[torch.from_numpy(rows % len(self.pixels))],
            "labels": torch.from_numpy(self.labels[rows]),
        }


def table_of(model: Any, long: bool = False, rows: int = ROWS) -> Any:
    """Return rows for a model: random tokens, one end of the text in each."""
    import pyarrow as pa

    if model.config.model_type == "vit":
        return Images()
    random = np.random.default_rng(0)
    drawn = random.normal(254, 120, rows) if long else random.lognormal(2.4, 0.6, rows)
    lengths = np.clip(drawn, *((16, 512) if long else (4, 66))).astype(int)
    end = getattr(model.config, "eos_token_id", None)
    ids = [
        np.append(random.integers(1000, 30000, n - 1), 102 if end is None else end).astype(np.int32) for n in lengths
    ]
    mask = [np.ones(n, dtype=np.int8) for n in lengths]
    columns = {"input_ids": ids, "attention_mask": mask, "labels": random.integers(0, 2, rows)}
    return TokenTable(pa.table(columns), Padding(int(model.config.pad_token_id or 0)))


def parts_of(
    model: Any,
    table: Any,
    batch: int,
    precision: Precision = Precision.bf16,
    steps: int = 2000,
    bucket: int = 1,
    **groups: Any,
) -> Any:
    """Return (run, strategy, optimizer, order, table, whether to end), of which ways to take steps are made."""
    config = from_dict(RunConfig, {"batch": {"global_size": batch, "bucket_batches": bucket}, **groups})
    order = SampleOrder(table.lengths, seed=config.seed, global_size=batch, bucket_batches=config.batch.bucket_batches)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    world = DistContext(0, 1, device, precision)
    strategy = Strategy(config, world)
    strategy.prepare(model)
    model.train()
    run = Run(config, JobDir("/nonexistent"), world, model, steps, order.steps_per_epoch, micro_batch=batch)
    return run, strategy, strategy.make_optimizer(config.optimizer), order, table, lambda: False


def take(steps: TrainStep, count: int, rate: float = 5e-5) -> list[float]:
    """Take steps as the loop does; return their losses."""
    losses: list[float] = []
    while len(losses) < count:
        taken = steps.take([rate] * min(steps.most, count - len(losses)))
        losses += taken.losses
        steps.run.step += len(taken.losses)
    return losses


def synchronized() -> float:
    """Return the time once the device has nothing left to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(steps: TrainStep, warm: int, count: int) -> float:
    """Return seconds a step."""
    take(steps, warm)
    start = synchronized()
    take(steps, count)
    return (synchronized() - start) / count


def trainer(model: Any, table: Any, batch: int, steps: int = 32, warm: int = 12) -> float:
    """Return seconds a step of the HF Trainer in bf16."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Rows(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return len(table)

        def __getitem__(self, index: int) -> int:
            return int(index)

    class Clock(TrainerCallback):
        started = seconds = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == warm:
                self.started = synchronized()

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.seconds = synchronized() - self.started

    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=batch,
            max_steps=steps,
            bf16=torch.cuda.is_available(),
            report_to="none",
            save_strategy="no",
            logging_steps=10,
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        Trainer(
            model=model,
            args=settings,
            train_dataset=Rows(),
            callbacks=[clock],
            data_collator=lambda rows: table.batch(np.array(rows)),
        ).train()
    return clock.seconds / (steps - warm)


def hand_loop(name: str, table: Any, batch: int) -> Callable[[int], None]:
    """Return a function that takes steps of a compiled loop; it has taken a few."""
    model = model_of(name).cuda().train()
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    compiled = torch.compile(model, mode="reduce-overhead", dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=True)
    random, longest = np.random.default_rng(0), int(table.lengths.max())

    def steps(count: int) -> None:
        for _ in range(count):
            rows = random.integers(0, len(table), batch)
            tensors = {k: v.pin_memory().to("cuda", non_blocking=True) for k, v in table.batch(rows, longest).items()}
            with torch.autocast("cuda", torch.bfloat16):
                loss = compiled(**tensors).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    steps(6)
    return steps


def kernels_of(work: Callable[[], object], steps: int, most: int = 24) -> dict[str, Any]:
    """Return what the device did in some steps: milliseconds and number of kernels of one, and those that took most,
    as (milliseconds, how often, name)."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        synchronized()
    found = sorted(seen.key_averages(), key=lambda kernel: kernel.self_device_time_total, reverse=True)
    longest = [(k.self_device_time_total / 1e3 / steps, k.count / steps, k.key[:160]) for k in found[:most]]
    total = sum(kernel.self_device_time_total for kernel in found)
    return {"ms": total / 1e3 / steps, "count": sum(k.count for k in found) / steps, "longest": longest}


def one(name: str, way: str, tiny: bool = False, profile: bool = False) -> dict[str, Any]:
    """Compile, say so, wait for a word, take the time of one way; return what it adds to the architecture's row."""
    torch.set_num_threads(4)
    clock, small = time.perf_counter(), TINY if tiny else {}
    model, batch = model_of(name, **small), 4 if tiny else 64 if name.startswith("vit") else 32
    work, table = work_of(model), table_of(model, long=way == "long", rows=4000 if way == "long" else ROWS)
    row: dict[str, Any] = {"name": name, "batch": batch}
    if way == "trainer":
        _ready()
        return row | {"trainer_ms": 1e3 * trainer(model, table, batch)}
    if way == "hand":
        loop = hand_loop(name, table, batch)
        row["hand_ready_s"] = time.perf_counter() - clock
        _ready()
        loop(20)
        start = synchronized()
        loop(100)
        return row | {"hand_ms": 10 * (synchronized() - start)}
    like = RunConfig().batch.bucket_batches if name in PADDED else 1
    steps = open_steps(*parts_of(model, table, batch, bucket=like))
    take(steps, 2 * steps.most)
    ready = time.perf_counter() - clock
    _ready()
    if way == "long":
        row["long_ms"] = 1e3 * timed(steps, LONG_WARM, LONG_TIMED)
        first = steps.run.step - LONG_TIMED
        lengths = [table.lengths[steps.order.rows(step)] for step in range(first, steps.run.step)]
        row["long_tokens"] = float(np.mean([rows.sum() for rows in lengths]))
        most = peak(torch.cuda.get_device_name(), Precision.bf16) if torch.cuda.is_available() else None
        if work is not None and most:
            done = float(np.mean([work.of(rows) for rows in lengths]))
            row["long_mfu"] = done / (row["long_ms"] / 1e3) / most
        return row | ({"kernels": kernels_of(lambda: take(steps, steps.most), steps.most)} if profile else {})
    row |= {"steps": steps.run.report.get("steps_taken"), "ready_s": ready, **steps.run.report.get("captured", {})}
    row |= {"gradient_error": steps.gradient_error} if isinstance(steps, CapturedSteps) else {}
    row["ours_ms"] = 1e3 * timed(steps, WARM, TIMED)
    return row | ({"images_per_s": batch / row["ours_ms"] * 1e3} if name.startswith("vit") else {})


def _ready() -> None:
    print("READY", flush=True)
    if not sys.stdin.readline():  # whoever would take the times was ended
        sys.exit(1)


def main() -> int:
    """Start all processes, time them in turn, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(ARCHITECTURES), default=list(ARCHITECTURES))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--out", type=Path, help="folder of the table; rows of earlier calls that lie there stay")
    parser.add_argument("--tiny", action="store_true", help="of BERT's kind and ViT; the trainer and ours alone")
    parser.add_argument(
        "--profile", action="store_true", help="print the kernels that take most of a step on long text"
    )
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        import logging

        logging.basicConfig(level="INFO", format="%(message)s")
        found = one(arguments.one[0], arguments.one[1], arguments.tiny, arguments.profile)
        if told := found.pop("kernels", None):
            print("KERNELS " + json.dumps({"name": found["name"], **told}), flush=True)
        rounded = {key: round(value, 4) if isinstance(value, float) else value for key, value in found.items()}
        print("RESULT " + json.dumps(rounded), flush=True)
        return 0
    failed, rows = 0, dict[str, dict[str, Any]]()
    wanted = [(name, way) for name in arguments.only for way in arguments.ways]
    wanted = [(name, way) for name, way in wanted if way != "long" or not name.startswith("vit")]
    wanted = [(name, way) for name, way in wanted if way in ("ours", "trainer") or not arguments.tiny]
    threads = max(3, (os.cpu_count() or 1) // max(min(TOGETHER, len(wanted)), 1))
    for at in range(0, len(wanted), TOGETHER):
        children = [(name, way, *_start(name, way, arguments, threads)) for name, way in wanted[at : at + TOGETHER]]
        for _, _, child, _ in children:
            next((line for line in child.stdout or () if line.startswith("READY")), None)
        for name, way, child, log in children:
            told, _ = child.communicate("go\n" if child.poll() is None else None)
            line = next((text for text in told.splitlines() if text.startswith("RESULT ")), None)
            row = rows.setdefault(name, {"name": name})
            for text in told.splitlines():
                if text.startswith("KERNELS "):
                    print(text, flush=True)
            if line is None:
                log.seek(0)
                failed += 1
                row[f"{way}_failed"] = f"exit code {child.returncode}"
                print(f"{name}, {way}: FAILED with exit code {child.returncode}\n{log.read()[-3000:]}", flush=True)
            else:
                row |= json.loads(line.removeprefix("RESULT "))
                print(way, json.dumps(row), flush=True)
            if arguments.out:
                write(arguments.out, rows)
    return 1 if failed else 0


def _start(name: str, way: str, given: argparse.Namespace, threads: int) -> tuple[subprocess.Popen[str], IO[str]]:
    """Start a process of one way to train an architecture; return it and what it logs."""
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the child
    command = [sys.executable, "-X", "faulthandler", __file__, "--one", name, way]
    command += [f"--{option}" for option in ("tiny", "profile") if getattr(given, option)]
    environment = {**os.environ, "TQDM_DISABLE": "1", "TORCHINDUCTOR_COMPILE_THREADS": str(threads)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=log, text=True), log


def write(folder: Path, rows: dict[str, dict[str, Any]]) -> None:
    """Write the table as JSON and as Markdown; rows of other architectures that lie there stay."""
    import transformers

    file = folder / "architectures.json"
    call = {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "date": date.today().isoformat(),
        "command": "python benchmarks/architectures.py " + " ".join(sys.argv[1:]),
    }
    before = json.loads(file.read_text()) if file.is_file() else {"rows": []}
    kept = [row for row in before["rows"] if row["name"] not in rows]
    every = [*kept, *({**row, "call": call} for row in rows.values())]
    every.sort(key=lambda row: list(ARCHITECTURES).index(row["name"]))
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**before, "rows": every}, indent=1) + "\n")
    calls = list(dict.fromkeys(json.dumps(row["call"]) for row in every))
    lines = ["# Training speed by architecture", ""]
    for number, text in enumerate(calls, 1):
        told = json.loads(text)
        lines.append(f"{number}. `{told.pop('command')}`: " + ", ".join(f"{k} {v}" for k, v in told.items()))
    lines += ["", "ms a step; MFU on long text (254 tokens on average) counts no padding. A row is of one call.", ""]
    lines.append(
        "| model | batch | steps | ours | HF, bf16 | hand loop | times HF | times hand | long text | MFU | call |"
    )
    lines += ["|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in every:
        taken = str(row.get("steps") or "").partition(":")[0] + (", compiled" if row.get("compiled") else "")
        cells = [row["name"], row.get("batch", ""), taken]
        cells += [_number(row.get(key), "{:.2f}") for key in ("ours_ms", "trainer_ms", "hand_ms")]
        cells += [_number(_ratio(row, key), "{:.1f}x") for key in ("trainer_ms", "hand_ms")]
        cells += [_number(row.get("long_ms"), "{:.2f}"), _number(row.get("long_mfu"), "{:.1%}")]
        lines.append("| " + " | ".join(map(str, cells)) + f" | {calls.index(json.dumps(row['call'])) + 1} |")
    for row in every:
        if "images_per_s" in row:
            lines += ["", f"{row['name']}: {row['images_per_s']:.0f} images/s from tensors."]
        for way in WAYS:
            if f"{way}_failed" in row:
                lines += ["", f"{row['name']}, {way}: failed with {row[f'{way}_failed']}."]
        if str(row.get("steps")).startswith("plain"):
            lines += ["", f"{row['name']} is not captured: {row['steps']}"]
    notes = before.get("notes", [])  # written by hand
    (folder / "architectures.md").write_text(
        "\n".join([*lines, *(line for note in notes for line in ("", note))]) + "\n"
    )


def _ratio(row: dict[str, Any], key: str) -> float | None:
    return row[key] / row["ours_ms"] if key in row and "ours_ms" in row else None


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


if __name__ == "__main__":
    sys.exit(main())
