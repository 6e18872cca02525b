"""A row of the table out of what a cell's job left: `result.json`, predictions, attempts."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

import skytune

from ..config import DataConfig, DataSource, RunConfig
from ..config.folders import home
from ..job import JobDir, read_json
from ..pricing.cost import Attempt, Cost
from ..training.metrics import compute
from ..training.outputs import read_predictions
from .cells import Cell
from .table import FACTOR

SPLIT = "validation"
"""Cells are compared by it; choosing by the test split would use it up."""

SETUP = ("setup_s", "start_s", "load_s")
EVALUATE = ("validate_s", "predict_s", "evaluate_s")


def base_row(experiment: str, cell: Cell) -> dict[str, Any]:
    """Return what is known of a cell before it has run."""
    config = cell.config
    strategy = getattr(config, "strategy", None)
    named = getattr(strategy, "name", None)
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
        "strategy": getattr(named, "value", None) or ("single" if cell.devices == 1 else "ddp"),
        "precision": config.precision.value,
        "global_batch": config.batch.global_size,
        "per_device_batch": config.batch.global_size / cell.devices,
        "peak_lr": config.optimizer.lr * config.schedule.lr_scale(config.batch.global_size),
        "scale_lr": config.schedule.scale_lr.value,
        **{f"{FACTOR}{name}": level for name, level in cell.levels.items()},
    }


def done_row(
    experiment: str,
    cell: Cell,
    job: JobDir,
    result: Mapping[str, Any],
    attempts: Sequence[Attempt],
    price_source: str = "",
) -> dict[str, Any]:
    """Return the row of a finished cell.

    Args:
        job: its job directory, with predictions of the validation split.
        result: `outputs/result.json`.
        attempts: all starts, with what was paid for each.

    Raises:
        UserError: the predictions cannot be scored.
    """
    cost = Cost(attempts)
    phases = {key: float(value) for key, value in (result.get("phases") or {}).items() if value is not None}
    paid = {name: cost.phases.get(name, 0.0) for name in ("provision_s", "setup_s")}
    spans = {
        "provision_s": paid["provision_s"],
        "setup_s": paid["setup_s"] + sum(phases.get(name, 0.0) for name in SETUP if name != "setup_s"),
        "train_s": phases.get("train_s", 0.0),
        "evaluate_s": sum(phases.get(name, 0.0) for name in EVALUATE),
        "save_s": phases.get("save_s", 0.0),
    }
    scores = quality(cell.config, job)
    samples = result.get("train_rows")
    steady = steady_rate(job.read_history())
    points = 100 * (scores["accuracy"] - scores["baseline_accuracy"]) if scores.get("accuracy") is not None else 0.0
    usd = cost.usd
    row = base_row(experiment, cell)
    return {
        **row,
        "status": "done",
        "train_rows": _rows_of(job, row["train_rows"]),
        "epochs": result.get("epochs"),
        "accelerator": row["accelerator"] or str(result.get("device") or "").removeprefix("cuda ") or None,
        "devices": result.get("devices") or result.get("world_size", cell.devices),
        "strategy": _name(result.get("strategy")) or row["strategy"],
        "precision": result.get("precision"),
        "steps": result.get("steps"),
        "samples": samples,
        "tokens": result.get("train_tokens"),
        **{name: round(seconds, 3) for name, seconds in spans.items()},
        "idle_s": round(max(0.0, cost.seconds - sum(spans.values())), 3),
        "total_s": round(cost.seconds, 3),
        "attempts": len(attempts),
        "samples_per_s": result.get("samples_per_s"),
        "steady_samples_per_s": steady,
        "tokens_per_s": result.get("tokens_per_s"),
        "mfu": mfu_of(result, steady or result.get("samples_per_s")),
        "parameters": result.get("parameters"),
        "peak_memory_bytes": result.get("peak_memory_bytes"),
        "usd_per_hour": attempts[-1].usd_per_hour if attempts else None,
        "price_source": (attempts[-1].source if attempts else "") or price_source or None,
        "usd_total": None if usd is None else round(usd, 8),
        "usd_per_1000_samples": None if usd is None or not samples else round(1000 * usd / samples, 8),
        "usd_per_accuracy_point": None if usd is None or points <= 0 else round(usd / points, 8),
        **scores,
        "run_key": result.get("run_key"),
        "job": place_of(job),
        "finished_at": now(),
        "torch": (result.get("versions") or {}).get("torch"),
        "skytune": skytune.__version__,
    }


def ended_row(
    experiment: str,
    cell: Cell,
    status: str,
    reason: str,
    attempts: Sequence[Attempt],
    job: JobDir | None = None,
    price_source: str = "",
) -> dict[str, Any]:
    """Return the row of a cell that failed or was stopped: what it cost all the same, and why."""
    cost = Cost(attempts)
    return {
        **base_row(experiment, cell),
        "train_rows": None,  # wished for, not measured
        "status": status,
        "reason": reason,
        "total_s": round(cost.seconds, 3) if attempts else None,
        "attempts": len(attempts),
        "usd_per_hour": attempts[-1].usd_per_hour if attempts else None,
        "price_source": (attempts[-1].source if attempts else "") or price_source or None,
        "usd_total": None if cost.usd is None else round(cost.usd, 8),
        "job": None if job is None else place_of(job),
        "finished_at": now(),
        "skytune": skytune.__version__,
    }


def quality(config: RunConfig, job: JobDir) -> dict[str, Any]:
    """Return `accuracy`, `f1`, `loss`, `baseline_accuracy` and `eval_rows` of the validation split.

    Raises:
        UserError: labels or logits that cannot be scored.
    """
    _, labels, logits = read_predictions(job.predictions(SPLIT))
    wanted = [str(name) for name in ("accuracy", "f1") if name in config.eval.metrics]
    scores = compute(wanted, {}, logits, labels)
    found: dict[str, Any] = {name: _number(scores.get(name)) for name in ("accuracy", "f1", "loss")}
    share = np.bincount(labels, minlength=1).max() / max(1, len(labels))
    return {**found, "baseline_accuracy": round(float(share), 6), "eval_rows": len(labels)}


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


def now() -> str:
    """Return the time, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _data_name(data: DataConfig) -> str:
    if data.source is DataSource.packaged:
        return data.subset or data.name
    subset = f" {data.subset}" if data.subset and data.source is DataSource.hub else ""
    return data._target_ or f"{data.name}{subset}"


def _rows_of(job: JobDir, asked: int | None) -> int | None:
    sizes = read_json(job.root / "job.json").get("sizes") if (job.root / "job.json").is_file() else None
    return (sizes or {}).get("train", asked)


def _name(strategy: Any) -> str | None:
    return strategy.get("name") if isinstance(strategy, Mapping) else strategy


def _number(value: Any) -> float | None:
    return None if value is None or value != value else round(float(value), 6)
