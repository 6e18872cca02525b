"""Which backend a store's URL asks for."""

from pathlib import Path
from typing import Any

from ...config import UserError
from .base import Backend, LocalBackend, MemoryBackend, S3Backend


def open_backend(url: str, options: dict[str, Any] | None = None, patience: float = 60.0) -> Backend:
    """Return the backend of a store's URL: a path, `file://`, `memory://`, `s3://` or `hf://`.

    Args:
        options: further arguments of the fsspec file system (`endpoint_url`, `anon`, ...).
        patience: seconds after which a server that does not answer counts as away.

    Raises:
        UserError: no such kind of store, or its package is missing.
    """
    import fsspec

    kind, separator, rest = url.partition("://")
    if not separator or kind == "file":
        return LocalBackend(url, Path(rest if separator else url).expanduser().absolute())
    if kind == "hf":
        from .hub import HubBackend

        return HubBackend.open(url, patience)
    if kind == "memory":
        return MemoryBackend(url, fsspec.filesystem("memory"), f"/{rest.strip('/')}")
    if kind == "s3":
        if not rest.strip("/"):
            raise UserError(f"checkpoint.store={url}: names no bucket; write s3://bucket/folder")
        from .s3 import file_system

        return S3Backend(url, file_system(url, options, patience), rest.strip("/"))
    raise UserError(f"checkpoint.store={url}: a path, file://, s3://, hf:// or memory:// is meant")
