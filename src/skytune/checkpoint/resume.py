"""Where a run goes on from: which checkpoint of which store, or the start; said in one line before anything is read."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.mappings import flatten
from ..common.text import shorten
from ..config import UserError
from .backends.urls import open_backend
from .manifest import FINISHED, RUN_FILE, Manifest, parse_step, step_name
from .retry import explain
from .store import Found, Store

log = logging.getLogger(__name__)

Chosen = tuple[str, str, int]
"""URL of a store, run key, step."""


@dataclass(frozen=True)
class Place:
    """Where a run lies."""

    store: str
    """URL of the store."""

    run_key: str
    """Name of the run in it."""

    step: int | None
    """Step of the checkpoint that was meant; None for the newest."""


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


def choose(store: Store, wanted: str, decisive: Mapping[str, Any], cache: Path) -> Chosen | None:
    """Return where to go on from, None to start; announce it, and what was passed over.

    Args:
        store: the run's own.
        wanted: the config's `resume`: `auto`, `required`, `never`, a step, or a path or URL.
        decisive: what decides this run's result; a checkpoint from elsewhere must have the same.
        cache: a folder that takes what must be fetched from a store.

    Raises:
        UserError: `must` and there is none; none that is there is whole; it does not fit.
    """
    if wanted == "never" or (wanted == "auto" and is_finished(store)):
        _start_anew(store)
        return None
    found: Found | None
    if wanted.isdecimal():
        found = store.get(int(wanted), into=cache)
    elif wanted in ("auto", "required"):
        found = store.newest(into=cache)
    else:
        place = locate(wanted)
        store, step = Store.open(place.store, place.run_key, retry=store.retry), place.step
        found = store.newest(into=cache) if step is None else store.get(step, into=cache)
        if found is None:
            raise UserError(f"resume={wanted}: holds no checkpoint")
        check_identity(found.manifest, decisive, wanted)
    if found is None:
        if wanted == "required":
            raise UserError(f"resume=required: {store.location} holds no checkpoint (resume=auto starts the run)")
        return None
    for line in found.skipped:
        log.warning("checkpoint passed over: %s", line)
    step = found.manifest.step
    log.info("resuming from step %d (%s/%s)", step, store.location, step_name(step))
    return store.backend.url, store.run_key, step


def is_finished(store: Store) -> bool:
    """Return whether the run came to its end."""
    names = store.with_retry(lambda: store.backend.names(store.run_key), "looking for a finished run")
    return FINISHED in names


def mark_finished(store: Store) -> None:
    """Write down that the run came to its end."""
    store.with_retry(lambda: store.backend.write(f"{store.run_key}/{FINISHED}", b"{}"), f"writing {FINISHED}")


def _start_anew(store: Store) -> None:
    store.with_retry(lambda: store.backend.delete(f"{store.run_key}/{FINISHED}"), f"deleting {FINISHED}")
    store.clear()


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """Return what differs between two nested dicts, one `a.b: X there, Y here` a value, in the order of the keys."""
    own, other = flatten(json.loads(json.dumps(here))), flatten(there)
    return [
        f"{key}: {_shown(other, key)} there, {_shown(own, key)} here"
        for key in sorted(own.keys() | other.keys())
        if key not in own or key not in other or own[key] != other[key]
    ]


def check_identity(manifest: Manifest, decisive: Mapping[str, Any], where: str) -> None:
    """Refuse to continue from a checkpoint that was trained otherwise.

    Raises:
        UserError: with what differs.
    """
    found = differences(decisive, manifest.decisive)
    if found:
        more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
        raise UserError(f"resume={where}: is of another run, {manifest.run_key}: {'; '.join(found[:3])}{more}")


def _shown(values: Mapping[str, Any], key: str) -> str:
    return shorten(json.dumps(values[key], ensure_ascii=False), 40) if key in values else "nothing"
