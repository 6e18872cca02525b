"""The short text at the end of a run: plain ASCII, as wide as the terminal but for a path or an address."""

import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..common.text import duration, is_number, number
from ..models import is_adapter
from ..models.saved import TARGET_FILE
from .page import titled

WIDEST = 100
LABEL = 13


def summary(
    *,
    metrics: dict[str, Any],
    training: dict[str, Any],
    model_path: str,
    dashboard: str | None,
    cached: bool,
    examples: list[str],
    run_folder: str,
    report: str | None = None,
    trackers: dict[str, str] | None = None,
    headline: Sequence[str] = ("accuracy", "f1"),
    pipeline: str = "text-classification",
    warning: str = "",
    released: Mapping[str, str] | None = None,
) -> str:
    """Return what a person wants to know when the prompt comes back; no colour codes, so that it can be piped.

    Args:
        metrics: of the held-out test split: `n_rows`, and any others.
        headline: those of them that stand first.
        pipeline: what `transformers.pipeline` calls the task; empty where it has none.
        warning: what is to be said of a run that has learned nothing.
        training: `outputs/result.json`, and `cost_line`; empty where nothing was trained.
        model_path: folder that `transformers.pipeline` loads, unless the network is the user's own.
        dashboard: address of this run, None where no dashboard is connected.
        cached: nothing was computed again.
        examples: commands that run it on more.
        run_folder: where the run's files lie; said where the model's folder does not say it.
        report: the report's file, which any browser opens.
        trackers: by name, the address or the command that shows the run.
        released: what became of its publication and promotion.
    """
    facts = [("test", _scores(metrics, headline))]
    if warning:
        facts.append(("warning", warning.split(" ")))
    if training:
        facts.append(("training", _training(training, cached)))
        if training.get("cost_line"):
            facts.append(("cost", str(training["cost_line"]).split(" ")))
    elif cached:
        reused = ["reused from an earlier run with the same inputs", "(cache=false computes them again)"]
        facts.append(("scores", reused))
    facts.append(("model", [shlex.quote(model_path)]))
    if is_adapter(Path(model_path)):
        facts.append(
            ("", ["an adapter for peft;", "pipeline=merge checkpoint=PATH makes one model of it and its base"])
        )
    elif pipeline and not (Path(model_path) / TARGET_FILE).is_file():  # one's own is none of transformers'
        facts.append(("", [f"for transformers.pipeline('{pipeline}', model=PATH)"]))
    if report:
        facts.append(("report", [shlex.quote(report)]))
    for name, place in (trackers or {}).items():
        facts.append((name, [place]))
    for name, told in (released or {}).items():
        facts.append((name, told.split(" ")))
    if run_folder and not model_path.startswith(run_folder):
        facts.append(("run folder", [shlex.quote(run_folder)]))
    advice = ["not connected;", "`zenml login --local` opens it", "(--port=8238 if 8237 is taken),"]
    advice.append("`zenml logout --local` goes back")
    facts.append(("dashboard", [dashboard] if dashboard else advice))
    return _framed(facts, ["", "  on more:", *(f"    {example}" for example in examples)] if examples else [])


def prediction_summary(done: dict[str, Any]) -> str:
    """Return what a person wants to know after files were predicted on.

    Args:
        done: see `launch.predict_files.predict_files`.
    """
    rows = [f"{done['rows']:,} rows,"] + [f"{name} {count:,}," for name, count in list(done["counts"].items())[:10]]
    rows += [f"{done['without_text']:,} without a text (no prediction),"] if done["without_text"] else []
    rows += [f"{done['left_out']:,} malformed rows left out,"] if done["left_out"] else []
    facts = [("predicted", [*rows[:-1], rows[-1].rstrip(",")])]
    if done["reused"]:
        facts.append(("", ["the output was there already", "(cache=false computes it again)"]))
    else:
        processes = "1 process" if done["world_size"] == 1 else f"{done['world_size']} processes"
        seconds = duration(done["phases"]["predict_s"])
        parts = [seconds, f"{number(done['samples_per_s'])} rows/s", f"{processes} on {done['device']}"]
        facts.append(("computing", _listed(parts)))
    facts += [("output", [shlex.quote(done["output"])]), ("run folder", [shlex.quote(done["run_folder"])])]
    return _framed(facts)


def _framed(facts: Sequence[tuple[str, list[str]]], more: Sequence[str] = ()) -> str:
    width = max(60, min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns))
    lines = [line for label, parts in facts for line in _wrapped(label, parts, width)]
    return "\n".join(["-" * width, *lines, *more, "-" * width])


def _scores(metrics: dict[str, Any], headline: Sequence[str]) -> list[str]:
    rows = metrics.get("n_rows")
    named = {name: titled(name) for name in headline}
    first = [f"{name} {number(metrics[key])}," for key, name in named.items() if key in metrics]
    others = [
        f"{key} {number(value)}" for key, value in metrics.items() if key not in (*named, "n_rows") and is_number(value)
    ]
    held_out = f"on {rows:,} held-out row{'' if rows == 1 else 's'}" if rows is not None else "on the held-out rows"
    return [*first, held_out, *(_listed(f"({', '.join(others)})".split(", ")) if others else [])]


def _training(training: dict[str, Any], cached: bool) -> list[str]:
    parts = []
    seconds = (training.get("phases") or {}).get("train_s")
    if seconds is not None:
        parts.append(duration(seconds))
    if training.get("samples_per_s"):
        rate = training["samples_per_s"]
        parts.append(f"{number(rate, 2 if rate < 10 else 3)} samples/s")
    if training.get("steps") is not None:
        parts.append(f"{training['steps']:,} step{'' if training['steps'] == 1 else 's'}")
    if training.get("world_size"):
        processes = "1 process" if training["world_size"] == 1 else f"{training['world_size']} processes"
        parts.append(f"{processes} on {training.get('device', '?')}")
    if training.get("precision"):
        parts.append(str(training["precision"]))
    return [*_listed(parts), *(["- reused from the cache,", "nothing was computed again"] if cached else [])]


def _listed(parts: list[str]) -> list[str]:
    return [f"{part}," for part in parts[:-1]] + parts[-1:]


def _wrapped(label: str, parts: list[str], width: int) -> list[str]:
    """Return the parts behind a label, a new line where the next one would pass the width; a part is never cut."""
    lines, line = [], ""
    for part in parts:
        if line and LABEL + 2 + len(line) + 1 + len(part) > width:
            lines.append(line)
            line = ""
        line = f"{line} {part}" if line else part
    lines.append(line)
    return [f"  {label if not i else '':<{LABEL}}{text}" for i, text in enumerate(lines)]
