"""The tidy table of an experiment: one row a cell, out of what the cell's job left (`result.json`, predictions,
attempts). `columns.md` documents every column; units stand in the names."""

import io
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import skytune

from ..config import DataConfig, DataSource, RunConfig
from ..config.folders import home
from ..job import JobDir, read_json
from ..pricing.cost import Attempt, Cost, spent
from ..report.scoring import write_file
from ..tasks import Scoring, find_task
from ..training.outputs import load_predictions
from .cells import Cell

if TYPE_CHECKING:
    import pandas as pd

PARQUET, CSV, README = "results.parquet", "results.csv", "columns.md"

_MEANINGS = Path(__file__).with_name(README).read_text(encoding="utf-8")

COLUMNS: dict[str, tuple[str, str, str]] = {
    name: (kind, origin, meaning)
    for name, kind, origin, meaning in re.findall(r"^\| `(\w+)` \| (\w+) \| (\w+) \| (.+) \|$", _MEANINGS, re.MULTILINE)
}
"""By name: type, whether it is part of the design, measured, or computed from those, and meaning. Behind them comes
`factor_NAME` for every factor of the design: the level as the design writes it."""

FACTOR = "factor_"

TYPES = {"text": "string", "int": "Int64", "float": "Float64"}
"""Types that know what is missing."""

SPLIT = "validation"
"""Cells are compared by it; choosing by the test split would use it up."""


def frame(rows: Iterable[Mapping[str, Any]]) -> "pd.DataFrame":
    """Return rows as a table with all columns of `COLUMNS` in their order, then the design's factors."""
    import pandas as pd

    rows = [{**row, "usd_total": spent(row)} for row in rows]
    columns = {
        name: pd.array([row.get(name) for row in rows], dtype=TYPES[kind]) for name, (kind, _, _) in COLUMNS.items()
    }
    for name in dict.fromkeys(key for row in rows for key in row if key.startswith(FACTOR)):
        levels = [row.get(name) for row in rows]
        columns[name] = pd.array(levels)
        if str(columns[name].dtype) == "object":  # of several types: text
            texts = [level if level is None or isinstance(level, str) else json.dumps(level) for level in levels]
            columns[name] = pd.array(texts, dtype="string")
    return pd.DataFrame(columns)


def records(table: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return the table's rows as plain values, None for what is missing."""
    return [
        {str(name): value for name, value in row.items()}
        for row in table.astype(object).where(table.notna(), None).to_dict("records")
    ]


def write_table(table: "pd.DataFrame", folder: Path) -> None:
    """Write parquet, csv and what the columns mean into a folder.

    Raises:
        UserError: a file cannot be written.
    """
    binary, text = io.BytesIO(), io.StringIO()
    table.to_parquet(binary, index=False)
    table.to_csv(text, index=False, lineterminator="\n")
    write_file(folder / PARQUET, binary.getvalue())
    write_file(folder / CSV, text.getvalue().encode())
    write_file(folder / README, _MEANINGS.encode())


def base_row(experiment: str, cell: Cell) -> dict[str, Any]:
    """Return what is known of a cell before it has run."""
    config = cell.config
    return {
        "experiment": experiment,
        "cell": cell.name,
        "origin": "run",
        "seed": cell.seed,
        "model": config.model._target_ or config.model.name,
        "data": _data_name(config.data),
        "train_rows": config.data.max_rows,
        "epochs": None if config.max_steps else float(config.epochs),
        "machine": str(cell.machine),
        "accelerator": cell.machine.accelerator or None,
        "nodes": cell.machine.nodes,
        "devices": cell.devices,
        "strategy": config.strategy.name.value,
        "precision": config.precision.value,
        "global_batch": config.batch.global_size,
        "per_device_batch": config.batch.global_size / cell.devices,
        "peak_lr": config.optimizer.lr * config.schedule.lr_scale(config.batch.global_size),
        "scale_lr": config.schedule.scale_lr.value,
        **{f"{FACTOR}{name}": level for name, level in cell.levels.items()},
    }


def ended_row(
    experiment: str,
    cell: Cell,
    status: str,
    reason: str | None,
    attempts: Sequence[Attempt],
    job: JobDir | None = None,
) -> dict[str, Any]:
    """Return the row of a cell that failed or was stopped: what it cost all the same, and why.

    Args:
        attempts: all starts, with what was paid for each.
    """
    cost, last = Cost(attempts), attempts[-1] if attempts else None
    return {
        **base_row(experiment, cell),
        "train_rows": None,  # wished for, not measured
        "status": status,
        "reason": reason,
        "total_s": round(cost.seconds, 3) if attempts else None,
        "attempts": len(attempts),
        "usd_per_hour": last.usd_per_hour if last else None,
        "price_source": (last.source if last else "") or None,
        "usd_total": None if cost.usd is None else round(cost.usd, 8),
        "job": None if job is None else place_of(job),
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "skytune": skytune.__version__,
    }


def done_row(
    experiment: str, cell: Cell, job: JobDir, result: Mapping[str, Any], attempts: Sequence[Attempt]
) -> dict[str, Any]:
    """Return the row of a finished cell.

    Args:
        job: its job directory, with predictions of the validation split.
        result: `outputs/result.json`.
        attempts: all starts, with what was paid for each.

    Raises:
        UserError: the predictions cannot be scored.
    """
    row = ended_row(experiment, cell, "done", None, attempts, job)
    cost, phases = Cost(attempts), (result.get("phases") or {}).items()
    seconds = defaultdict(float, {name: float(value) for name, value in phases if value is not None})
    spans = {
        "provision_s": cost.phases.get("provision_s", 0.0),
        "setup_s": cost.phases.get("setup_s", 0.0) + seconds["start_s"] + seconds["load_s"],
        "train_s": seconds["train_s"],
        "evaluate_s": seconds["validate_s"] + seconds["predict_s"] + seconds["evaluate_s"],
        "save_s": seconds["save_s"],
    }
    scores = quality(cell.config, job)
    steady, samples, usd = steady_rate(job.read_history()), result.get("train_rows"), cost.usd
    points = 100 * (scores["accuracy"] - scores["baseline_accuracy"]) if scores.get("accuracy") is not None else 0.0
    same = ("epochs", "precision", "steps", "samples_per_s", "tokens_per_s", "parameters", "peak_memory_bytes")
    return {
        **row,
        **{name: result.get(name) for name in same},
        "train_rows": _rows_of(job, cell.config.data.max_rows),
        "accelerator": row["accelerator"] or str(result.get("device") or "").removeprefix("cuda ") or None,
        "devices": result.get("devices") or result.get("world_size", cell.devices),
        "strategy": result.get("strategy") or row["strategy"],
        "samples": samples,
        "tokens": result.get("train_tokens"),
        **{name: round(span, 3) for name, span in spans.items()},
        "idle_s": round(max(0.0, cost.seconds - sum(spans.values())), 3),
        "steady_samples_per_s": steady,
        "mfu": mfu_of(result, steady or result.get("samples_per_s")),
        "usd_per_1000_samples": None if usd is None or not samples else round(1000 * usd / samples, 8),
        "usd_per_accuracy_point": None if usd is None or points <= 0 else round(usd / points, 8),
        **scores,
        "run_key": result.get("run_key"),
        "torch": (result.get("versions") or {}).get("torch"),
    }


def quality(config: RunConfig, job: JobDir) -> dict[str, Any]:
    """Return `accuracy`, `f1`, `loss`, `baseline_accuracy` and `eval_rows` of the validation split; None where the task
    has no such number.

    Raises:
        UserError: labels or logits that cannot be scored.
    """
    done = job.job
    task = find_task(done.config.task)
    _, targets, collected = load_predictions(job.predictions(SPLIT))
    measured = task.metrics if config.eval.metrics is None else config.eval.metrics
    wanted = [str(name) for name in ("accuracy", "f1") if name in measured and name in task.metrics]
    settings = (job.read_result() or {}).get("settings", {})
    scored = task.score(collected, targets, Scoring(names=done.labels, settings=settings, metrics=wanted))
    found: dict[str, Any] = {name: _number(scored.metrics.get(name)) for name in ("accuracy", "f1", "loss")}
    share = None
    if isinstance(targets, np.ndarray):
        share = round(float(np.bincount(targets, minlength=1).max() / max(1, len(targets))), 6)
    return {**found, "baseline_accuracy": share, "eval_rows": scored.n_rows}


def steady_rate(history: Sequence[Mapping[str, Any]]) -> float | None:
    """Return rows a second after the first fifth of the steps; None where too little was recorded."""
    steps = [record for record in history if record.get("kind") == "step"]
    if len(steps) < 3:
        return None
    last = steps[-1]
    first = next(record for record in steps if record["step"] >= last["step"] / 5)
    seconds = last["elapsed_s"] - first["elapsed_s"]
    return round((last["rows"] - first["rows"]) / seconds, 2) if seconds > 0 else None


def mfu_of(result: Mapping[str, Any], rate: float | None) -> float | None:
    """Return model FLOPs utilization at so many rows a second; None where the device's peak or the model's sizes are
    unknown."""
    flops, peak, rows = (result.get(key) for key in ("train_flops", "peak_flops", "train_rows"))
    if not (flops and peak and rows and rate):
        return result.get("mfu")
    return round(flops / rows * rate / (peak * (result.get("devices") or result.get("world_size", 1))), 4)


def place_of(job: JobDir) -> str:
    """Return a job's folder, without SKYTUNE_HOME before it: results may be shown elsewhere."""
    home_ = home().absolute()
    return str(job.root.relative_to(home_)) if job.root.is_relative_to(home_) else str(job.root)


def _data_name(data: DataConfig) -> str:
    if data.source is DataSource.packaged:
        return data.subset or data.name
    subset = f" {data.subset}" if data.subset and data.source is DataSource.hub else ""
    return data._target_ or f"{data.name}{subset}"


def _rows_of(job: JobDir, asked: int | None) -> int | None:
    sizes = read_json(job.file).get("sizes") if job.file.is_file() else None
    return (sizes or {}).get("train", asked)


def _number(value: Any) -> float | None:
    return None if value is None or value != value else round(float(value), 6)
