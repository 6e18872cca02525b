"""The run of a model, and what its files say of its scores, in one form for all tasks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..common.json import load_json
from ..config import UserError
from ..runs.catalog import RunRecord, find_run

COLUMNS = ("name", "precision", "recall", "f1", "support")
OTHER_NAMES = {"class": "name", "F1": "f1", "rows": "support"}


def run_of(checkpoint: str) -> RunRecord:
    """Return the run whose model lies there.

    Raises:
        UserError: it is no trained run's, or one that has no scores.
    """
    try:
        run = find_run(str(Path(checkpoint).expanduser().absolute()))
    except UserError:
        run = None
    if run is None or run.kind != "train":
        raise UserError(
            f"checkpoint={checkpoint}: does not lie in the folder of a run that trained it, so nothing is known of its "
            "data and scores: give RUN/outputs/model (`python src/runs.py ls` lists runs)"
        )
    return run


def results_of(run: RunRecord) -> dict[str, dict[str, Any]]:
    """Return what was measured, by split, as `<split>_results.json` has it; the test split first."""
    found: dict[str, dict[str, Any]] = {}
    for folder in (run.folder / "outputs", run.folder / "outputs" / "model"):
        for file in sorted(folder.glob("*_results.json")):
            try:
                values = load_json(file.read_bytes(), dict)
                if isinstance(values["metrics"], dict) and isinstance(values["n_rows"], int):
                    found[str(values["split"])] = values
            except (OSError, ValueError, KeyError):
                continue  # somebody else's
    order = ("test", "validation")
    return dict(sorted(found.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))


def classes_of(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return name, precision, recall, f1 and support of every class (or type of entity); of single classes also
    `predicted`, the rows that count as it. Empty where a task has none."""
    rows = results.get("classes") or [dict(zip(COLUMNS, row, strict=False)) for row in results.get("types") or ()]
    return [{OTHER_NAMES.get(key, key): value for key, value in row.items()} for row in rows]
