"""Files that are on this disk already: found behind a data set, and linked instead of copied."""

import filecmp
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.files import is_disk_full

if TYPE_CHECKING:
    from datasets import Dataset

LINK_FROM = 64 * 1024
"""Bytes from which a file is hard-linked. Smaller ones are copied: editing a JSON file must not change two."""


def whole_files(dataset: "Dataset") -> list[Path] | None:
    """Return the files on disk that together are exactly this data set, in order; None where there are none."""
    import pyarrow as pa
    from datasets import Features
    from datasets.features.features import require_storage_embed
    from datasets.table import ConcatenationTable, MemoryMappedTable

    if dataset._indices is not None or any(map(require_storage_embed, dataset.features.values())):
        return None  # a selection, or images and the like that may still lie in files of their own
    table = dataset.data
    # Blocks beside each other are columns of different files.
    rows = table.blocks if isinstance(table, ConcatenationTable) else [[table]]
    if any(len(row) != 1 or not isinstance(row[0], MemoryMappedTable) or _is_changed(row[0]) for row in rows):
        return None
    files = [Path(row[0].path) for row in rows]
    for file in files:
        if not file.is_file() or file.suffix != ".arrow":
            return None
        with pa.memory_map(str(file)) as source:
            if Features.from_arrow_schema(pa.ipc.open_stream(source).schema) != dataset.features:
                return None
    return files


def _is_changed(table: Any) -> bool:
    """Tell whether a memory-mapped table differs from its file in more than the notes on features in its schema."""
    return any(name != "replace_schema_metadata" for name, *_ in table.replays)


def share(path: Path, earlier: Iterable[Path]) -> Path:
    """Make a file of `LINK_FROM` bytes or more one with the first of `earlier` that holds the same, where there is one.

    Returns:
        That one; `path` itself, which also stays as it is where it lies on another disk, where there is none.
    """
    size = path.stat().st_size
    for other in earlier if size >= LINK_FROM else ():
        if other.is_file() and other.stat().st_size == size and filecmp.cmp(path, other, shallow=False):
            with suppress(OSError):  # another disk
                temporary = path.with_name(f".{path.name}.link")
                os.link(other, temporary)
                temporary.replace(path)
            return other
    return path


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a file of `LINK_FROM` bytes or more, else copy it; what a symbolic link points to, never the link."""
    source = source.resolve(strict=True)
    if source.stat().st_size >= LINK_FROM:
        try:
            os.link(source, target)
            return
        except OSError as error:  # another disk, or a file system without links
            if is_disk_full(error):
                raise
    shutil.copyfile(source, target)
