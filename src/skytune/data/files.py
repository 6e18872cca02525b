"""Rows from files: csv, tsv, jsonl and parquet, also gzipped, by path, glob or any fsspec URL."""

import gzip
import hashlib
import zlib
from typing import Any

from ..config import DataConfig, UserError
from ..config.installing import add_extra
from ..config.secrets import reveal
from ..models.hashing import hash_file
from ..models.source import first_line
from .formats import parse
from .rows import Rows, concatenate

KINDS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}
"""File name endings (`.gz` may follow all but parquet) and how they are read."""


def looks_like_file(spec: str) -> bool:
    """Return whether a split's name is rather a path: it ends like a file that can be read, or has a protocol."""
    return "://" in spec or _ending(spec) in KINDS


def find_files(spec: str, key: str) -> list[tuple[Any, str]]:
    """Return the (file system, path) pairs that a path, glob or URL means, sorted by path.

    Raises:
        UserError: no such file, a glob that matches nothing, a folder, an unknown or unreachable file system.
    """
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(reveal(spec))
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
            raise UserError(f"{key}={spec}: is a folder; give files in it, such as {spec.rstrip('/')}/*.csv")
    except (UserError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise UserError(f"{key}={spec}: cannot look there: {first_line(error)}") from error
    raise UserError(f"{key}={spec}: no such file")


def read_files(spec: str, config: DataConfig, key: str, name: str) -> tuple[Rows, int]:
    """Return the rows of a split that lies in files, and how many malformed rows were left out.

    Args:
        spec: path, glob or URL.
        config: which columns hold text and label.
        key: configuration key that `spec` came from, for messages.
        name: the split.

    Raises:
        UserError: a file that is missing, empty, broken, of an unknown kind or without the columns.
    """
    parts, skipped = [], 0
    for system, path in find_files(spec, key):
        rows, lost = _read(system, path, config, key)
        skipped += lost
        parts.append(rows)
    return concatenate(parts, name), skipped


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


def _read(system: Any, path: str, config: DataConfig, key: str) -> tuple[Rows, int]:
    ending = _ending(path)
    if ending not in KINDS:
        raise UserError(f"{key}: cannot tell what kind of file {path} is; known endings: {', '.join(KINDS)} (also .gz)")
    try:
        with system.open(path, "rb") as file:
            data = file.read()
        if path.endswith(".gz"):
            data = gzip.decompress(data)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: is not a whole gzip file ({error})") from error
    except Exception as error:  # every file system has its own
        raise UserError(f"{key}: cannot read {path}: {first_line(error)}") from error
    if not data.strip():
        raise UserError(f"{path}: the file is empty")
    return parse(data, KINDS[ending], path, config)


def _ending(path: str) -> str:
    name = path.rsplit("/", 1)[-1].lower().removesuffix(".gz")
    return f".{name.rsplit('.', 1)[1]}" if "." in name else ""
