"""Rows out of a `datasets.Dataset`, and such a data set out of whatever a function of the user's own returned."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from ..common.text import first_line
from ..config import DataConfig, DataSource, UserError
from ..models.quiet import quiet
from .columns import Columns, column_of, fields, flat_names, rows_of, text_columns, wanted_columns
from .rows import Rows, named_labels


def from_dataset(dataset: Any, config: DataConfig, name: str, columns: Columns | None = None) -> Rows:
    """Return the rows of a `datasets.Dataset`: texts where it has the column, else all its columns as they are."""
    if dataset.format["type"] == "custom":
        raise UserError(
            f"the split '{name}' has a transform (set_transform, with_transform), which would be left out: apply it "
            "with .map(), or return a torch Dataset that applies it"
        )
    schema = dataset.features.arrow_schema
    present = flat_names(schema)
    columns = columns or text_columns(config)
    answer = next((column for column in columns if column.role == "label"), None)
    label = answer.name if answer else ""
    if config.source is DataSource.target and label == DataConfig.label and label not in present:
        label = "labels"  # what tokenized data sets usually call it
    feature: Any = dataset.features
    for part in [label] if label in dataset.features else label.split("."):
        feature = feature.get(part) if isinstance(feature, dict) else None
    scalar = type(feature).__name__ == "ClassLabel"
    feature = feature if scalar else getattr(feature, "feature", None)  # a list of classes
    names = list(feature.names) if type(feature).__name__ == "ClassLabel" else None
    where = f"the split '{name}'"
    numbers = [n for n in dataset.column_names if n != label and not _is_text(dataset.features[n])]
    if config.source is DataSource.target and numbers and _lacks_texts(columns, present):
        rows = Rows(name=name, label=_column(dataset, label) if label in present else None)
        rows.other = dataset.select_columns(numbers)
    else:
        wanted_columns(present, where, columns)
        renamed = tuple(replace(column, name=label) if column is answer else column for column in columns)
        rows = rows_of(lambda column: _column(dataset, column), renamed, present, where)
    if names is not None and rows.label is not None and scalar:
        rows.label = named_labels(rows.label, names)
    return replace(rows, name=name, names=names, parts=[(name, len(dataset))], columns=present)


def _lacks_texts(columns: Columns, present: list[str]) -> bool:
    return not {n for column in columns if column.role == "text" for n in fields(column.name)} <= set(present)


def _column(dataset: Any, name: str) -> pa.ChunkedArray:
    outer = next(column for column in dataset.column_names if name == column or name.startswith(f"{column}."))
    return column_of(dataset.select_columns([outer]).with_format("arrow")[:], name)


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
