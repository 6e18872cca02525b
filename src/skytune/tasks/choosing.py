"""What `task=auto` is: by what stands in the first rows of the train split, and by the model's config.json."""

import logging
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..config import DataConfig, DataSource, ModelConfig
from ..data.columns import Column
from ..data.images import IMAGE, holds_images
from ..data.labels import NUMBER
from ..data.sources import Source
from ..models import load_config, local_folder
from .multi_label import SEPARATOR

Choice = tuple[str, str]
"""Name of a task, and why it is that one."""

FIRST: Choice = ("text-classification", "labels are classes")


def choose(data: DataConfig, model: ModelConfig) -> Choice:
    """Return which task the data are for. A function of the user's own is not called for it.

    Raises:
        UserError: the data cannot be read.
    """
    if data.source is DataSource.target:
        return FIRST
    if data.image is not None or data.image_folder is not None:
        return "image-classification", "data.image names a column of images"
    names = data.label_columns or [data.label]
    columns = [Column(IMAGE, IMAGE, "data.image", "values", False)]
    columns += [Column("text", data.text, "data.text", "values", False)]
    columns += [Column(f"label{n}", name, "data.label", "values", False) for n, name in enumerate(names)]
    log = logging.getLogger(Source.__module__.rpartition(".")[0])  # of all that reads data
    level = log.level
    log.setLevel(logging.WARNING)  # what is said of the files is said when they are read
    try:
        rows = Source(data, tuple(columns)).head(data.train or str(data.test))
    finally:
        log.setLevel(level)
    images = rows.more.pop(IMAGE, None)
    if images is not None and holds_images(images.type):
        return "image-classification", "there are images"
    if rows.text is not None and _is_list(rows.text.type):
        return "token-classification", f"'{data.text}' holds lists of words"
    if data.label_columns is not None:
        whole = all(_texts(column) <= {"0", "1", "0.0", "1.0", "true", "false"} for column in rows.more.values())
        return ("multi-label", "each column holds 0 or 1") if whole else ("regression", "the columns hold numbers")
    return FIRST if "label0" not in rows.more else _by_label(rows.more["label0"], data, model)


def _by_label(label: Any, data: DataConfig, model: ModelConfig) -> Choice:
    if pa.types.is_struct(label.type):
        return FIRST
    if _is_list(label.type):
        inside = label.type.value_type
        numbers = pa.types.is_floating(inside)
        return ("regression" if numbers else "multi-label"), f"'{data.label}' holds lists"
    if data.labels is not None or data.label_map is not None:
        return FIRST
    texts = _texts(label)
    if texts and all(map(NUMBER.fullmatch, texts)):
        if not all(float(text).is_integer() for text in texts):
            return "regression", f"'{data.label}' holds numbers with fractions"
        if _is_regressor(model):
            return "regression", f"{model.name} is one"
    parts = {part.strip() for text in texts for part in text.split(SEPARATOR)}
    if any(SEPARATOR in text for text in texts) and len(parts) <= len(texts):
        return "multi-label", f"'{data.label}' holds several classes with '{SEPARATOR}' between them"
    return FIRST


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _texts(column: Any) -> set[str]:
    """Return what stands in a column of names or numbers, as text, blanks aside; of another one its type."""
    if pa.types.is_nested(column.type):
        return {str(column.type)}
    return {str(value).strip().lower() for value in pc.unique(column).to_pylist() if value is not None} - {"", "nan"}


def _is_regressor(model: ModelConfig) -> bool:
    """Whether the model, where it lies on this disk, was trained to give numbers."""
    if model._target_ or local_folder(model.name, "model.name") is None:
        return False
    return getattr(load_config(model), "problem_type", None) == "regression"
