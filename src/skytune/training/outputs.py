"""The file in which a split's predictions travel from the workers to whoever scores them; needs no torch."""

from pathlib import Path

import numpy as np


def write_predictions(path: Path, rows: np.ndarray, labels: np.ndarray | None, logits: np.ndarray) -> None:
    """Write one split's predictions as an Arrow file, atomically (columns as in `skytune.job`)."""
    import pyarrow as pa

    columns = {
        "row": pa.array(rows, pa.int64()),
        "label": pa.array(np.full(len(rows), -1) if labels is None else labels[rows], pa.int64()),
        "logits": pa.array(list(logits), pa.list_(pa.float32())),
    }
    table = pa.table(columns)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    temporary.replace(path)


def read_predictions(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (rows int64 [n], labels int64 [n], logits float32 [n, classes]) of one split."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
        table = reader.read_all()
    logits = np.array(table["logits"].to_pylist(), dtype=np.float32)
    return table["row"].to_numpy(), table["label"].to_numpy(), logits
