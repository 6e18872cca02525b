"""A checkpoint for all processes of a run, where some machines do not see the store: a folder of another machine's.

Rank 0 reads it there and sends its files through the process group; one process of every such machine writes them down.
"""

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..common.paths import resolve_below
from ..config import UserError
from ..distributed.collectives import all_do, main_does
from . import manifest as manifests
from .manifest import step_name
from .store import Found, Store

if TYPE_CHECKING:
    from ..distributed.context import DistContext

CHUNK = 16 << 20
"""Bytes of one broadcast."""


def several_machines(world: "DistContext") -> bool:
    """Whether the processes run on more than one machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", world.size)) < world.size


def fetch(store: Store, step: int, folder: Path) -> Found:
    """Return one checkpoint with its files on this machine: where they lie, or in `folder` (a subfolder of its step).

    All processes of a machine may ask at once and for the same folder: the first one reads what is missing from the
    store, the others wait for it and then check the files for themselves.

    Raises:
        UserError: the checkpoint is not there, or not valid.
    """
    if store.backend.local("") is not None:
        return store.get(step)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)
        except OSError:
            pass  # a file system without locks: every process reads for itself, and files appear as a whole
        return store.get(step, into=folder, reuse=True)


def fetch_everywhere(
    world: "DistContext", store: Store, step: int, folder: Path, fetched: Found | None = None
) -> Found:
    """Return one checkpoint with its files on this machine, on every process (collective); see `fetch`.

    Args:
        fetched: what this process has fetched already.

    Raises:
        UserError: the checkpoint is not there, or not valid.
    """

    def have() -> Found:
        return fetched if fetched is not None else fetch(store, step, folder)

    if not several_machines(world) or store.backend.local("") is None:
        return all_do(world, have)
    on_main = main_does(world, lambda: _manifest(store, step))
    blind = _manifest(store, step) != on_main
    if not _any(world, blind):
        return all_do(world, have)
    return _sent(world, store, step, folder, blind, have)


def check_store_shared(world: "DistContext", store: Store, strategy: str) -> None:
    """Refuse a store that some machines do not see, for a strategy of which every process saves its part (collective).

    Raises:
        UserError: with the way out.
    """
    if not several_machines(world) or store.backend.local("") is None:
        return
    probe = f"{store.run_key}/.seen"
    word = main_does(world, lambda: _leave(store, probe))
    blind = _read(store, probe) != word
    anybody = _any(world, blind)
    if world.main:
        store.backend.delete(probe)
    if anybody:
        raise UserError(
            f"checkpoint.store={store.backend.url}: another machine does not see it, and with strategy={strategy} "
            "every process saves its part: give a folder that all machines share, or a URL (s3://bucket/folder)"
        )


def _sent(world: "DistContext", store: Store, step: int, folder: Path, blind: bool, have: Callable[[], Found]) -> Found:
    files: dict[str, Path] = {}

    def manifest_and_sizes() -> tuple[dict[str, int], str]:
        files.update(have().files)
        return {name: path.stat().st_size for name, path in files.items()}, _manifest(store, step)

    sizes, text = main_does(world, manifest_and_sizes)
    copy = Store.open(str(folder / "copy"), store.run_key)
    target = folder / "copy" / store.run_key / step_name(step)
    writes = blind and int(os.environ.get("LOCAL_RANK", "0")) == 0
    if writes:
        target.mkdir(parents=True, exist_ok=True)
    for name, size in sorted(sizes.items()):
        source = files[name].open("rb") if world.main else None
        place = resolve_below(target, name).open("wb") if writes else None
        try:
            for start in range(0, size, CHUNK):
                count = min(CHUNK, size - start)
                part = source.read(count) if source is not None else bytes(count)
                block = torch.frombuffer(bytearray(part), dtype=torch.uint8).to(world.device)
                torch.distributed.broadcast(block, 0)
                if place is not None:
                    place.write(block.cpu().numpy().tobytes())
        finally:
            for file in (source, place):
                if file is not None:
                    file.close()
    if writes:
        (target / manifests.NAME).write_text(text, encoding="utf-8")
    _any(world, False)  # all files are written
    return copy.get(step) if blind else have()


def _manifest(store: Store, step: int) -> str:
    return _read(store, f"{store.run_key}/{step_name(step)}/{manifests.NAME}")


def _read(store: Store, path: str) -> str:
    try:
        return store.backend.read(path).decode("utf-8", errors="replace")
    except OSError:
        return ""


def _leave(store: Store, path: str) -> str:
    word = json.dumps(os.urandom(16).hex())
    store.with_retry(lambda: store.backend.write(path, word.encode()), "writing")
    return word


def _any(world: "DistContext", wish: bool) -> bool:
    """Return whether any process has the wish (collective)."""
    total = torch.tensor(float(wish), device=world.device)
    torch.distributed.all_reduce(total)
    return bool(total.item())
