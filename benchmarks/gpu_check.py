"""Checks the training room on CUDA devices; needs torch, transformers, accelerate, pyarrow and this source tree alone.

    python benchmarks/gpu_check.py --model FOLDER --splits FOLDER
    python benchmarks/gpu_check.py --only captured      random weights of many architectures, nothing else needed

FOLDER of the model is one that transformers loads, with its tokenizer; FOLDER of the splits holds train, validation and
test as `skytune.data.tables.write_split` leaves them. Prints one line a check, and exits with 1 if one fails.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch

from skytune.config import RunConfig, UserError, from_dict
from skytune.job import Job, JobDir
from skytune.launch.gpus import count_gpus
from skytune.launch.local import LocalLauncher

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json")


def run(
    arguments: argparse.Namespace, work: Path, name: str, **groups: Any
) -> tuple[dict[str, Any], list[float], JobDir]:
    """Train; return (result, losses by step, job)."""
    job = JobDir(work / name)
    shutil.rmtree(job.root, ignore_errors=True)
    job.inputs.mkdir(parents=True)
    for split in ("train", "validation", "test"):
        shutil.copytree(arguments.splits / split, job.inputs / split)
    (job.inputs / "tokenizer").mkdir()
    for file in TOKENIZER_FILES:
        if (arguments.model / file).is_file():
            shutil.copy(arguments.model / file, job.inputs / "tokenizer" / file)
    shutil.copytree(arguments.model, job.inputs / "weights")
    values: dict[str, Any] = {"model": {"name": str(arguments.model)}, "log": {"every_steps": 1}, **groups}
    config = from_dict(RunConfig, values)
    job.write_job(
        Job(
            kind="train",
            run_key=name,
            config=config,
            labels=["negative", "positive"],
            train="inputs/train",
            evaluation={"validation": "inputs/validation", "test": "inputs/test"},
            weights="inputs/weights",
        )
    )
    LocalLauncher().run(job, config.compute)
    result = job.read_result()
    assert result is not None
    return result, [record["loss"] for record in job.read_history() if record["kind"] == "step"], job


def accuracy(job: JobDir) -> float:
    """Return the accuracy of the test predictions."""
    from skytune.training.outputs import read_predictions

    _, labels, logits = read_predictions(job.predictions("test"))
    return float((logits.argmax(1) == labels).mean())


Check = Callable[[str, bool, str], None]

LANGUAGE = "language"
"""SmolLM2-135M's shape on rows as long as film reviews."""

CAPTURED = ["electra-base", "gpt2", "deberta-v3-base", "modernbert-base", "mpnet-base", "roberta-base"]
CAPTURED += ["t5-base", "bart-base", "vit-base", LANGUAGE]
"""Architectures of `benchmarks/architectures.py` whose captured steps are checked."""


def devices(arguments: argparse.Namespace, work: Path, check: Check) -> None:
    """Which devices and precision are taken, and that they compute the same."""
    gpus = torch.cuda.device_count()
    check("GPUs are counted as torch counts them", count_gpus() == gpus, f"{count_gpus()} and {gpus}")
    exact = {"model": {"name": str(arguments.model), "dropout": 0.0}, "precision": "fp32", "max_steps": 30}
    sgd = {"optimizer": {"name": "sgd", "lr": 0.01, "weight_decay": 0.0}}
    auto, _, job = run(arguments, work, "auto", epochs=2, optimizer={"lr": 5e-5})
    check("auto takes every GPU", auto["world_size"] == max(gpus, 1), f"world size {auto['world_size']}")
    check("auto computes in bf16", auto["precision"] == "bf16", auto["precision"])
    check("it learns", accuracy(job) >= 0.76, f"test accuracy {accuracy(job):.4f} after 2 epochs")
    print(json.dumps({k: auto[k] for k in ("device", "samples_per_s", "tokens_per_s", "phases", "peak_memory_bytes")}))
    cpu, cpu_losses, _ = run(arguments, work, "cpu", compute={"device": "cpu"}, **exact, **sgd)
    check("compute=cpu stays on the CPU", cpu["device"] == "cpu", cpu["device"])
    _, one_losses, _ = run(arguments, work, "one", launch={"num_processes": 1}, **exact, **sgd)
    worst = max(abs(a - b) for a, b in zip(cpu_losses, one_losses, strict=True))
    check("fp32 losses of GPU and CPU", worst < 1e-4, f"at most {worst:.1e} apart over 30 steps")
    if gpus > 1:
        two, two_losses, _ = run(arguments, work, "two", launch={"num_processes": 2}, **exact, **sgd)
        worst = max(abs(a - b) for a, b in zip(one_losses, two_losses, strict=True))
        seen = f"at most {worst:.1e} apart, world size {two['world_size']}"
        check("fp32 losses of 1 and 2 GPUs", worst < 1e-5, seen)
    same, same_losses, _ = run(arguments, work, "again", launch={"num_processes": 1}, **exact, **sgd)
    check("the same seed repeats", same_losses == one_losses, f"30 losses, {same['device']}")
    try:
        run(arguments, work, "many", launch={"num_processes": gpus + 1}, compute={"device": "cuda"}, max_steps=1)
        check("more processes than GPUs is refused", False, "it ran")
    except UserError as error:
        check("more processes than GPUs is refused", "no GPU of its own" in str(error), str(error).splitlines()[0])


def repeating(arguments: argparse.Namespace, work: Path, check: Check) -> None:
    """AdamW in bf16 with dropout, on the fast path where it applies: what repeats, to the bit."""
    kept = {"store": str(work / "store"), "every_steps": 15, "keep": 9, "select": "last"}
    adam: dict[str, Any] = {"max_steps": 30, "checkpoint": kept, "launch": {"num_processes": 1}}
    whole, whole_losses, _ = run(arguments, work, "whole", **adam)
    place = str(work / "store" / "whole" / "step-00000015")
    rest, rest_losses, _ = run(arguments, work, "rest", resume=place, **adam)
    worst = max(abs(a - b) for a, b in zip(whole_losses, rest_losses, strict=True))
    seen = f"from step {rest['resumed_from']}, at most {worst:.1e} apart, dropout on, {whole['precision']}"
    check("a resumed run goes on exactly", rest["resumed_from"] == 15 and worst < 1e-6, seen)
    print(f"     saves held training up {whole['save_stall_s']} s in {whole['phases']['train_s']} s")
    _, again, _ = run(arguments, work, "repeated", **adam)
    check("with dropout the same seed repeats", again == whole_losses, f"30 losses, steps {whole.get('steps_taken')}")
    _, other, _ = run(arguments, work, "seed", seed=7, **adam)
    check("another seed differs", other != whole_losses, "seeds 42 and 7")


def learning(arguments: argparse.Namespace, work: Path, check: Check) -> None:
    """The fast path and the plain way reach the same accuracy, within noise."""
    found: dict[str, list[float]] = {"on": [], "off": []}
    for seed in arguments.seeds:
        for fast, seen in found.items():
            values = {"epochs": 2, "optimizer": {"lr": 1e-4}, "seed": seed, "compute": {"packed": fast}}
            result, _, job = run(arguments, work, f"fast-{fast}-{seed}", launch={"num_processes": 1}, **values)
            seen.append(accuracy(job))
            print(f"     fast={fast} seed {seed}: accuracy {seen[-1]:.4f}, {result['samples_per_s']} samples/s")
    gap = (sum(found["on"]) - sum(found["off"])) / len(arguments.seeds)
    apart = f"mean test accuracies {gap:+.4f} apart, {len(arguments.seeds)} seeds"
    check("the fast path learns as well as the plain way", abs(gap) < 0.02, apart)


def together(arguments: argparse.Namespace, work: Path, check: Check) -> None:
    """The fast path on several GPUs, where each updates its share of the weights, against one; and a resumed run."""
    numbers = sorted({2, torch.cuda.device_count()})
    exact = {"model": {"name": str(arguments.model), "dropout": 0.0}, "precision": "fp32", "max_steps": 50}
    fast = {"compute": {"packed": "on"}, "optimizer": {"lr": 5e-5}}
    _, expected, _ = run(arguments, work, "alone", launch={"num_processes": 1}, **exact, **fast)
    for number in numbers:
        _, losses, _ = run(arguments, work, f"on-{number}", launch={"num_processes": number}, **exact, **fast)
        worst = max(abs(a - b) for a, b in zip(expected, losses, strict=True))
        check(f"fp32 losses of 1 and {number} GPUs, AdamW", worst < 1e-4, f"at most {worst:.1e} apart, 50 steps")
    kept = {"store": str(work / "shared"), "every_steps": 15, "keep": 9, "select": "last"}
    adam: dict[str, Any] = {"max_steps": 30, "checkpoint": kept, "launch": {"num_processes": max(numbers)}, **fast}
    _, whole, first = run(arguments, work, "unbroken", **adam)
    rest, losses, second = run(
        arguments, work, "later", resume=str(work / "shared" / "unbroken" / "step-00000015"), **adam
    )
    worst = max(abs(a - b) for a, b in zip(whole, losses, strict=True))
    same = (first.model / "model.safetensors").read_bytes() == (second.model / "model.safetensors").read_bytes()
    seen = f"from step {rest['resumed_from']}, losses at most {worst:.1e} apart, weights equal to the bit: {same}"
    check(f"a resumed run on {max(numbers)} GPUs goes on exactly", rest["resumed_from"] == 15 and worst < 1e-6, seen)


def captured(arguments: argparse.Namespace, work: Path, check: Check) -> None:
    """Every architecture's captured step, blocks compiled, rows packed where they can be, against the same operations
    one by one: the same rows, widths and masks. Packed rows against padded ones too, without dropout."""
    from architectures import model_of, parts_of, table_of, take
    from language import CASES, build, table_of_rows

    from skytune.config import Precision
    from skytune.tasks import language
    from skytune.training.captured_step import CapturedSteps
    from skytune.training.train_step import EagerStep

    count = arguments.steps

    def parts(name: str, precision: Precision = Precision.bf16, shaken: bool = False, dropout: bool = True) -> Any:
        if name == LANGUAGE:
            model, case = build(CASES["sft"]), CASES["sft"]
            table, head = table_of_rows(case, 16 * 40), language.head("sft")
            assert head.ready is not None
            head.ready(model, {"train": table})
            table.streamed = True
            given = (*parts_of(model, table, 16, precision), head)
        else:
            model = model_of(name)
            given = parts_of(model, table_of(model, rows=3000), 32, precision)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout) and not dropout:
                module.p = 0.0
            for key in ("attention_dropout", "dropout") if not dropout else ():
                if isinstance(getattr(module, key, None), float):
                    setattr(module, key, 0.0)
        if shaken:  # each weight by up to half of what bf16 rounds it by
            draw = torch.Generator().manual_seed(1)
            with torch.no_grad():
                for weight in model.parameters():
                    weight.mul_(1 + 2**-9 * (torch.rand(weight.shape, generator=draw) - 0.5).to(weight.device))
        return given

    def opened(name: str, given: Any) -> tuple[CapturedSteps, str]:
        steps = CapturedSteps(*given)
        aside = steps.unpad() if name != LANGUAGE else ""
        print(f"     {name}: rows are {f'padded: {aside}' if aside else 'packed'}", flush=True)
        steps.compile_blocks()
        return steps, steps.prepare()

    def one_by_one(name: str, packed: bool, number: int, **how: Any) -> list[float]:
        steps, losses = CapturedSteps(*parts(name, **how)), list[float]()
        steps.set_unpadded(packed and name != LANGUAGE)
        steps.by_hand, steps.model.config.use_cache = True, False
        while len(losses) < number:
            losses += EagerStep.take(steps, [5e-5]).losses
            steps.run.step += 1
        return losses

    def apart(one: list[float], other: list[float]) -> float:
        return max(abs(a - b) for a, b in zip(one, other, strict=True))

    for name in arguments.architectures:
        run, strategy, optimizer, *rest = parts(name)
        steps, reason = opened(name, (run, strategy, optimizer, *rest))
        seconds = f"{len(steps.shapes)} shapes in {steps.capture_seconds:.1f} s"
        check(f"{name} is captured", not reason, reason or f"{seconds}, gradients {steps.gradient_error:.1e} apart")
        if reason:
            continue
        shape = next(iter(steps.shapes.values()))
        steps.hold.fill_(1)
        drawn = []
        for seed in (1, 2, 1):
            torch.manual_seed(seed)
            steps._go(shape, (False, True))
            drawn.append(float(steps.loss))
        steps.hold.fill_(0)
        random = any(isinstance(module, torch.nn.Dropout) and module.p for module in run.model.modules())
        passed = drawn[0] == drawn[2] and (drawn[0] != drawn[1] or not random)
        check(f"{name}: masks", passed, f"losses {drawn}")
        losses = take(steps, count // 2)
        kept = {key: value.clone() for key, value in strategy.state().items()}
        tensors, values = strategy.optimizer_state()
        tensors = {key: value.clone() for key, value in tensors.items()}
        losses += take(steps, count - count // 2)
        packed = steps.table.unpadded
        steps.close()
        again, other, *rest = parts(name)
        other.load(kept)
        other.load_optimizer(tensors, values)
        again.step = count // 2
        later, _ = opened(name, (again, other, *rest))
        resumed = take(later, count - count // 2)
        worst = apart(resumed, losses[count // 2 :])
        check(f"{name}: a resumed run goes on exactly", worst == 0, f"at most {worst:.1e} apart")
        later.close()
        found = apart(losses, expected := one_by_one(name, packed, count))
        noise = apart(one_by_one(name, packed, count, shaken=True), expected)
        seen_as = f"at most {found:.1e} apart over {count} steps, {noise:.1e} between runs that round otherwise"
        check(f"{name}: bf16 losses of captured and single operations", found <= 2 * noise, seen_as)
        if packed:
            plain, _ = opened(name, parts(name, dropout=False))
            losses = take(plain, count)
            plain.close()
            found = apart(losses, expected := one_by_one(name, False, count, dropout=False))
            noise = apart(one_by_one(name, False, count, dropout=False, shaken=True), expected)
            seen_as = f"at most {found:.1e} apart over {count} steps, {noise:.1e} between runs that round otherwise"
            check(f"{name}: bf16 losses of packed and padded rows, no dropout", found <= 2 * noise, seen_as)
    name = arguments.architectures[0]
    steps, reason = opened(name, parts(name, Precision.fp32))
    found = apart(take(steps, 20), one_by_one(name, steps.table.unpadded, 20, precision=Precision.fp32))
    passed = not reason and found < 1e-5
    check(f"{name}: fp32 losses of captured and single operations", passed, f"{found:.1e} apart {reason}")


PARTS = {"together": together, "devices": devices, "repeating": repeating, "learning": learning, "captured": captured}


def main() -> int:
    """Run all checks; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=lambda text: Path(text).absolute())
    parser.add_argument("--splits", type=lambda text: Path(text).absolute())
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="of `learning`")
    parser.add_argument("--steps", type=int, default=100, help="of `captured`")
    parser.add_argument("--architectures", nargs="+", default=CAPTURED, help="of `captured`")
    arguments = parser.parse_args()
    if set(arguments.only) != {"captured"} and not (arguments.model and arguments.splits):
        parser.error("--model and --splits are needed for all parts but `captured`")
    gpus = torch.cuda.device_count()
    print(f"torch {torch.__version__}, {gpus} x {torch.cuda.get_device_name(0) if gpus else 'no GPU'}")
    failed: list[str] = []

    def check(name: str, passed: bool, seen: str) -> None:
        failed.extend([] if passed else [name])
        print(f"{'ok  ' if passed else 'FAIL'} {name}: {seen}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        for part in arguments.only:
            PARTS[part](arguments, Path(folder), check)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
