"""A small HTML page that shows a stored data set in the dashboard: no script, no font, nothing from elsewhere."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from ..data.images import thumbnail
from .summary import summarize, token_lengths

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset, DatasetDict

_ROWS = 5
_PREDICTED = 20
_COLUMNS = 12
_TEXT = 160
_BINS = 24
_CLASSES = 30

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5c6878; --line: #d9dfe7; --paper: #fff; --bar: #2f6fb0 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaf0; --soft: #9aa6b5; --line: #333d4a; --paper: #14191f; --bar: #6aa9e6 } }
* { box-sizing: border-box }
body { margin: 0; padding: 16px; font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper) }
h2 { font-size: 16px; margin: 0 } h3 { font-size: 13px; color: var(--soft); font-weight: 600; margin: 16px 0 6px }
section { max-width: 900px; padding-bottom: 20px; margin-bottom: 20px; border-bottom: 1px solid var(--line) }
section:last-child { border: 0 } p { margin: 2px 0; color: var(--soft) }
.bar { display: grid; grid-template-columns: minmax(70px, 22%) 1fr 110px; gap: 10px; align-items: center }
.bar span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap } .bar span:last-child { color: var(--soft) }
.bar i { display: block; height: 12px; min-width: 1px; background: var(--bar); border-radius: 2px }
svg { width: 100%; height: 90px; display: block } rect { fill: var(--bar) }
.axis { display: flex; justify-content: space-between; color: var(--soft); font-size: 12px }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-size: 13px } th { font-weight: 600 }
th, td { text-align: left; vertical-align: top; padding: 4px 12px 4px 0; border-bottom: 1px solid var(--line) }
td { min-width: 90px; max-width: 340px; overflow-wrap: anywhere }
.grid { display: flex; flex-wrap: wrap; gap: 12px } figure { margin: 0; text-align: center; color: var(--soft) }
.grid img { width: 96px; height: 96px; object-fit: contain; image-rendering: pixelated; display: block }
th small { display: block; color: var(--soft); font-weight: 400 }
"""


def preview(dataset: "Dataset | DatasetDict") -> str:
    """Return the page: for every split its rows, label balance, length histogram and first rows."""
    splits = dict(dataset) if isinstance(dataset, dict) else {str(dataset.split or "data"): dataset}
    body = "".join(_section(str(name), split) for name, split in splits.items())
    return _page("Data set", body)


def _page(title: str, body: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body>{body}</body></html>"
    )


def model_card(values: dict[str, Any]) -> str:
    """Return a page that says what a stored model is."""
    rows = []
    for name, value in values.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        rows.append((name.replace("_", " "), f"{shown:,}" if isinstance(shown, int) else str(shown)))
    title = escape(str(values.get("architecture", "Model")))
    how = "<p>transformers loads it from the artifact's folder: <code>pipeline(model=PATH)</code></p>"
    return _page("Model", f"<section><h2>{title}</h2>{_rows_table(('', ''), rows)}{how}</section>")


def _section(name: str, dataset: "Dataset") -> str:
    summary = summarize(dataset)
    parts = [
        f"<h2>{escape(name)}</h2>",
        f"<p>{summary['rows']:,} rows, {len(dataset.column_names)} columns, format {escape(summary['format'])}</p>",
    ]
    for column, counts in summary.get("label_counts", {}).items():
        parts.append(f"<h3>Rows by class ({escape(column)})</h3>{_balance(counts)}")
    tokens = token_lengths(dataset)
    if tokens is not None and len(tokens):
        length = summary["length"]
        parts.append(f"<h3>Tokens per row: mean {length['mean']:g}, 99 in 100 at most {length['p99']}</h3>")
        parts.append(_histogram(tokens))
    if len(dataset):
        parts += [f"<h3>{title}</h3>{table}" for title, table in _readable(dataset)]
        pictures = "image" in dataset.column_names
        rows = _grid(dataset) if pictures else _table(dataset, summary["features"])
        parts.append(f"<h3>{'Some images' if pictures else 'First rows'}</h3>{rows}")
    return f"<section>{''.join(parts)}</section>"


def _readable(dataset: "Dataset") -> Iterator[tuple[str, str]]:
    """Yield tables of the first rows in words: the texts of a split that was just prepared (`samples`), classes and
    probabilities of predictions whose classes are known (`class_names`)."""
    if samples := getattr(dataset, "samples", None):
        yield "Texts", _rows_table(("where", "label", "text"), samples)
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
        yield "Predictions", _rows_table(("row", "true", "predicted", "probabilities"), rows)


def _grid(dataset: "Dataset") -> str:
    """Return some images with their classes."""
    names = getattr(dataset.features.get("labels"), "names", None) or []
    spread = range(0, len(dataset), max(1, len(dataset) // _PREDICTED))[:_PREDICTED]  # folders are in order of classes
    rows = dataset.with_format(None).select(spread)
    shown = "".join(
        f"<figure>{_cell(row['image'], [])}<figcaption>{_cell(row.get('labels', ''), names)}</figcaption></figure>"
        for row in rows
    )
    return f'<div class="grid">{shown}</div>'


def _rows_table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{_cell(value, [])}</td>" for value in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _balance(counts: dict[str, int]) -> str:
    total, most = max(sum(counts.values()), 1), max([*counts.values(), 1])
    shown = list(counts.items())[:_CLASSES]
    bars = "".join(
        f'<div class="bar"><span title="{escape(name)}">{escape(name)}</span>'
        f'<i style="width:{100 * count / most:.1f}%"></i><span>{count:,} ({100 * count / total:.1f}%)</span></div>'
        for name, count in shown
    )
    return bars + (f"<p>and {len(counts) - len(shown)} more classes</p>" if len(counts) > len(shown) else "")


def _histogram(tokens: "np.ndarray") -> str:
    import numpy as np

    low, high = int(tokens.min()), int(tokens.max())
    counts, _ = np.histogram(tokens, bins=min(_BINS, high - low + 1), range=(low, high + 1))
    width, most = 100 / len(counts), max(int(counts.max()), 1)
    bars = "".join(
        f'<rect x="{i * width:.2f}" y="{40 - h:.2f}" width="{width * 0.9:.2f}" height="{h:.2f}">'
        f"<title>{count:,} rows</title></rect>"
        for i, (count, h) in enumerate(zip(counts.tolist(), (40 * counts / most).tolist(), strict=True))
    )
    svg = f'<svg viewBox="0 0 100 40" preserveAspectRatio="none" role="img" aria-label="Tokens per row">{bars}</svg>'
    return f'{svg}<div class="axis"><span>{low}</span><span>{high}</span></div>'


def _table(dataset: "Dataset", features: dict[str, str]) -> str:
    columns = dataset.column_names[:_COLUMNS]
    rows = dataset.with_format(None).select(range(min(_ROWS, len(dataset)))).select_columns(columns)
    names = {name: getattr(dataset.features[name], "names", None) or [] for name in columns}
    types = {name: escape(shorten(features.get(name, ""), 60)) for name in columns}
    head = "".join(f"<th>{escape(name)}<small>{kind}</small></th>" for name, kind in types.items())
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(row[name], names[name])}</td>" for name in columns) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _cell(value: Any, names: list[str]) -> str:
    if isinstance(value, bytes):
        return f'<img src="{thumbnail(value)}" alt="">'
    if isinstance(value, int) and 0 <= value < len(names):
        value = f"{value} {names[value]}"
    if isinstance(value, list) and len(value) > 8:
        return f"{escape(shorten(', '.join(map(str, value[:8])), _TEXT))}, … ({len(value)})"
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return escape(shorten(str(value), _TEXT))


def shorten(text: str, most: int) -> str:
    """Return `text`, cut to `most` characters with an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"
