"""What leaves the workers, for whoever scores and shows it: a split's predictions, and the history as numbers by
name, the way trackers and ZenML have it. Needs no torch."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


def write_predictions(path: Path, rows: np.ndarray, labels: np.ndarray | None, logits: np.ndarray) -> None:
    """Write one split's predictions as an Arrow file, atomically (columns as in `skytune.job`)."""
    import pyarrow as pa

    ends = np.arange(len(rows) + 1) * (logits.shape[1] if len(rows) else 0)
    columns = {
        "row": _arrow(rows, pa.int64()),
        "label": _arrow(np.full(len(rows), -1) if labels is None else labels[rows], pa.int64()),
        "logits": pa.ListArray.from_arrays(_arrow(ends, pa.int32()), _arrow(logits, pa.float32())),
    }
    table = pa.table(columns)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    temporary.replace(path)


def _arrow(values: np.ndarray, kind: "pa.DataType") -> "pa.Array":
    """Return the numbers of an array, one after the other. `pa.array` would import pandas first, 0.4 s of a worker."""
    import pyarrow as pa

    plain = np.ascontiguousarray(values, dtype=kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, plain.size, [None, pa.py_buffer(plain)])


def read_predictions(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (rows int64 [n], labels int64 [n], logits float32 [n, classes]) of one split."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
        table = reader.read_all()
    logits = np.array(table["logits"].to_pylist(), dtype=np.float32)
    return table["row"].to_numpy(), table["label"].to_numpy(), logits


STEP = ("loss", "lr", "grad_norm", "samples_per_s", "tokens_per_s", "epoch", "rows", "tokens")
"""What a tracker is told of a step."""


def values(record: dict[str, Any]) -> dict[str, float]:
    """Return a record of the history as numbers by name: `train/loss`, `validation/accuracy`, ..."""
    if record["kind"] == "step":
        found = {f"train/{name}": record.get(name) for name in STEP}
    else:
        found = {f"{record['split']}/{name}": value for name, value in record["metrics"].items()}
    return {name: value for name, value in found.items() if isinstance(value, (int, float))}


def last_values(history: list[dict[str, Any]]) -> dict[str, float]:
    """Return the newest value of every name; numbers that JSON does not have are left out."""
    found: dict[str, float] = {}
    for record in history:
        found |= values(record)
    return {name: value for name, value in found.items() if math.isfinite(value)}
