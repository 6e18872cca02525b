"""A small HTML page that shows a stored data set in the dashboard: no script, no font, nothing from elsewhere."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..common.text import shorten, words
from .summary import summarize, token_lengths

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

_ROWS = 5
_PREDICTED = 20
_COLUMNS = 12
_TEXT = 160
_BINS = 24
_CLASSES = 30

Table = tuple[str, list[tuple[str, str]], list[list[str]]]
"""Heading, the columns' names and types, and the cells of every row."""


def preview(dataset: "Dataset | DatasetDict") -> str:
    """Return the page: for every split its rows, label balance, length histogram and first rows."""
    splits = dict(dataset) if isinstance(dataset, dict) else {str(dataset.split or "data"): dataset}
    return _page("Data set", splits=[_split(str(name), split) for name, split in splits.items()])


def model_card(values: dict[str, Any]) -> str:
    """Return a page that says what a stored model is."""
    facts = [(words(name), f"{value:,}" if isinstance(value, int) else _cell(value)) for name, value in values.items()]
    return _page(str(values.get("architecture", "Model")), facts=facts)


def _page(title: str, **values: Any) -> str:
    from ..report.page import render

    return render("preview.html.jinja", title=title, **{"splits": [], "facts": [], **values})


def _split(name: str, dataset: "Dataset") -> dict[str, Any]:
    """Return what the template wants of a split."""
    summary, tokens = summarize(dataset), token_lengths(dataset)
    pictures = len(dataset) > 0 and "image" in dataset.column_names
    tables = list(_readable(dataset))
    if len(dataset) and not pictures:
        tables.append(_first_rows(dataset, summary["features"]))
    return {
        "name": name,
        "rows": summary["rows"],
        "about": f"{summary['rows']:,} rows, {len(dataset.column_names)} columns, format {summary['format']}",
        "classes": [
            (column, list(counts.items())[:_CLASSES], max(0, len(counts) - _CLASSES))
            for column, counts in summary.get("label_counts", {}).items()
        ],
        "length": summary.get("length"),
        "histogram": [] if tokens is None or not len(tokens) else _histogram(tokens),
        "tables": tables,
        "pictures": _pictures(dataset) if pictures else [],
    }


def _readable(dataset: "Dataset") -> Iterator[Table]:
    """Yield tables of the first rows in words: the texts of a split that was just prepared (`samples`), classes and
    probabilities of predictions whose classes are known (`class_names`)."""
    if samples := getattr(dataset, "samples", None):
        yield _table("Texts", ("where", "label", "text"), samples)
    names = getattr(dataset, "class_names", None)
    if names and {"row", "label", "logits"} <= set(dataset.column_names):
        from scipy.special import softmax

        rows = []
        for row in dataset.with_format(None).select(range(min(_PREDICTED, len(dataset)))):
            if len(row["logits"]) != len(names):
                return  # not one number a class
            shares = softmax(row["logits"])
            true = names[row["label"]] if 0 <= row["label"] < len(names) else "unknown"
            told = ", ".join(f"{name} {share:.3f}" for name, share in zip(names, shares, strict=True))
            rows.append((row["row"], true, names[int(shares.argmax())], told))
        yield _table("Predictions", ("row", "true", "predicted", "probabilities"), rows)


def _table(title: str, heads: tuple[str, ...], rows: Any) -> Table:
    return title, [(head, "") for head in heads], [[_cell(value) for value in row] for row in rows]


def _first_rows(dataset: "Dataset", features: dict[str, str]) -> Table:
    columns = dataset.column_names[:_COLUMNS]
    rows = dataset.with_format(None).select(range(min(_ROWS, len(dataset)))).select_columns(columns)
    names = {name: getattr(dataset.features[name], "names", None) or [] for name in columns}
    heads = [(name, shorten(features.get(name, ""), 60)) for name in columns]
    return "First rows", heads, [[_cell(row[name], names[name]) for name in columns] for row in rows]


def _pictures(dataset: "Dataset") -> list[tuple[str, str]]:
    """Return some images with their classes."""
    from ..data.images import thumbnail

    names = getattr(dataset.features.get("labels"), "names", None) or []
    spread = range(0, len(dataset), max(1, len(dataset) // _PREDICTED))[:_PREDICTED]  # folders are in order of classes
    rows = dataset.with_format(None).select(spread)
    return [(thumbnail(row["image"]), _cell(row.get("labels", ""), names)) for row in rows]


def _histogram(tokens: Any) -> list[int]:
    import numpy as np

    low, high = int(tokens.min()), int(tokens.max())
    counts, _ = np.histogram(tokens, bins=min(_BINS, high - low + 1), range=(low, high + 1))
    return [int(count) for count in counts]


def _cell(value: Any, names: tuple[str, ...] | list[str] = ()) -> str:
    if isinstance(value, int) and 0 <= value < len(names):
        value = f"{value} {names[value]}"
    if isinstance(value, list):
        more = f", … ({len(value)})" if len(value) > 8 else ""
        return shorten(", ".join(map(str, value[:8])), _TEXT) + more
    return shorten(str(value), _TEXT)
