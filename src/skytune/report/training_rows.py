"""Whether a model is scored on rows that it was trained on: its run's record lies beside it, as token ids."""

import logging
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import RunConfig, UserError, to_dict
from ..data.tables import read_split
from ..job import JobDir

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

CUTS = ("source", "name", "subset", "train", "validation", "test", "seed", "validation_fraction", "test_fraction")
"""Keys of `data` that decide which rows are trained on and which are scored."""


def rows_trained_on(model: str, splits: Mapping[str, Any], config: RunConfig) -> dict[str, Any]:
    """Return what is to be said of the rows that a model was trained on; nothing where it saw none.

    A row that stood in an evaluation split of the training, too, does not count where its leaks were dropped
    (`data.drop_leaks`): there two texts have the same tokens.

    Args:
        model: its folder; `<run>/outputs/model` has a record.
        splits: tokenized `datasets.Dataset`s by name.
        config: of this evaluation.

    Returns:
        `rows`: by split, how many of its rows; `same_splits`: the words that give the splits of the training.
    """
    run = JobDir(Path(model).expanduser().absolute().parents[1])
    try:
        recorded = {folder.name: _keys(read_split(folder)) for folder in run.inputs.iterdir() if _is_split(folder)}
        trained = recorded.pop("train")
    except (OSError, KeyError, IndexError, ValueError, UserError):
        log.info("no record of the rows that it was trained on lies beside %s: none was looked for among those", model)
        return {}
    held_out = np.concatenate([np.empty(0, np.uint64), *(recorded.values() if _dropped_leaks(run) else ())])
    counts = {}
    for name, split in splits.items():
        if "input_ids" in split.column_names:
            keys = _keys(split.select_columns(["input_ids"]).with_format("arrow")[:])
            counts[name] = int((np.isin(keys, trained) & ~np.isin(keys, held_out)).sum())
    counts = {name: count for name, count in counts.items() if count}
    return {"rows": counts, "same_splits": _words(run, config)} if counts else {}


def warn(found: Mapping[str, Any], rows: Mapping[str, int]) -> None:
    """Say which scores are those of rows that the model was trained on."""
    for name, count in found.get("rows", {}).items():
        again = found.get("same_splits")
        log.warning(
            "%d of %d rows of '%s' are rows that this model was trained on: the score says nothing of new texts%s",
            count,
            rows[name],
            name,
            f" (the splits of its training: {again})" if again else "",
        )


def _dropped_leaks(run: JobDir) -> bool:
    try:
        return run.job.config.data.drop_leaks
    except (UserError, OSError, TypeError):
        return True


def _is_split(folder: Path) -> bool:
    return any(folder.glob("data-*.arrow"))


def _keys(table: "pa.Table") -> np.ndarray:
    """Return a 64-bit key of every row's token ids, shape (rows,): the sum of what token and place are mixed to.

    Raises:
        KeyError, ValueError: the table holds no token ids.
    """
    import pyarrow as pa

    if not table.num_rows:
        return np.empty(0, np.uint64)
    column = table.column("input_ids").combine_chunks()
    numbers = (pa.types.is_integer, pa.types.is_null)  # of nothing but empty rows, null
    if not pa.types.is_list(column.type) or not any(kind(column.type.value_type) for kind in numbers):
        raise ValueError("no token ids")
    if column.null_count:
        raise ValueError("rows without token ids")
    lengths = column.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.cumsum(lengths)
    place = np.arange(1, ends[-1] + 1) - np.repeat(ends - lengths, lengths)  # from 1: of token 0 something is left, too
    mixed = column.flatten().to_numpy(zero_copy_only=False).astype(np.uint64) << np.uint64(32) | place.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):  # splitmix64
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    return sums[ends] - sums[ends - lengths]


def _words(run: JobDir, config: RunConfig) -> str:
    """Return the words for the command line that give the training's splits, where they differ."""
    try:
        then = run.job.config
    except (UserError, OSError, TypeError):
        return ""
    before, now = (to_dict(each.data) | {"run": each.seed} for each in (then, config))
    words = {
        "seed" if key == "run" else f"data.{key}": before[key] for key in ("run", *CUTS) if before[key] != now[key]
    }
    told = [shlex.quote(f"{key}={'null' if value is None else value}") for key, value in words.items()]
    return " ".join(told) if all(map(str.isprintable, told)) else ""  # the file may be anybody's
