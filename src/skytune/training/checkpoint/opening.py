"""From a store's URL to its backend, and to the runs that lie there."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config import UserError
from .backends import Backend, LocalBackend, MemoryBackend, S3Backend
from .manifest import parse_step
from .retry import explain

RUN_FILE = "run.json"
"""Object beside a run's checkpoints that says what the run is made of (see `recipe`)."""


@dataclass(frozen=True)
class Place:
    """Where a run lies."""

    store: str
    """URL of the store."""

    run_key: str
    """Name of the run in it."""

    step: int | None
    """Step of the checkpoint that was meant; None for the newest."""


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


def runs(url: str, *, options: dict[str, Any] | None = None) -> list[str]:
    """Return the keys of all runs in a store that can be continued: those with a checkpoint, or with their recipe.

    Raises:
        UserError: the store cannot be read.
    """
    backend = open_backend(url, options)
    try:
        keys = [name for name, size in backend.names("").items() if size is None and not name.startswith(".")]
        return sorted(key for key in keys if _is_run(backend.names(key)))
    except Exception as error:
        raise explain(error, url, "listing runs") from error


def locate(place: str) -> Place:
    """Return what a path or URL means: a checkpoint, a run, or a store that holds one run.

    Raises:
        UserError: a store that holds several runs, or none; one that cannot be read.
    """
    rest, step = place.rstrip("/"), None
    parent, _, last = rest.rpartition("/")
    if (step := parse_step(last)) is not None:
        store, _, key = parent.rpartition("/")
        return Place(store, key, step)
    backend = open_backend(rest)
    try:
        names = backend.names("")
    except Exception as error:
        raise explain(error, rest, "looking for a run") from error
    if _is_run(names):
        return Place(parent, last, None)
    inside = runs(rest)
    if len(inside) != 1:
        named = ", ".join(inside[:5]) + (", ..." if len(inside) > 5 else "")
        way_out = f"; name one of them (resume={rest}/{inside[0]})" if inside else ""
        raise UserError(f"resume={place}: holds {len(inside)} runs ({named or 'none'}){way_out}")
    return Place(rest, inside[0], None)


def _is_run(names: dict[str, int | None]) -> bool:
    """Whether a folder with these things in it is a run's."""
    return RUN_FILE in names or any(parse_step(name) is not None for name in names)
