"""What a data set is, in numbers: from its own info and Arrow's buffers, never through pandas or row by row."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from datasets import Dataset

MOST_CLASSES = 100
"""A column with more different labels than this is not counted by label."""

MOST_COLUMNS = 200
LENGTH_COLUMN = "input_ids"
LABEL_COLUMNS = ("labels", "label")
_PERCENTILES = (50, 90, 99)


def summarize(dataset: "Dataset") -> dict[str, Any]:
    """Return `rows`, `features`, `format`, `label_counts` by column and `length` (tokens), each where there is one.

    `length` has min, mean, p50, p90, p99 and max of the number of tokens in `input_ids`.
    """
    features = {name: describe(feature) for name, feature in list(dataset.features.items())[:MOST_COLUMNS]}
    summary: dict[str, Any] = {"rows": len(dataset), "features": features, "format": dataset.format["type"] or "python"}
    counts = {name: found for name in dataset.column_names if (found := label_counts(dataset, name)) is not None}
    if counts:
        summary["label_counts"] = counts
    tokens = token_lengths(dataset)
    if tokens is not None and len(tokens):
        import numpy as np

        percentiles = {f"p{p}": int(np.percentile(tokens, p, method="lower")) for p in _PERCENTILES}
        summary["length"] = {
            "min": int(tokens.min()),
            "mean": round(float(tokens.mean()), 2),
            **percentiles,
            "max": int(tokens.max()),
        }
    return summary


def describe(feature: Any) -> str:
    """Return a feature's type in a few words: `int64`, `list of int32`, `classes negative, positive`."""
    names = getattr(feature, "names", None)
    if names is not None:
        return "classes " + ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    if isinstance(feature, dict):
        return "{" + ", ".join(f"{name}: {describe(inner)}" for name, inner in feature.items()) + "}"
    if hasattr(feature, "feature"):
        return f"list of {describe(feature.feature)}"
    return str(getattr(feature, "dtype", feature))


def label_counts(dataset: "Dataset", name: str) -> dict[str, int] | None:
    """Return rows by class name, classes without rows included; None where the column holds no labels.

    Columns of labels are those with class names, and `labels` and `label` where they hold integers. A number outside
    the class names is its own entry (`-1`: unlabelled).
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    names = getattr(dataset.features[name], "names", None)
    column = dataset.data.column(name)
    if names is None and (name not in LABEL_COLUMNS or not pa.types.is_integer(column.type)):
        return None
    found = {entry["values"]: entry["counts"] for entry in pc.value_counts(_rows(dataset, column)).to_pylist()}
    if len(found) > MOST_CLASSES:
        return None
    classes = {text: found.pop(number, 0) for number, text in enumerate(names or [])}
    rest = sorted(found.items(), key=lambda item: (item[0] is None, item[0]))
    return {**classes, **{"missing" if number is None else str(number): count for number, count in rest}}


def token_lengths(dataset: "Dataset") -> "np.ndarray | None":
    """Return the number of tokens of every row, shape (rows,); None without a list column `input_ids`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if LENGTH_COLUMN not in dataset.column_names:
        return None
    column = dataset.data.column(LENGTH_COLUMN)
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return None
    # Differences of the offsets: the tokens themselves are not read.
    return _rows(dataset, pc.list_value_length(column)).drop_null().to_numpy()


def _rows(dataset: "Dataset", column: "pa.ChunkedArray") -> "pa.ChunkedArray":
    """Apply the selection of a filtered, shuffled or selected data set."""
    return column if dataset._indices is None else column.take(dataset._indices.column(0))
