"""The short text at the end of a run: plain ASCII, at most 100 columns but for a path or an address that is longer."""

from typing import Any

from .text import duration, is_number, number

WIDTH = 100
LABEL = 13


def summary(*, metrics: dict[str, Any], training: dict[str, Any], model_path: str, dashboard: str | None, cached: bool,
            examples: list[str], run_folder: str) -> str:  # fmt: skip
    """Return what a person wants to know when the prompt comes back; no colour codes, so that it can be piped.

    Args:
        metrics: of the held-out test split: `accuracy`, `f1`, `n_rows` and any others.
        training: `outputs/result.json`; empty where nothing was trained.
        model_path: folder that `transformers.pipeline` loads.
        dashboard: address of this run, None where no dashboard is connected.
        cached: nothing was computed again.
        examples: commands that run it on more.
        run_folder: where the run's files lie.
    """
    lines = ["-" * WIDTH]
    lines += _wrapped("test", _scores(metrics))
    if training:
        lines += _wrapped("training", _training(training, cached))
    elif cached:
        lines += _wrapped(
            "scores", ["reused from an earlier run with the same inputs (cache=false computes them again)"]
        )
    lines += _wrapped("model", [model_path])
    call = f"pipeline('text-classification', model={model_path!r})"
    lines += _wrapped("", [f"transformers.{call}"]) if len(call) + LABEL + 15 <= WIDTH else [
        " " * (LABEL + 2) + "transformers.pipeline('text-classification',",
        " " * (LABEL + 2) + f"    model={model_path!r})",
    ]  # fmt: skip
    if run_folder and run_folder != model_path:
        lines += _wrapped("run folder", [run_folder])
    if dashboard:
        lines += _wrapped("dashboard", [dashboard])
    else:
        lines += _wrapped("dashboard", ["not connected; `zenml login --local` opens it with this run in it,",
                                        "`zenml logout --local` goes back afterwards"])  # fmt: skip
    if examples:
        lines += ["", "  on more:", *(f"    {example}" for example in examples)]
    lines.append("-" * WIDTH)
    return "\n".join(lines)


def _scores(metrics: dict[str, Any]) -> list[str]:
    rows = metrics.get("n_rows")
    named = {"accuracy": "accuracy", "f1": "F1"}
    first = [f"{name} {number(metrics[key])}," for key, name in named.items() if key in metrics]
    others = [
        f"{key} {number(value)}" for key, value in metrics.items() if key not in (*named, "n_rows") and is_number(value)
    ]
    held_out = f"on {rows:,} held-out row{'' if rows == 1 else 's'}" if rows is not None else "on the held-out rows"
    return [*first, held_out, *([f"({', '.join(others)})"] if others else [])]


def _training(training: dict[str, Any], cached: bool) -> list[str]:
    parts = []
    seconds = (training.get("phases") or {}).get("train_s")
    if seconds is not None:
        parts.append(duration(seconds))
    if training.get("samples_per_s"):
        parts.append(f"{number(training['samples_per_s'])} samples/s")
    if training.get("steps") is not None:
        parts.append(f"{training['steps']:,} step{'' if training['steps'] == 1 else 's'}")
    if training.get("world_size"):
        processes = "1 process" if training["world_size"] == 1 else f"{training['world_size']} processes"
        parts.append(f"{processes} on {training.get('device', '?')}")
    if training.get("precision"):
        parts.append(str(training["precision"]))
    text = [part + "," for part in parts[:-1]] + parts[-1:]
    return [*text, "- reused from the cache, nothing was computed again"] if cached else text


def _wrapped(label: str, parts: list[str]) -> list[str]:
    """Return the parts behind a label, a new line where the next one would pass the width; a part is never cut."""
    lines, line = [], ""
    for part in parts:
        if line and LABEL + 2 + len(line) + 1 + len(part) > WIDTH:
            lines.append(line)
            line = ""
        line = f"{line} {part}" if line else part
    lines.append(line)
    return [f"  {label if not i else '':<{LABEL}}{text}" for i, text in enumerate(lines)]
