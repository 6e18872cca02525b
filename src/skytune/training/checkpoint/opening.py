"""From a store's URL to its backend, and to the runs that lie there."""

from pathlib import Path
from typing import Any

from ...config import UserError
from .backends import Backend, MemoryBackend, S3Backend
from .local import LocalBackend
from .manifest import parse_step
from .retry import explain


def open_backend(url: str, options: dict[str, Any] | None = None) -> Backend:
    """Return the backend of a store's URL: a path, `file://`, `memory://`, `s3://` or `hf://`.

    Args:
        options: further arguments of the fsspec file system (`endpoint_url`, `anon`, ...).

    Raises:
        UserError: no such kind of store, or its package is missing.
    """
    import fsspec

    kind, separator, rest = url.partition("://")
    if not separator or kind == "file":
        return LocalBackend(url, Path(rest if separator else url).expanduser().absolute())
    if kind == "hf":
        from .hub import HubBackend

        return HubBackend.open(url)
    if kind == "memory":
        return MemoryBackend(url, fsspec.filesystem("memory"), f"/{rest.strip('/')}")
    if kind == "s3":
        if not rest.strip("/"):
            raise UserError(f"checkpoint.store={url}: names no bucket; write s3://bucket/folder")
        extra = dict(options or {})
        config = {"retries": {"mode": "standard", "total_max_attempts": 3}, **extra.pop("config_kwargs", {})}
        try:
            system = fsspec.filesystem(
                "s3",
                skip_instance_cache=True,  # settings of ours, not those of who came first
                use_listings_cache=False,  # other machines write too
                config_kwargs=config,
                **extra,
            )
        except ImportError as error:
            raise UserError(
                f'checkpoint.store={url}: needs another package ({error}): pip install "skytune[aws]"'
            ) from error
        system.retries = 1  # ours are bounded by a deadline
        return S3Backend(url, system, rest.strip("/"))
    raise UserError(f"checkpoint.store={url}: a path, file://, s3://, hf:// or memory:// is meant")


def runs(url: str, *, options: dict[str, Any] | None = None) -> list[str]:
    """Return the keys of all runs that have a checkpoint in a store (to continue one without knowing its key).

    Raises:
        UserError: the store cannot be read.
    """
    backend = open_backend(url, options)
    try:
        keys = [name for name, size in backend.names("").items() if size is None and not name.startswith(".")]
        found = []
        for key in keys:
            if any(parse_step(name) is not None for name in backend.names(key)):
                found.append(key)
        return sorted(found)
    except Exception as error:
        raise explain(error, url, "listing runs") from error
