"""Data sets on disk: Hugging Face's own layout (`save_to_disk`), without a copy of what already is such a file."""

import hashlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..common.files import is_disk_full
from ..common.paths import resolve_below
from ..config import UserError
from ..data.linking import link_or_copy, whole_files
from ..job import read_json
from ..models import quiet
from .files import hash_files

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

SHARD_BYTES = 500 * 1024 * 1024
_SPLITS_FILE = "dataset_dict.json"
_STATE_FILE = "state.json"
_INFO_FILE = "dataset_info.json"


def write_dataset(dataset: "Dataset | DatasetDict", folder: Path) -> None:
    """Write a data set into `folder`; `datasets.load_from_disk` reads it too.

    Raises:
        UserError: a split has a transform, or something else that plain files cannot hold.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not isinstance(dataset, dict):
        _write_split(dataset, folder, "the data set")
        return
    (folder / _SPLITS_FILE).write_text(json.dumps({"splits": [str(name) for name in dataset]}), encoding="utf-8")
    for name, split in dataset.items():
        target = folder / _folder_name(str(name))
        target.mkdir()
        _write_split(split, target, f"split {str(name)!r}")


def read_dataset(folder: Path) -> "Dataset | DatasetDict":
    """Return the data set in `folder`, memory-mapped from there."""
    from datasets import DatasetDict

    _keep_caches_out_of(folder)
    with quiet("datasets"):
        if not (folder / _SPLITS_FILE).is_file():
            return _read_split(folder)
        names = read_json(folder / _SPLITS_FILE)["splits"]
        return DatasetDict({name: _read_split(folder / _folder_name(name)) for name in names})


def hash_dataset(folder: Path) -> str:
    """Return a hash of rows, features, format and splits; not of how the data set came to be."""
    parts = []
    for state_file in sorted(folder.rglob(_STATE_FILE)):
        state = json.loads(state_file.read_text(encoding="utf-8"))
        info = json.loads((state_file.parent / _INFO_FILE).read_text(encoding="utf-8"))
        del state["_fingerprint"]
        parts.append([state_file.parent.relative_to(folder).as_posix(), state, info["features"]])
    splits = folder / _SPLITS_FILE
    order = splits.read_text(encoding="utf-8") if splits.is_file() else ""
    about = hashlib.sha256(json.dumps([order, parts]).encode()).hexdigest()
    return hash_files(folder, sorted(folder.rglob("*.arrow")))[:40] + about[:24]


def _read_split(place: Path) -> "Dataset":
    """Do as `Dataset.load_from_disk`, which imports torch (seconds) for a data set in its format, used or not."""
    from datasets import Dataset, DatasetInfo, Split
    from datasets.table import MemoryMappedTable, concat_tables

    state = read_json(place / _STATE_FILE)
    info = DatasetInfo.from_dict(read_json(place / _INFO_FILE))
    files = [resolve_below(place, file["filename"]) for file in state["_data_files"]]
    table = concat_tables([MemoryMappedTable.from_file(str(file)) for file in files])
    split = None if state["_split"] is None else Split(state["_split"])
    dataset = Dataset(table, info, split, fingerprint=state["_fingerprint"])
    for name in ("_format_type", "_format_kwargs", "_format_columns", "_output_all_columns"):
        setattr(dataset, name, state[name])
    return dataset


def _write_split(dataset: "Dataset", folder: Path, label: str) -> None:
    if dataset.format["type"] == "custom":
        raise UserError(
            f"{label} has a transform (set_transform, with_transform), which cannot be stored: apply it with .map(), "
            "or call .reset_format() and set it where the data is used"
        )
    files = whole_files(dataset)
    try:
        with quiet("datasets"):
            if files is None:
                size = dataset.data.nbytes * len(dataset) / max(len(dataset.data), 1)
                shards = min(math.ceil(size / SHARD_BYTES), len(dataset))
                # Not left to `save_to_disk`, which writes no file at all for an empty table and then cannot load it.
                dataset.save_to_disk(str(folder), num_shards=max(shards, 1))
            else:
                # Everything but the rows, which are there already.
                dataset.select(range(0)).save_to_disk(str(folder), num_shards=1)
                _put_files(folder, files, dataset._fingerprint)
    except (TypeError, ValueError) as error:
        if is_disk_full(error):
            raise
        raise UserError(f"{label} cannot be stored: {error}") from error


def _put_files(folder: Path, files: list[Path], fingerprint: str) -> None:
    for placeholder in folder.glob("*.arrow"):
        placeholder.unlink()
    names = [f"data-{index:05d}-of-{len(files):05d}.arrow" for index in range(len(files))]
    for name, file in zip(names, files, strict=True):
        link_or_copy(file, folder / name)
    state = json.loads((folder / _STATE_FILE).read_text(encoding="utf-8"))
    state.update(_data_files=[{"filename": name} for name in names], _fingerprint=fingerprint)
    (folder / _STATE_FILE).write_text(json.dumps(state, indent=2, sort_keys=True), encoding="utf-8")


def _folder_name(split: str) -> str:
    return quote(split, safe=" ")


_stored: set[Path] = set()


def _keep_caches_out_of(folder: Path) -> None:
    """Let `.map()`, `.filter()`, `.shuffle()` of a stored data set put their cache files into a temporary folder.

    `datasets` puts them beside the first file of the data set that it starts from, and offers no setting but
    `disable_caching()`, which would change every other data set of the process too. Data sets that are derived from a
    stored one keep its files, hence a check by folder and not an attribute of one object.
    """
    from datasets import Dataset

    _stored.add(folder.absolute())
    original = Dataset._get_cache_file_path
    if getattr(original, "_skytune", False):
        return

    def _get_cache_file_path(self: Any, fingerprint: str) -> str:
        from datasets.fingerprint import get_temporary_cache_files_directory

        path = Path(original(self, fingerprint))
        if _stored.isdisjoint(path.parents):
            return str(path)
        return str(Path(get_temporary_cache_files_directory()) / path.name)

    _get_cache_file_path._skytune = True  # type: ignore[attr-defined]
    Dataset._get_cache_file_path = _get_cache_file_path
