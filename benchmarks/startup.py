"""Where the time of `python src/run.py` goes beside training: a table by phase, for a first, a warm and a cached run.

    python benchmarks/startup.py --out benchmarks/results

Runs the command three times in an empty home of its own: `first` makes the ZenML store, `warm` is the same with another
learning rate (the data come out of the cache, training does not), `cached` repeats `warm`. 20 steps of the embedded
default on the CPU. The phases inside the workers are those that they report; the others lie between files that appear.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PHASES = {
    "before_s": "command until the job is written: imports, ZenML, `load_data`",
    "start_s": "worker process: start, imports",
    "load_s": "worker: data, model",
    "first_step_s": "first training step",
    "train_s": "all 20 steps",
    "validate_s": "validation",
    "save_s": "export of the model",
    "predict_s": "predictions of all splits",
    "after_s": "after the workers: `evaluate_model`, report, ZenML",
    "total_s": "the whole command",
    "cpu_s": "the same in CPU seconds, workers included",
}


def run(home: Path, rate: float) -> dict[str, float]:
    """Run the command once; return seconds by phase (of a cached run the total alone)."""
    env = {**os.environ, "SKYTUNE_HOME": str(home / "skytune"), "ZENML_CONFIG_PATH": str(home / "zenml")}
    env.update(ZENML_ANALYTICS_OPT_IN="false", TQDM_DISABLE="1")
    words = ["max_steps=20", f"optimizer.lr={rate}", "log.every_steps=1", "compute=cpu", "tracker=none"]
    jobs = "skytune/runs/*/outputs/result.json"
    began, old, used = time.time(), set(home.glob(jobs)), _cpu_seconds()
    subprocess.run(
        [sys.executable, str(ROOT / "src" / "run.py"), *words], env=env, check=True, stdout=subprocess.DEVNULL
    )
    ended = time.time()
    seconds = {"total_s": ended - began, "cpu_s": _cpu_seconds() - used}
    for file in set(home.glob(jobs)) - old:
        result = json.loads(file.read_text())
        first = json.loads((file.parent / "history.jsonl").read_text().splitlines()[0])
        written = (file.parents[1] / "job.json").stat().st_mtime
        seconds.update(
            result["phases"],
            before_s=written - began,
            first_step_s=first["elapsed_s"],
            after_s=ended - file.stat().st_mtime,
        )
    return seconds


def _cpu_seconds() -> float:
    """Return what the children that have ended used, with theirs."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def main() -> int:
    """Run, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        home = Path(text)
        runs = {"first": run(home, 1e-4), "warm": run(home, 2e-4), "cached": run(home, 2e-4)}
    warm = runs["warm"]
    to_step = sum(warm[name] for name in ("before_s", "start_s", "load_s", "first_step_s"))
    inside = sum(warm[name] for name in ("start_s", "load_s", "train_s", "validate_s", "save_s", "predict_s"))
    lines = [
        "# Where the time of `python src/run.py` goes",
        "",
        f"{date.today().isoformat()}, {os.cpu_count()} cores ({platform.machine()}), load {os.getloadavg()[0]:.1f}, "
        f"Python {platform.python_version()}. Seconds. Made by `python benchmarks/startup.py`.",
        "",
        "| phase | " + " | ".join(runs) + " |",
        "|---|" + "---|" * len(runs),
    ]
    for name, text in PHASES.items():
        cells = [f"{seen[name]:.1f}" if name in seen else "" for seen in runs.values()]
        lines.append(f"| {text} | " + " | ".join(cells) + " |")
    lines += [
        "",
        f"Warm, from the command to the end of the first step: {to_step:.1f} s. Outside the workers: "
        f"{warm['total_s'] - inside:.1f} s. Cached: {runs['cached']['total_s']:.1f} s.",
    ]
    print("\n".join(lines))
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "startup.md").write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
