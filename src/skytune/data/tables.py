"""A split on disk as a worker reads it: Arrow stream files in a folder, linked where they already lie on this disk."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import UserError
from .linking import link_or_copy, whole_files

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa


def write_split(dataset: "datasets.Dataset", folder: Path) -> None:
    """Lay a data set's rows into `folder` as `data-00000.arrow`, ...

    Files that hold exactly these rows and columns already are linked (a copy where the disk cannot link); a filtered,
    sorted or sliced data set is written once. Nothing half-written stays behind.
    """
    import pyarrow as pa

    shutil.rmtree(folder, ignore_errors=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        files = whole_files(dataset)
        if files is not None:
            for number, file in enumerate(files):
                link_or_copy(file, temporary / f"data-{number:05d}.arrow")
        else:
            plain = dataset.with_format("arrow")
            schema = plain.features.arrow_schema
            with pa.OSFile(str(temporary / "data-00000.arrow"), "wb") as sink, pa.ipc.new_stream(sink, schema) as out:
                for start in range(0, len(plain), 10_000):
                    out.write_table(plain[start : start + 10_000].cast(schema))
        os.rename(temporary, folder)
    except OSError as error:
        raise UserError(f"cannot write the split '{folder.name}' to {folder.parent}: {error.strerror}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_split(folder: Path) -> "pa.Table":
    """Return all rows of a folder that `write_split` made, memory-mapped.

    Raises:
        UserError: no file there, or a damaged one.
    """
    import pyarrow as pa

    files = sorted(folder.glob("data-*.arrow"))
    if not files:
        raise UserError(f"{folder} holds no rows: its data-*.arrow files are missing")
    try:
        return pa.concat_tables([pa.ipc.open_stream(pa.memory_map(str(file))).read_all() for file in files])
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{folder} holds a damaged Arrow file: {' '.join(str(error).split())}") from error


def label_names(feature: Any) -> list[str]:
    """Return the names that the feature of `labels` carries: of classes, or the fields of a struct; none for others."""
    if isinstance(feature, dict):
        return list(feature)
    return [str(name) for name in getattr(getattr(feature, "feature", feature), "names", None) or []]


def content_hash(table: "pa.Table") -> str:
    """Return a hash of the rows by column name: equal for equal content, however it is cut into chunks or files."""
    digest = hashlib.sha256()
    for name in table.column_names:
        column = table.column(name)
        digest.update(f"{name}:{column.type}:{len(column)}".encode())
        _feed(digest, column.chunks, column.type)
    return digest.hexdigest()


def _feed(digest: Any, chunks: list[Any], kind: Any) -> None:
    """Feed a column's values, nested ones in depth; lengths before values, so that chunk borders leave no trace."""
    import pyarrow as pa

    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        for chunk in chunks:
            digest.update(chunk.value_lengths().to_numpy(zero_copy_only=False).astype("int64").data)
        _feed(digest, [chunk.flatten() for chunk in chunks], kind.value_type)
    elif pa.types.is_large_binary(kind):  # images: no Python object for each
        for chunk in chunks:
            for value in chunk:
                digest.update(len(value.as_buffer()).to_bytes(8, "little"))
                digest.update(value.as_buffer())
    elif (pa.types.is_integer(kind) or pa.types.is_floating(kind)) and not any(chunk.null_count for chunk in chunks):
        for chunk in chunks:
            digest.update(chunk.to_numpy().data)
    else:
        for chunk in chunks:
            for value in chunk.to_pylist():
                digest.update(json.dumps(value, default=repr).encode())
