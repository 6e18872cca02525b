"""The tidy table of an experiment: one row a cell, every column documented, units in the names."""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import UserError
from ..pricing.cost import spent

if TYPE_CHECKING:
    import pandas as pd

PARQUET, CSV, README = "results.parquet", "results.csv", "columns.md"

Column = tuple[str, str, str]

COLUMNS: dict[str, Column] = {
    # name: (type, where it comes from, meaning)
    "experiment": ("text", "design", "name of the experiment"),
    "cell": ("text", "design", "name of the cell: levels, seed, and a hash of all that makes it"),
    "status": ("text", "measured", "done, failed, or stopped (the budget was reached; it goes on where it stood)"),
    "origin": ("text", "design", "run (by the benchmark) or adopted (a job that was run by hand)"),
    "reason": ("text", "measured", "why a cell failed or was stopped"),
    "seed": ("int", "design", "decides order of rows, new weights and dropout"),
    "model": ("text", "design", "name of the initial model"),
    "data": ("text", "design", "name of the data set"),
    "train_rows": ("int", "measured", "rows of the train split"),
    "epochs": ("float", "measured", "passes over them"),
    "machine": ("text", "design", "instance type, `x N` for N nodes, `spot`; `local` is the machine of the command"),
    "accelerator": ("text", "measured", "what one device is"),
    "nodes": ("int", "design", "machines of the cell"),
    "devices": ("int", "measured", "processes that trained, over all nodes"),
    "strategy": ("text", "measured", "how the training step was spread"),
    "precision": ("text", "measured", "number format of the forward and backward pass"),
    "global_batch": ("int", "design", "rows that one optimizer step learned from"),
    "per_device_batch": ("float", "computed", "global_batch / devices"),
    "peak_lr": ("float", "computed", "highest learning rate, after scale_lr"),
    "scale_lr": ("text", "design", "how the learning rate followed the global batch"),
    "steps": ("int", "measured", "optimizer steps"),
    "samples": ("int", "measured", "rows learned from, repetitions counted"),
    "tokens": ("int", "measured", "tokens learned from, padding not counted"),
    "provision_s": ("float", "measured", "paid seconds until the machines were up"),
    "setup_s": ("float", "measured", "paid seconds of installing, starting processes, loading model and data"),
    "train_s": ("float", "measured", "seconds in training steps"),
    "evaluate_s": ("float", "measured", "seconds of validations and of predicting at the end"),
    "save_s": ("float", "measured", "seconds of writing the trained model"),
    "idle_s": ("float", "computed", "paid seconds in none of the above; work that was lost with a machine included"),
    "total_s": ("float", "measured", "paid seconds of one node, all attempts together"),
    "attempts": ("int", "measured", "starts, those included that were preempted, killed or interrupted"),
    "samples_per_s": ("float", "computed", "samples / train_s, over all devices"),
    "steady_samples_per_s": ("float", "computed", "likewise, without the first fifth of the steps (kernels start up)"),
    "tokens_per_s": ("float", "computed", "tokens / train_s, over all devices"),
    "mfu": (
        "float",
        "computed",
        "share of the devices' 16-bit peak that real tokens used, at the steady rate (skytune.training.flops)",
    ),
    "parameters": ("int", "measured", "of the model"),
    "peak_memory_bytes": ("int", "measured", "most memory of the device that rank 0's tensors took"),
    "usd_per_hour": ("float", "design", "price of one machine (of the last attempt); empty where unknown"),
    "price_source": ("text", "design", "where the price comes from"),
    "usd_total": ("float", "computed", "what all attempts on all nodes cost (0: none); empty where a price is unknown"),
    "usd_per_1000_samples": ("float", "computed", "1000 x usd_total / samples"),
    "usd_per_accuracy_point": (
        "float",
        "computed",
        "usd_total / percentage points of accuracy above baseline_accuracy",
    ),
    "accuracy": (
        "float",
        "measured",
        "on the validation split; the test split is left alone, since cells are compared",
    ),
    "f1": ("float", "measured", "likewise; macro average where there are more than two classes"),
    "loss": ("float", "measured", "mean cross-entropy in nats, likewise"),
    "baseline_accuracy": ("float", "computed", "accuracy of always saying the most frequent class"),
    "eval_rows": ("int", "measured", "rows of the validation split"),
    "run_key": ("text", "measured", "key of the training run"),
    "job": (
        "text",
        "measured",
        "folder of the job, under SKYTUNE_HOME where it lies there: job.json, outputs/result.json",
    ),
    "finished_at": ("text", "measured", "UTC time at which the row was written"),
    "torch": ("text", "measured", "version that trained"),
    "skytune": ("text", "measured", "version that trained"),
}
"""By name: type, whether it is part of the design, measured, or computed from those, and meaning. Behind them comes
`factor_NAME` for every factor of the design: the level as the design writes it."""

FACTOR = "factor_"

TYPES = {"text": "string", "int": "Int64", "float": "Float64"}
"""Types that know what is missing."""


def frame(rows: Iterable[Mapping[str, Any]]) -> "pd.DataFrame":
    """Return rows as a table with all columns of `COLUMNS` in their order, then the design's factors."""
    import pandas as pd

    rows = [{**row, "usd_total": spent(row)} for row in rows]
    factors = list(dict.fromkeys(key for row in rows for key in row if key.startswith(FACTOR)))
    columns = {}
    for name, (kind, _, _) in COLUMNS.items():
        columns[name] = pd.array([row.get(name) for row in rows], dtype=TYPES[kind])
    for name in factors:
        columns[name] = _levels([row.get(name) for row in rows])
    return pd.DataFrame(columns)


def records(table: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return the table's rows as plain values, None for what is missing."""
    import pandas as pd

    plain = table.astype(object).where(table.notna(), None).to_dict("records")
    return [
        {
            key: value.item() if hasattr(value, "item") else (None if value is pd.NA else value)
            for key, value in row.items()
        }
        for row in plain
    ]


def read_table(path: Path) -> "pd.DataFrame":
    """Return a table that `write_table` wrote (parquet, or a folder with one).

    Raises:
        UserError: there is none.
    """
    import pandas as pd

    file = path / PARQUET if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"{path}: no results there ({PARQUET})")
    return pd.read_parquet(file)


def write_table(table: "pd.DataFrame", folder: Path) -> list[Path]:
    """Write parquet, csv and what the columns mean into a folder; return the files.

    Raises:
        UserError: a file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        whole = folder / f".{PARQUET}.part"
        table.to_parquet(whole, index=False)
        whole.replace(folder / PARQUET)
        text = io.StringIO()
        table.to_csv(text, index=False, quoting=csv.QUOTE_MINIMAL, lineterminator="\n")
        replace_text(folder / CSV, text.getvalue())
        replace_text(folder / README, columns_text())
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror or error}") from error
    return [folder / name for name in (PARQUET, CSV, README)]


def replace_text(path: Path, text: str) -> None:
    """Write a file as a whole or not at all: whoever is killed, or has a full disk, leaves the one before.

    Raises:
        OSError: it cannot be written.
    """
    whole = path.with_name(f".{path.name}.part")
    try:
        whole.write_text(text, encoding="utf-8")
        whole.replace(path)
    except OSError:
        whole.unlink(missing_ok=True)
        raise


def columns_text() -> str:
    """Return what the columns mean, as Markdown."""
    lines = ["# Columns of the table of results", "", "| column | type | | meaning |", "|---|---|---|---|"]
    lines += [f"| `{name}` | {kind} | {origin} | {meaning} |" for name, (kind, origin, meaning) in COLUMNS.items()]
    lines += [f"| `{FACTOR}NAME` | as in the design | design | level of the factor NAME |", ""]
    return "\n".join(lines)


def _levels(values: list[Any]) -> Any:
    """Return a factor's levels as one column: numbers where all are, else text."""
    import pandas as pd

    known = [value for value in values if value is not None]
    if known and all(isinstance(value, bool) for value in known):
        return pd.array(values, dtype="boolean")
    if known and all(isinstance(value, int) and not isinstance(value, bool) for value in known):
        return pd.array(values, dtype="Int64")
    if known and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in known):
        return pd.array(values, dtype="Float64")
    return pd.array(
        [value if value is None or isinstance(value, str) else json.dumps(value) for value in values], dtype="string"
    )
