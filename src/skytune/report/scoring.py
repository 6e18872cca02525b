"""Scores and report out of predictions: what `evaluate_model` does, as plain functions; each file is written whole or
not at all."""

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..common.files import replacing
from ..config import Pipeline, RunConfig, UserError, to_dict
from ..job import JobDir, read_json, write_json
from ..pricing.cost import cost_of
from ..tasks import Scoring, Shown, find_task
from ..training.outputs import columns_of
from .learned import nothing_learned
from .page import build_report


def write_results(
    folder: str | os.PathLike[str],
    evaluations: Mapping[str, Mapping[str, Any]],
    fingerprint: str | Mapping[str, str] | None = None,
) -> list[Path]:
    """Write `<name>_results.json` for every evaluated split (`validation_results.json`, `test_results.json`, ...).

    Each holds `split`, `n_rows`, `metrics`, what the task has to say (of classes `classes`, `confusion`,
    `calibration_error`), `data_fingerprint` and `created` (UTC, ISO 8601). A file is replaced as a whole or not at all.

    Args:
        folder: made if missing.
        evaluations: what the task's `score` returned, as plain values, by name.
        fingerprint: hash of the data, one for all or by split name.

    Returns:
        The paths written, in the order of `evaluations`.

    Raises:
        UserError: the folder cannot be written, or two names give one file.
    """
    created = datetime.now(UTC).isoformat(timespec="seconds")
    paths: list[Path] = []
    for name, found in evaluations.items():
        path = Path(folder) / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', name)}_results.json"
        if path in paths:
            raise UserError(f"two evaluation sets would both be written to {path.name}: rename '{name}' in eval.sets")
        values = {
            "split": name,
            "n_rows": found["n_rows"],
            "metrics": found["metrics"],
            **found["results"],
            "data_fingerprint": fingerprint.get(name) if isinstance(fingerprint, Mapping) else fingerprint,
            "created": created,
        }
        with _writing(path):
            write_json(path, values)
        paths.append(path)
    return paths


def write_file(path: Path, content: bytes) -> None:
    """Write a file as a whole or not at all.

    Raises:
        UserError: it cannot be written.
    """
    with _writing(path), replacing(path) as part:
        part.write_bytes(content)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def score(
    config: RunConfig,
    predictions: Mapping[str, Any],
    labels: list[str],
    shown: Mapping[str, Shown],
    report: dict[str, Any],
) -> tuple[dict[str, dict[str, Any]], str, str]:
    """Return (evaluation by split, the report as HTML, what is to be said of a run that has learned nothing or empty).

    Args:
        config: `resolved`.
        predictions: by split, rows of `row`, `label`, `logits` (see `skytune.job`).
        labels: names of the classes, or outputs, in their order.
        shown: by split, its rows.
        report: `result`, `history` and `data` of the training; `result` alone for an evaluation without one.

    Raises:
        UserError: a split without rows, or one that cannot be scored.
    """
    found = {}
    task, result = find_task(config.task), report.get("result", {})
    for name, split in predictions.items():
        if not len(split):
            raise UserError(f"the evaluation split '{name}' has no rows")
        rows, targets, collected = columns_of(split.with_format("arrow")[:])
        scoring = Scoring.of(config.eval, labels, settings=result.get("settings", {}), shown=shown[name].picked(rows))
        found[name] = task.score(collected, targets, scoring).as_dict()
    trained = config.pipeline is Pipeline.training
    test = found.get("test")
    warning = nothing_learned(test, report.get("history", []), result, to_dict(config)) if test and trained else ""
    page = build_report(
        title=result.get("run_key", config.name or "evaluation"),
        training={**result, "cost_line": cost_of(result, config.compute.usd_per_hour).line()} if trained else {},
        history=report.get("history", []),
        evaluations=found,
        config=to_dict(config),
        data_notes=report.get("data", {}),
        labels=labels,
        links={
            "model": model_path(config, result),
            "run folder": result.get("run_folder", ""),
            **(tracker_places(result) if trained else {}),
        },
        warning=warning,
        origin=origin_of(result),
    )
    return found, page, warning


def origin_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return where a run was asked for, as its job file says it; empty where it does not."""
    file = JobDir(Path(result.get("run_folder") or ".")).file
    try:
        found = read_json(file).get("origin")
    except (OSError, UserError, ValueError):
        return {}
    return dict(found) if isinstance(found, dict) else {}


def model_path(config: RunConfig, result: Mapping[str, Any]) -> str:
    """Return where the model of a run lies."""
    if config.checkpoint.path:
        return config.checkpoint.path
    return str(JobDir(result["run_folder"]).model)


def tracker_places(result: Mapping[str, Any]) -> dict[str, str]:
    """Return, by tracker, where to see a run: an address, or the command that shows its files."""
    found = {}
    for name, place in (result.get("trackers") or {}).items():
        folder = Path(result["run_folder"]) / place["folder"]  # an absolute one stays as it is
        if place.get("url") or folder.is_dir():
            found[name] = place.get("url") or f"{place['command']} {shlex.quote(str(folder))}"
    return found


def report_path(run_folder: str | Path) -> Path:
    """Return where a run's report lies."""
    return JobDir(run_folder).outputs / "report.html"


def write_report(run_folder: Path, page: str) -> None:
    """Write the report into the run's folder, where a browser opens it without any dashboard.

    Raises:
        UserError: it cannot be written.
    """
    write_file(report_path(run_folder), page.encode())


def write_beside(
    folder: Path, found: Mapping[str, Mapping[str, Any]], checkpoint: str | None, fingerprints: Mapping[str, str]
) -> list[Path]:
    """Write `<split>_results.json` beside the model, and return where they are.

    After a training that is the run's own model folder. An evaluation of `checkpoint` writes to its run's folder, and
    beside the checkpoint too where that is a local folder which holds no results of other data.
    """
    data = fingerprints.get("data")
    job = JobDir(folder)
    if checkpoint is None:
        return write_results(job.model, found, data)
    places = write_results(job.outputs, found, data)
    beside = Path(checkpoint).expanduser()
    taken = [file for name in found if (file := beside / f"{name}_results.json").is_file()]
    if beside.is_dir() and all(read_json(file).get("data_fingerprint") == data for file in taken):
        try:
            places = write_results(beside, found, data)
        except UserError:
            pass  # a folder of somebody else's; the run's own folder has them
    return places
