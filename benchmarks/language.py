"""Language models on one GPU: tokens a second, share of the peak and memory, ours beside hand loops and HF Trainer.

    python benchmarks/language.py --gpus 1 2 4 [--cases sft blocks full lora] [--out FILE.json]
    python benchmarks/language.py [--cases sft blocks full lora] [--steps 40] [--out FILE.json]

Needs torch, transformers, accelerate, peft, pyarrow and this source tree; no hub, no data set: models have published
shapes and random weights, rows have random tokens. The ways of one case compile at the same time, each in a process of
its own, and are timed one after the other. TRL's trainer is measured too where it is installed.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import numpy as np
import torch

from skytune.config import from_dict

SHAPES: dict[str, dict[str, Any]] = {
    "135M": {
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
    "1.1B": {
        "hidden_size": 2048,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "intermediate_size": 5632,
        "vocab_size": 32000,
        "tie_word_embeddings": False,
    },
}
CASES: dict[str, dict[str, Any]] = {
    "sft": {"shape": "135M", "lengths": "reviews", "rows": 32},
    "blocks": {"shape": "135M", "lengths": 1024, "rows": 16},
    "full": {"shape": "1.1B", "lengths": 2048, "rows": 8},
    "lora": {"shape": "1.1B", "lengths": 2048, "rows": 8, "rank": 16},
}
WAYS = ("ours", "hand loop, compiled", "HF Trainer", "TRL packing")
PEAK = 989.4e12
"""An H100's or H200's dense bf16 peak (NVIDIA's data sheet), in FLOP/s."""


def lengths(case: dict[str, Any], count: int) -> np.ndarray:
    """Return the tokens of every row: one number, or those of film reviews (median 221, as IMDB's)."""
    if isinstance(case["lengths"], int):
        return np.full(count, case["lengths"])
    draw = np.random.default_rng(0).lognormal(np.log(221), 0.65, count)
    return np.clip(draw, 16, 1024).astype(int)


def rows_of(case: dict[str, Any], count: int) -> list[np.ndarray]:
    """Return rows of random tokens."""
    draw = np.random.default_rng(1)
    return [draw.integers(5, SHAPES[case["shape"]]["vocab_size"], n) for n in lengths(case, count)]


def build(case: dict[str, Any]) -> Any:
    """Return the model, in float32 on the GPU."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(**SHAPES[case["shape"]], max_position_embeddings=4096, pad_token_id=0)
    return LlamaForCausalLM(config)


def work(case: dict[str, Any], tokens: np.ndarray) -> float:
    """Return the useful FLOPs of rows of so many tokens: 6 a weight and token (4 where it is frozen), and attention."""
    shape = SHAPES[case["shape"]]
    width, layers = shape["hidden_size"], shape["num_hidden_layers"]
    head = width // shape["num_attention_heads"]
    kv = head * shape["num_key_value_heads"]
    block = width * (2 * width + 2 * kv) + 3 * width * shape["intermediate_size"]
    weights = layers * block + width * shape["vocab_size"]
    a_token = (4 if case.get("rank") else 6) * weights
    return float(a_token * tokens.sum() + 6 * layers * width * (tokens.astype(float) ** 2).sum())


def ready() -> None:
    """Say that everything is compiled, and wait until this process has the GPU for itself."""
    torch.cuda.synchronize()
    print("READY", flush=True)
    sys.stdin.readline()


def timed(step: Callable[[], None], steps: int, warmup: int = 8) -> list[float]:
    """Return the seconds of every step after the first few."""
    found = []
    for number in range(steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        if number >= warmup:
            found.append(time.perf_counter() - start)
    return found


def by_hand(case: dict[str, Any], steps: int) -> dict[str, Any]:
    """A plain loop with torch.compile, padded to the longest row of its batch (in steps of 128)."""
    model = build(case).cuda()
    if case.get("rank"):
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=case["rank"], target_modules="all-linear"))
    learned = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=1e-5, fused=True)
    compiled = torch.compile(model)
    batches = padded(case, steps + 8)
    tokens: list[np.ndarray] = []

    def step() -> None:
        ids, labels, real = next(batches)
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(input_ids=ids.cuda(), labels=labels.cuda(), use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tokens.append(real)

    start = time.perf_counter()
    timed(step, 8)
    ready()
    seconds = timed(step, steps, 2)
    return outcome(case, tokens[-len(seconds) :], seconds, time.perf_counter() - start)


def padded(case: dict[str, Any], steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, np.ndarray]]:
    """Yield batches as tensors, with the tokens of their rows."""
    rows = rows_of(case, case["rows"] * steps)
    for at in range(0, len(rows), case["rows"]):
        chosen = rows[at : at + case["rows"]]
        width = -(-max(map(len, chosen)) // 128) * 128
        ids, labels = np.zeros((len(chosen), width), np.int64), np.full((len(chosen), width), -100)
        for place, row in enumerate(chosen):
            ids[place, : len(row)] = labels[place, : len(row)] = row
        yield torch.from_numpy(ids), torch.from_numpy(labels), np.array([len(row) for row in chosen])


def by_trainer(case: dict[str, Any], steps: int) -> dict[str, Any]:
    """Transformers' Trainer in bf16, padded to the longest row; for an adapter, peft's model."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    model: Any = build(case)
    if case.get("rank"):
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=case["rank"], target_modules="all-linear"))
    data = [{"input_ids": row.tolist()} for row in rows_of(case, case["rows"] * steps)]
    marks: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            torch.cuda.synchronize()
            marks.append(time.perf_counter())

    def collate(features: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        width = max(len(f["input_ids"]) for f in features)
        ids = torch.zeros(len(features), width, dtype=torch.long)
        mask, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
        for place, feature in enumerate(features):
            own = torch.tensor(feature["input_ids"])
            ids[place, : len(own)], labels[place, : len(own)], mask[place, : len(own)] = own, own, 1
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            bf16=True,
            per_device_train_batch_size=case["rows"],
            max_steps=steps,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            optim="adamw_torch_fused",
            dataloader_num_workers=2,
            disable_tqdm=True,
        )
        ready()
        start = time.perf_counter()
        Trainer(model, arguments, train_dataset=data, data_collator=collate, callbacks=[Clock()]).train()
    seconds = np.diff(marks)[8:].tolist()
    mean = lengths(case, case["rows"] * steps).reshape(steps, -1)
    return outcome(case, list(mean[-len(seconds) :]), seconds, time.perf_counter() - start)


def by_trl(case: dict[str, Any], steps: int) -> dict[str, Any]:
    """TRL's SFTTrainer with packing, as its documentation has it without Flash Attention 2."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import SFTConfig, SFTTrainer

    marks: list[float] = []
    seen: list[int] = []

    class Clock(TrainerCallback):
        def on_step_end(self, _: Any, state: Any, *__: Any, **more: Any) -> None:
            torch.cuda.synchronize()
            marks.append(time.perf_counter())
            seen.append(int(getattr(state, "num_input_tokens_seen", 0)))

    data = Dataset.from_list([{"input_ids": row.tolist()} for row in rows_of(case, case["rows"] * steps)])
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(
            folder,
            bf16=True,
            packing=True,
            max_length=1024,
            per_device_train_batch_size=8,
            max_steps=steps,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            include_num_input_tokens_seen=True,
            disable_tqdm=True,
        )
        trainer = SFTTrainer(build(case), arguments, train_dataset=data, callbacks=[Clock()], processing_class=words())
        ready()
        start = time.perf_counter()
        trainer.train()
    seconds = np.diff(marks)[8:].tolist()
    tokens = [np.array([n]) for n in np.diff(seen)[8:]]
    return outcome(case, tokens, seconds, time.perf_counter() - start)


def words() -> Any:
    """Return a tokenizer, which TRL wants to have though rows are tokens already."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def table_of_rows(case: dict[str, Any], count: int) -> Any:
    """Return the same rows as this package's trainer takes them."""
    import pyarrow as pa

    from skytune.data.batches import Padding, TokenTable

    rows = rows_of(case, count)
    ids = pa.array([row.tolist() for row in rows], pa.list_(pa.int32()))
    labels = pa.array([[-100, *row[1:].tolist()] for row in rows], pa.list_(pa.int32()))
    return TokenTable(pa.table({"input_ids": ids, "labels": labels}), Padding())


def by_us(case: dict[str, Any], steps: int) -> dict[str, Any]:
    """This package's own steps, as `train_model` takes them in a run of 2,000."""
    import logging

    from architectures import parts_of, take

    from skytune.config import ModelConfig
    from skytune.models.lora import attach
    from skytune.tasks import language
    from skytune.training.select_step import open_steps

    logging.basicConfig(level="INFO", format="%(message)s")
    table = table_of_rows(case, case["rows"] * steps)
    model, head = build(case), language.head("sft")
    assert head.ready is not None
    if case.get("rank"):
        attach(
            model,
            from_dict(ModelConfig, {"name": "random", "pretrained": False, "lora": {"rank": case["rank"]}}),
            "random",
            set(),
        )
    head.ready(model, {"train": table})
    clock = time.perf_counter()
    run, strategy, optimizer, order, *rest = parts_of(model, table, case["rows"])
    own = open_steps(run, strategy, optimizer, order, rest[0], rest[1], head)
    take(own, 8)
    torch.cuda.synchronize()
    opened, tokens, seconds = time.perf_counter() - clock, [], []
    ready()
    while run.step < steps:
        at = run.step
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss = take(own, min(8, steps - at))[-1]
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        tokens += [order.lengths[order.rows(step)] for step in range(at, run.step)]
    made = outcome(case, tokens, seconds, time.perf_counter() - clock)
    more = {"ready_s": round(opened, 1), "padding": own.padding_share, "loss": loss}
    return {**made, **more, "how": run.report.get("steps_taken"), **run.report.get("captured", {})}


def outcome(case: dict[str, Any], tokens: list[np.ndarray], seconds: list[float], whole: float) -> dict[str, Any]:
    """Return the numbers of a loop."""
    real = np.concatenate(tokens)
    return {
        "tokens_per_s": round(real.sum() / sum(seconds)),
        "mfu": round(work(case, real) / sum(seconds) / PEAK, 4),
        "memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1),
        "wall_s": round(whole, 1),
    }


def main() -> int:
    """Run the cases; print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--gpus", nargs="+", type=int, help="ours alone, on so many GPUs: see language_gpus.py")
    parser.add_argument("--tiny", action="store_true", help="with --gpus: small models on CPU processes")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.gpus:
        from language_gpus import spread

        return spread(arguments)
    ways = dict(zip(WAYS, (by_us, by_hand, by_trainer, by_trl), strict=True))
    if arguments.one:
        name, way = arguments.one
        print("RESULT " + json.dumps(ways[way](CASES[name], arguments.steps)))
        return 0
    found: dict[str, Any] = {"machine": torch.cuda.get_device_name(), "torch": torch.__version__, "cases": {}}
    found["date"] = time.strftime("%Y-%m-%d")
    print(f"{'case':8} {'way':22} {'tokens/s':>10} {'MFU':>7} {'GB':>6} {'all s':>7}")
    for name in arguments.cases:
        chosen = [way for way in arguments.ways if way != "TRL packing" or (name == "sft" and _installed("trl"))]
        children = {}
        for way in chosen:
            command = [sys.executable, __file__, "--one", name, way, "--steps", str(arguments.steps)]
            log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the child
            pipe = subprocess.PIPE
            children[way] = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True), log
        for child, _ in children.values():
            next((line for line in child.stdout or () if line.startswith("READY")), None)
        for way, (child, log) in children.items():
            told, _ = child.communicate("go\n" if child.poll() is None else None)
            log.seek(0)
            logged = log.read()
            lines = [line for line in told.splitlines() if line.startswith("RESULT ")]
            if not lines:
                print(f"{name:8} {way:22} failed: {logged.strip()[-1500:]}", flush=True)
                continue
            numbers = json.loads(lines[-1].removeprefix("RESULT "))
            found["cases"].setdefault(name, {})[way] = numbers
            rate, mfu, memory = numbers["tokens_per_s"], numbers["mfu"], numbers["memory_gb"]
            print(f"{name:8} {way:22} {rate:>10,} {mfu:>7.1%} {memory:>6} {numbers['wall_s']:>7}", flush=True)
            if way == "ours":
                print("    " + "; ".join(line for line in logged.splitlines() if "fast path" in line), flush=True)
            if arguments.out:
                arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


if __name__ == "__main__":
    sys.exit(main())
