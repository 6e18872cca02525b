"""What leaves the workers, for whoever scores and shows it: a split's predictions, and the history as numbers by
name, the way trackers and ZenML have it. Needs no torch."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.files import replacing
from ..data.batches import Ragged, column

if TYPE_CHECKING:
    import pyarrow as pa


def write_predictions(
    path: Path, rows: np.ndarray, targets: np.ndarray | Ragged | None, collected: np.ndarray | Ragged
) -> None:
    """Write one split's predictions as an Arrow file, atomically (columns as in `skytune.job`).

    Args:
        rows: int64 [n], their numbers in the split.
        targets: of all rows of the split; None where it has none.
        collected: of these rows, in this order.
    """
    import pyarrow as pa

    columns = {
        "row": _arrow(rows, pa.int64()),
        "label": _as_arrow(np.full(len(rows), -1) if targets is None else taken(targets, rows)),
        "logits": _as_arrow(Ragged.of(collected) if isinstance(collected, np.ndarray) else collected),
    }
    table = pa.table(columns)
    with (
        replacing(path) as part,
        pa.OSFile(str(part), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as out,
    ):
        out.write_table(table)


def taken(targets: np.ndarray | Ragged, rows: np.ndarray) -> np.ndarray | Ragged:
    """Return what is learned from these rows, in this order."""
    return targets.take(rows) if isinstance(targets, Ragged) else targets[rows]


def _as_arrow(values: np.ndarray | Ragged) -> "pa.Array":
    import pyarrow as pa

    if isinstance(values, np.ndarray) and values.ndim == 1:
        return _arrow(values, pa.int64())
    found = values if isinstance(values, Ragged) else Ragged.of(values)
    kind = pa.float32() if np.issubdtype(found.values.dtype, np.floating) else pa.int64()
    return pa.ListArray.from_arrays(_arrow(found.offsets, pa.int32()), _arrow(found.values, kind))


def _arrow(values: np.ndarray, kind: "pa.DataType") -> "pa.Array":
    """Return the numbers of an array, one after the other. `pa.array` would import pandas first, 0.4 s of a worker."""
    import pyarrow as pa

    plain = np.ascontiguousarray(values, dtype=kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, plain.size, [None, pa.py_buffer(plain)])


def read_predictions(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (rows int64 [n], labels int64 [n], logits float32 [n, classes]) of one split; arrays of arrays where rows
    have different numbers of them."""
    rows, targets, collected = load_predictions(path)
    return rows, _even(targets), _even(collected)


def load_predictions(path: Path) -> tuple[np.ndarray, np.ndarray | Ragged, Ragged]:
    """Return (rows, what was to be learned, what was collected) of one split, from its file."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
        return columns_of(reader.read_all())


def columns_of(table: "pa.Table") -> tuple[np.ndarray, np.ndarray | Ragged, Ragged]:
    """Return (rows, what was to be learned, what was collected) of one split's predictions."""
    rows, targets, collected = (column(table.column(name)) for name in ("row", "label", "logits"))
    return rows, targets, collected


def _even(values: np.ndarray | Ragged) -> np.ndarray:
    if isinstance(values, np.ndarray):
        return values
    lengths = np.unique(np.diff(values.offsets))
    if len(lengths) < 2:
        return np.array(values.dense())
    found = np.empty(len(values), dtype=object)
    found[:] = np.split(values.values, values.offsets[1:-1])
    return found


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
