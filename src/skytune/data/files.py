"""Rows from files: tables of any usual kind, also compressed, by path, glob, saved folder or any fsspec URL."""

import bz2
import gzip
import hashlib
import io
import logging
import lzma
import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from ..common.json import load_json
from ..common.paths import check_name
from ..common.text import first_line
from ..config import DataConfig, UserError
from ..config.installing import add_extra
from ..config.secrets import resolve_secrets
from ..models.hashing import hash_file
from .columns import Columns, text_columns
from .formats import parse
from .images import ENDINGS, image_rows, is_image, root_of
from .rows import Rows, concatenate

log = logging.getLogger(__name__)

KINDS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".xlsx": "xlsx",
    ".xlsm": "xlsx",
}
"""File name endings (one of `PACKED` may follow) and how they are read."""

PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
"""Endings of compressed files; what they are is seen in their content."""

UNPACKERS: dict[bytes, tuple[str, Callable[[Any], Any]]] = {
    b"\x1f\x8b": ("gzip", gzip.open),
    b"BZh": ("bz2", bz2.open),
    b"\xfd7zXZ\0": ("xz", lzma.open),
    b"\x28\xb5\x2f\xfd": ("zstd", lambda file: pa.CompressedInputStream(file, "zstd")),
}
"""Compressed files by how they begin: what they are called, and what opens them."""

BROKEN = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    NotImplementedError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
)
"""What reading a compressed file raises that is not whole, or locked, or packed in a way that Python does not know."""

LAYERS = 3
"""How often a file may be packed, one way in another."""

HEAD = 1000
"""Lines that are enough to see what a file holds."""

BINARY = {b"PAR1": "parquet", b"ARROW1": "arrow"}
"""Kinds that are known by how they begin, whatever they are called."""

FOREIGN = {
    rb"\xd0\xcf\x11\xe0": "is an old Excel workbook (.xls): save it as .xlsx or .csv",
    rb"version https://git-lfs": "is a pointer of Git LFS, not the file: `git lfs pull` fetches it",
    rb"SQLite format 3": "is an SQLite database: export the table as .csv",
    rb"%PDF": "is a PDF, not a table",
    rb"\s*<(!doctype|html)": "is a web page, not a table: the address may be that of a page about the file",
    rb"\x80[\x02-\x05]": "is a pickle, which can run code: save the table as .parquet or .csv",
    rb"Rar!|7z\xbc\xaf": "is an archive that cannot be read: pack it as .zip, or unpack it",
}
"""What people give for tables, by how it begins, and the way out."""


def looks_like_file(spec: str) -> bool:
    """Return whether a split's name is rather a path: it ends like a file that can be read, or has a protocol."""
    return "://" in spec or _ending(spec) in KINDS or spec.lower().endswith(PACKED) or is_image(spec)


def find_files(spec: str, key: str) -> list[tuple[Any, str]]:
    """Return the (file system, path) pairs that a path, glob or URL means, sorted by path; of a folder that
    `Dataset.save_to_disk` left, its files, of another one on this disk the images in it.

    Raises:
        UserError: no such file, a glob that matches nothing, another folder, an unknown or unreachable file system.
    """
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(resolve_secrets(spec))
    except ImportError as error:
        extra = f": {add_extra('aws')}" if spec.startswith(("s3:", "s3a:")) else ""
        raise UserError(f"{key}={spec}: reading this needs another package ({error}){extra}") from error
    except UserError:
        raise
    except Exception as error:  # every file system has its own
        raise UserError(f"{key}={spec}: {first_line(error)}") from error
    try:
        if system.isfile(path):
            return [(system, path)]
        if any(mark in path for mark in "*?["):
            found = sorted(name for name in system.glob(path) if system.isfile(name))
            if not found:
                raise UserError(f"{key}={spec}: no file matches")
            return [(system, name) for name in found]
        if system.isdir(path):
            return _saved_files(system, path.rstrip("/"), f"{key}={spec.rstrip('/')}")
    except (UserError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise UserError(f"{key}={spec}: cannot look there: {first_line(error)}") from error
    raise UserError(f"{key}={spec}: no such file")


def read_files(spec: str, config: DataConfig, key: str, name: str, columns: Columns | None = None) -> tuple[Rows, int]:
    """Return the rows of a split that lies in files, and how many malformed rows were left out.

    Args:
        spec: path, glob or URL.
        config: how files are written, and what becomes of malformed rows.
        key: configuration key that `spec` came from, for messages.
        name: the split.
        columns: what is read; texts and a label if not given.

    Raises:
        UserError: a file that is missing, empty, broken, of an unknown kind or without the columns.
    """
    parts, skipped, files = [], 0, find_files(spec, key)
    if is_image(files[0][1]):
        paths = [path for _, path in files if is_image(path)]
        return image_rows(paths, spec, name, text_columns(config) if columns is None else columns), 0
    for system, path in files:
        rows, lost = _read(system, path, config, key, columns)
        skipped += lost
        parts.append(rows)
    return concatenate(parts, name), skipped


def read_head(spec: str, config: DataConfig, key: str, columns: Columns) -> Rows:
    """Return the first rows of the first file of a split; arguments and errors as those of `read_files`."""
    system, path = find_files(spec, key)[0]
    if is_image(path):
        return read_files(spec, config, key, "train", columns)[0]
    return _read(system, path, config, key, columns, head=True)[0]


def hash_files(spec: str, key: str) -> list[Any]:
    """Return `hash_content` of the files that a spec means; of images with the places that tell their classes."""
    files = find_files(spec, key)
    root = root_of(spec) if is_image(files[0][1]) else ""
    return [[*hash_content(*file), *([os.path.relpath(file[1], root)] if root else [])] for file in files]


def hash_content(system: Any, path: str) -> list[Any]:
    """Return the ending of one file (it decides how it is read) and a hash of its content, or its store's checksum.

    Raises:
        UserError: it cannot be read.
    """
    from fsspec.implementations.local import LocalFileSystem

    ending = path.rsplit("/", 1)[-1].split(".", 1)[-1]
    if isinstance(system, LocalFileSystem):
        return [ending, hash_file(path)]
    try:
        info = system.info(path)
        for name in ("ETag", "etag", "md5Hash", "content_md5", "sha256"):
            if info.get(name):
                return [ending, str(info[name]), info.get("size")]
        with system.open(path, "rb") as file:
            return [ending, hashlib.file_digest(file, "sha256").hexdigest()]
    except Exception as error:  # every file system has its own
        raise UserError(f"cannot read {path}: {error}") from error


def _saved_files(system: Any, folder: str, word: str) -> list[tuple[Any, str]]:
    """Return the files of a folder that `Dataset.save_to_disk` left.

    Args:
        word: the setting that names it, as it was typed.

    Raises:
        UserError: it is another folder; the message says what to give.
    """
    key = word.partition("=")[0]
    if system.isfile(f"{folder}/dataset_dict.json"):
        splits = load_json(system.cat_file(f"{folder}/dataset_dict.json"), dict).get("splits") or []
        own = key.removeprefix("data.")
        ways = [
            f"data.{name}={word[len(key) + 1 :]}/{name}" for name in ("train", "validation", "test") if name in splits
        ]
        ways = ways if own == "train" and ways else [f"{word}/{own if own in splits else splits[0]}"] if splits else []
        raise UserError(f"{word}: holds the splits {', '.join(map(str, splits))}; give {' '.join(ways)}")
    if system.isfile(f"{folder}/state.json"):
        state = load_json(system.cat_file(f"{folder}/state.json"), dict)
        files = [check_name(entry["filename"]) for entry in state["_data_files"]]
        if state.get("_indices_data_files"):
            raise UserError(f"{word}: was saved with an index by an old version of datasets: load it and save it again")
        return [(system, f"{folder}/{name}") for name in files]
    for below in ("", "**/"):
        found = [name for name in system.glob(f"{folder}/{below}*") if _ending(name) in KINDS and system.isfile(name)]
        endings = Counter(re.search(r"\.[^/]*$", name)[0] for name in found if "." in name.rsplit("/", 1)[-1])  # type: ignore[index]
        if endings:
            raise UserError(
                f"{word}: is a folder; give files in it, such as {word}/{below}*{endings.most_common(1)[0][0]}"
            )
    files = [name for name in sorted(system.find(folder)) if not name.rsplit("/", 1)[-1].startswith(".")]
    if images := [name for name in files if is_image(name)]:
        if others := Counter(_ending(name) for name in files if not is_image(name)):
            told = ", ".join(f"{count:,} {ending or 'without'}" for ending, count in others.most_common(3))
            log.info("data: %s: left out, as no images by their endings: %s", word, told)
        return [(system, name) for name in images]
    known = ", ".join((*KINDS, *ENDINGS))
    raise UserError(f"{word}: is a folder without a table in it, and without images (known endings: {known})")


def _read(
    system: Any, path: str, config: DataConfig, key: str, columns: Columns | None, head: bool = False
) -> tuple[Rows, int]:
    try:
        with system.open(path, "rb") as file:
            data = file.read()
    except Exception as error:  # every file system has its own
        raise UserError(f"{key}: cannot read {path}: {first_line(error)}") from error
    data, name = unpack(data, path, lambda: f"{key}=zip://%s::{system.unstrip_protocol(path)}")
    if not data.strip():
        raise UserError(f"{path}: the file is empty")
    kind = config.format.value if config.format else kind_of(data, name, key)
    return parse(_first_lines(data, kind) if head else data, kind, path, config, columns)


def _first_lines(data: bytes, kind: str) -> bytes:
    """Return the beginning of a file that can be cut anywhere between its lines; others whole."""
    end = -1
    for _ in range(HEAD):
        end = data.find(b"\n", end + 1)
        if end < 0:
            return data
    lines = data[: end + 1]
    return (
        lines
        if kind in ("csv", "tsv", "jsonl") and not (kind == "csv" and b'"' in lines) and b"\0" not in lines
        else data
    )


def unpack(data: bytes, path: str, inside: Callable[[], str], layers: int = LAYERS) -> tuple[bytes, str]:
    """Return what a compressed file holds (anything else as it is), and the name that tells its kind.

    Args:
        data: its content; how it begins tells how it was compressed, not its name.
        path: its name.
        inside: gives how one file of an archive is named on the command line, with `%s` for it.
        layers: how often one may lie in another; there are archives that hold themselves.

    Raises:
        UserError: it is damaged, packed too often, or an archive of several tables.
    """
    if layers < 0:
        raise UserError(f"{path}: is packed more than {LAYERS} times over: unpack it")
    for start, (kind, opener) in UNPACKERS.items():
        if data.startswith(start):
            try:
                name = path.removesuffix(next(filter(path.endswith, PACKED), ""))
                return unpack(opener(io.BytesIO(data)).read(), name, inside, layers - 1)
            except BROKEN as error:
                raise UserError(f"{path}: is not a whole {kind} file ({first_line(error)})") from error
    if not data.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return data, path.removesuffix(next(filter(path.lower().endswith, PACKED), ""))
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = [name for name in archive.namelist() if not re.search(r"(^|/)(\.|__MACOSX/)|/$", name)]
            if "[Content_Types].xml" in names:
                return data, f"{path}.xlsx"
            if "mimetype" in names:
                raise UserError(f"{path}: is an OpenDocument spreadsheet: save it as .xlsx or .csv")
            tables = [name for name in names if _ending(name) in KINDS] or names
            if len(tables) == 1:
                return unpack(archive.read(tables[0]), tables[0], inside, layers - 1)
    except BROKEN as error:
        raise UserError(f"{path}: is not a whole zip file ({first_line(error)})") from error
    if not tables:
        raise UserError(f"{path}: the archive is empty")
    shown = ", ".join(tables[:10]) + (", ..." if tables[10:] else "")
    raise UserError(f"{path}: holds {len(tables)} files ({shown}); name one: {inside() % tables[0]}")


def kind_of(data: bytes, path: str, key: str) -> str:
    """Return what kind of table a file is, by how it begins or what it is called.

    Raises:
        UserError: it is none, or nothing tells.
    """
    for start, kind in BINARY.items():
        if data.startswith(start):
            return kind
    for pattern, what in FOREIGN.items():
        if re.match(pattern, data, re.IGNORECASE):
            raise UserError(f"{path}: {what}")
    ending = _ending(path)
    if ending in KINDS:
        return KINDS[ending]
    start = data.lstrip()[:1]
    line = data.lstrip().partition(b"\n")[0]
    likely = {b"{": "jsonl", b"[": "json"}.get(start, "tsv" if b"\t" in line else "csv")
    hint = "" if b"\0" in data[:1000] else f"; data.format={likely} says what it is"
    known = f"{', '.join(KINDS)} (also {', '.join(PACKED)})"
    raise UserError(f"{key}: cannot tell what kind of file {path} is; known endings: {known}{hint}")


def _ending(path: str) -> str:
    name = path.rsplit("/", 1)[-1].lower()
    name = name.removesuffix(next(filter(name.endswith, PACKED), ""))
    return f".{name.rsplit('.', 1)[1]}" if "." in name else ""
