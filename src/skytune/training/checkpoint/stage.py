"""A checkpoint while it is written: files one by one, each hashed, then the manifest."""

import hashlib
import json
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...common.files import sha256
from ...config import UserError
from . import manifest as manifests
from .manifest import FileEntry, Manifest, step_name
from .retry import explain

if TYPE_CHECKING:
    from .store import Store

Source = bytes | Callable[[Path], None]
"""Content of a file: bytes, or a function that writes it at a path on this machine."""


class Stage:
    """A checkpoint while it is written; as a context it cleans up after itself, whatever happened.

    Where the same step lies there already, whole and with the same files (a save on a signal right after a resume),
    only its manifest is replaced: a process that dies meanwhile loses nothing. Before every change the store's `guard`
    is asked: a process that was frozen while another one took the run over must not mix its files into the other's.
    """

    def __init__(self, store: "Store", step: int, token: str | None = None, main: bool = True) -> None:
        if token is not None and not store.backend.shared:
            raise UserError(
                f"{store.location}: one commit is one process's, so {step_name(step)} cannot be written by several "
                "processes together; use another checkpoint.store (a folder or s3://)"
            )
        self.store, self.step, self.main = store, step, main
        self.folder = f"{store.run_key}/{step_name(step)}"
        there = store.check(step, content=False)
        whole = there.manifest is not None and not there.problems and step not in store.broken
        self.there = there.manifest.files if there.manifest is not None and whole else {}
        self.changed = False
        name = token or f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.workspace = store.attempt(
            lambda: store.backend.workspace(self.folder, name), f"beginning {step_name(step)}"
        )

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, *exc: object) -> None:
        if self.main:  # the folder of several processes is that of the one which finishes
            shutil.rmtree(self.workspace, ignore_errors=True)

    def put(self, name: str, source: Source) -> FileEntry:
        """Write one file and return its size and hash."""
        store, path = self.store, self.workspace / name
        what = f"writing {step_name(self.step)}/{name}"
        try:
            if isinstance(source, bytes):
                path.write_bytes(source)
            else:
                source(path)
            entry = hash_file(path)
        except Exception as error:
            way = "" if store.backend.local(self.folder) else f" (on its way, in {self.workspace.parent})"
            raise explain(error, f"{store.location}{way}", what) from error
        if self.there.get(name) == entry:
            return entry
        store.guard(False)
        if not self.changed:
            self.changed = True
            store.attempt(lambda: store.backend.unfinish(self.folder), what)
        store.attempt(lambda: store.backend.put(self.folder, name, path), what)
        return entry

    def commit(
        self,
        files: Mapping[str, FileEntry],
        *,
        state: Mapping[str, Any] | None = None,
        decisive: Mapping[str, Any] | None = None,
        world_size: int = 1,
    ) -> Manifest:
        """Finish with the manifest of all files (those of other processes too)."""
        store, backend = self.store, self.store.backend
        manifest = manifests.build(
            store.run_key, self.step, files, created=time.time(), world_size=world_size, state=state, decisive=decisive
        )
        data, done = manifests.serialise(manifest), json.dumps({"step": self.step}).encode()
        what = f"finishing {step_name(self.step)}"
        store.guard(True)
        if manifest.files == self.there:
            store.attempt(lambda: backend.write(f"{self.folder}/{manifests.NAME}", data), what)
        else:
            store.attempt(lambda: backend.commit(self.folder, self.workspace, data, done), what)
        store.broken.discard(self.step)
        return manifest


def hash_file(path: Path) -> FileEntry:
    """Return size and SHA-256 of a file on this machine."""
    return FileEntry(size=path.stat().st_size, sha256=sha256(path))


def hash_blocks(blocks: Iterable[bytes], target: Path | None = None) -> FileEntry:
    """Return size and SHA-256 of what comes in blocks, and write it to `target` on the way.

    The file appears as a whole: another process of this machine may be reading the one that it replaces.
    """
    size, sha = 0, hashlib.sha256()
    if target is None:
        for block in blocks:
            size += len(block)
            sha.update(block)
        return FileEntry(size=size, sha256=sha.hexdigest())
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}-", delete=False) as file:
        try:
            for block in blocks:
                size += len(block)
                sha.update(block)
                file.write(block)
            file.flush()
            os.replace(file.name, target)
        except BaseException:
            os.unlink(file.name)
            raise
    return FileEntry(size=size, sha256=sha.hexdigest())
