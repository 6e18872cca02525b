"""Rows out of a `datasets.Dataset`, and such a data set out of whatever a function of the user's own returned."""

from typing import Any

import numpy as np
import pyarrow as pa

from ..config import ConfigError, DataConfig, DataSource, UserError
from ..models.quiet import quiet
from ..models.source import first_line
from .rows import Rows, named_labels, text_column


def from_dataset(dataset: Any, config: DataConfig, name: str) -> Rows:
    """Return the rows of a `datasets.Dataset`: texts where it has the column, else all its columns as they are."""
    if dataset.format["type"] == "custom":
        raise UserError(
            f"the split '{name}' has a transform (set_transform, with_transform), which would be left out: apply it "
            "with .map(), or return a torch Dataset that applies it"
        )
    present = list(dataset.column_names)
    names_of_label = [config.label]
    if config.source is DataSource.target and config.label == DataConfig.label:
        names_of_label.append("labels")  # what tokenized data sets usually call it
    label = next((column for column in names_of_label if column in present), None)
    feature: Any = dataset.features[label] if label else None
    names = list(feature.names) if type(feature).__name__ == "ClassLabel" else None
    rows = Rows(name=name, names=names, parts=[(name, len(dataset))], columns=present)
    if label:
        rows.label = _column(dataset, label)
        if names is not None:
            rows.label = named_labels(rows.label, names)
    if config.text in present:
        rows.text = text_column(_column(dataset, config.text), config.text, name)
        if config.text_pair:
            if config.text_pair not in present:
                raise ConfigError(_absent("text_pair", config.text_pair, name, present))
            rows.pair = text_column(_column(dataset, config.text_pair), config.text_pair, name)
        return rows
    numbers = [column for column in present if column != label and not _is_text(dataset.features[column])]
    if config.source is not DataSource.target or not numbers:
        raise ConfigError(_absent("text", config.text, name, present))
    rows.other = dataset.select_columns(numbers)
    return rows


def _absent(key: str, column: str, name: str, present: list[str]) -> str:
    return f"data.{key}={column}: no such column in the split '{name}'; it has: {', '.join(map(repr, present))}"


def _column(dataset: Any, name: str) -> pa.ChunkedArray:
    column = dataset.select_columns([name]).with_format("arrow")[:].column(name)
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


def _is_text(feature: Any) -> bool:
    return str(getattr(feature, "dtype", "")) in ("string", "large_string")


def as_dataset(split: Any, target: str) -> Any:
    """Return a split that a function of the user's own made as a `datasets.Dataset`.

    Raises:
        UserError: it streams (its length is not known), is empty, or its rows are no dictionaries.
    """
    import datasets

    if isinstance(split, datasets.Dataset):
        return split
    if not (hasattr(split, "__len__") and hasattr(split, "__getitem__")):
        raise UserError(
            f"data._target_={target}: a split is a {type(split).__name__}, which has no length; streaming data cannot "
            "be split honestly: return a datasets.Dataset or a torch Dataset with __len__ and __getitem__"
        )
    if len(split) == 0:
        raise UserError(f"data._target_={target}: a split has 0 rows")
    items = [split[position] for position in range(len(split))]
    for row, item in enumerate(items):
        if not isinstance(item, dict) or item.keys() != items[0].keys():
            what = "columns " + ", ".join(map(str, item)) if isinstance(item, dict) else f"a {type(item).__name__}"
            raise UserError(
                f"data._target_={target}, row {row + 1}: is {what}; every row must be a dictionary of the same columns"
            )
    try:
        with quiet("datasets"):
            return datasets.Dataset.from_dict({key: [_plain(item[key]) for item in items] for key in items[0]})
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UserError(f"data._target_={target}: rows do not fit together: {first_line(error)}") from error


def _plain(value: Any) -> Any:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return value.item()
    return value
