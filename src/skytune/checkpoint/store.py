"""A run's checkpoints in a store: list, write, find the newest valid one, delete old ones. Tries again what passes by
itself.

<store>/<run key>/step-00001200/model.safetensors ... manifest.json
<store>/<run key>/completed.json    the last completed step: a run that lost everything never starts at 0 in silence
<store>/<run key>/lease.json        who may write (see `lease`)
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from ..common.files import replacing, sha256
from ..common.json import load_json
from ..common.paths import UnsafeNameError
from ..config import UserError
from . import manifest as manifests
from .backends.base import Backend, LocalBackend
from .backends.urls import open_backend
from .manifest import COMPLETED, Choice, FileEntry, Manifest, Verdict, step_name
from .retry import Retry, explain, missing_bucket

T = TypeVar("T")

Source = bytes | Callable[[Path], None]
"""Content of a file: bytes, or a function that writes it at a path on this machine."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A valid checkpoint."""

    manifest: Manifest
    location: str
    """Its URL, for people."""

    skipped: tuple[str, ...] = ()
    """Newer ones that are not valid, one line each with the reason."""

    files: dict[str, Path]
    """Its files on this machine, by name; empty when `newest` was given no folder and the store is not a local one."""


class Store:
    """The checkpoints of one run."""

    def __init__(self, backend: Backend, run_key: str, retry: Retry | None = None) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._=+-]*", run_key):
            raise UserError(f"'{run_key}' cannot be a run key: letters, digits and . _ - = + are allowed")
        self.backend, self.run_key, self.retry = backend, run_key, retry or Retry()
        self.broken: set[int] = set()
        """Steps whose checkpoints were found damaged."""
        self.guard: Callable[[bool], None] = lambda look: None
        """Called before every change of a checkpoint, with True before the one that completes it; raises where this
        process may not write any more."""

    @classmethod
    def open(
        cls, url: str, run_key: str, *, retry: Retry | None = None, options: dict[str, Any] | None = None
    ) -> "Store":
        """Return the store of a run; nothing is asked of it yet.

        Args:
            url, options: see `open_backend`.

        Raises:
            UserError: no such kind of store, or a package is missing.
        """
        patience = min(60.0, max(5.0, retry.deadline_seconds)) if retry else 60.0  # one that is slow is not away
        return cls(open_backend(url, options, patience), run_key, retry)

    @property
    def location(self) -> str:
        """Return the run's URL, for people."""
        return f"{self.backend.url.rstrip('/')}/{self.run_key}"

    def read(self, path: str) -> bytes | None:
        """Return a small file of the store; None where there is none.

        Raises:
            UserError: the store cannot be read.
        """
        try:
            return self.with_retry(lambda: self.backend.read(path), f"reading {path.rpartition('/')[2]}")
        except FileNotFoundError:
            return None

    def with_retry(self, function: Callable[[], T], what: str) -> T:
        """Return `function()`, tried again while the store fails in ways that pass.

        Raises:
            UserError: with the store's name and the reason.
        """
        try:
            return self.retry.call(function, self.location, what)
        except FileNotFoundError as error:
            if missing_bucket(error):
                raise explain(error, self.location, what) from error
            raise  # a missing file is an answer
        except Exception as error:
            raise explain(error, self.location, what) from error

    def steps(self) -> list[int]:
        """Return the steps of all checkpoint folders, valid or not, in numeric order."""
        names = self.with_retry(lambda: self.backend.names(self.run_key), "listing checkpoints")
        found = {manifests.parse_step(name) for name, size in names.items() if size is None}
        return sorted(step for step in found if step is not None)

    def check(self, step: int, *, content: bool = True, into: Path | None = None, reuse: bool = False) -> Verdict:
        """Look at one checkpoint.

        Args:
            content: read every file and compare its hash; False compares sizes alone.
            into: a folder that takes the files on the way, where they do not lie on this machine; with `reuse`, those
                that lie in it already, whole, are not read from the store.
        """
        folder = self._folder(step)
        sizes = self.with_retry(lambda: self.backend.names(folder), f"listing {step_name(step)}")
        if manifests.NAME not in sizes:
            # Where checkpoints appear by one rename, a folder without a manifest has lost it.
            unfinished = not isinstance(self.backend, LocalBackend)
            reason = "its save was not finished" if unfinished else f"{manifests.NAME} is missing"
            return Verdict(problems=(reason,), unfinished=unfinished)
        try:
            data = self.with_retry(
                lambda: self.backend.read(f"{folder}/{manifests.NAME}"), f"reading {step_name(step)}"
            )
            manifest = manifests.parse(data, run_key=self.run_key, step=step)
            for name in manifest.files:
                self.backend.local(f"{folder}/{name}")
        except FileNotFoundError:
            return Verdict(problems=(f"{manifests.NAME} is missing",), unfinished=True)
        except (manifests.ManifestError, UnsafeNameError) as error:
            return Verdict(problems=(str(error),))

        def digest(name: str) -> FileEntry:
            path = f"{folder}/{name}"
            target = None if into is None or self.backend.local(path) else into / name
            if reuse and target and target.is_file() and (entry := hash_file(target)) == manifest.files[name]:
                return entry
            return self.with_retry(lambda: hash_blocks(self.backend.blocks(path), target), f"reading {path}")

        problems = manifests.verify(manifest, sizes.get, digest if content else None)
        if problems:
            self.broken.add(step)
        elif content:
            self.broken.discard(step)
        return Verdict(manifest=manifest, problems=tuple(problems))

    def newest(self, *, content: bool = True, into: Path | None = None, before: int | None = None) -> Found | None:
        """Return the newest valid checkpoint, None where none was ever completed.

        Args:
            content: compare hashes too, which reads every file once.
            into: where files go that must be fetched from the store, in a folder of their step.
            before: look only at checkpoints of earlier steps.

        Raises:
            UserError: checkpoints are there and none is valid, or the store cannot be read.
        """
        steps = [step for step in self.steps() if before is None or step < before]
        choice = manifests.choose(
            steps,
            lambda step: self.check(step, content=content, into=self._target(into, step)),
            where=self.location,
            completed=self.completed() if before is None else None,
        )
        return None if choice is None else self._found(choice, into)

    def get(self, step: int, *, content: bool = True, into: Path | None = None, reuse: bool = False) -> Found:
        """Return one checkpoint; see `check` for the arguments.

        Raises:
            UserError: it is not there or not valid, with every problem.
        """
        verdict = self.check(step, content=content, into=self._target(into, step), reuse=reuse)
        if verdict.manifest is None or verdict.problems:
            there = ", ".join(map(str, self.steps())) or "none"
            raise UserError(
                f"{self.location}/{step_name(step)}: {'; '.join(verdict.problems)} (steps in the store: {there})"
            )
        return self._found(Choice(manifest=verdict.manifest), into)

    def completed(self) -> int | None:
        """Return the step that was completed last, None where none ever was."""
        data = self.read(f"{self.run_key}/{COMPLETED}")
        try:
            return None if data is None else int(load_json(data, dict)["step"])
        except (ValueError, KeyError, TypeError):
            return 0  # damaged: something was completed

    def stage(self, step: int, token: str | None = None, main: bool = True) -> "Stage":
        """Begin a checkpoint; processes that write it together, where the store can, give the same `token`.

        Args:
            main: whether this process finishes it and clears up.
        """
        return Stage(self, step, token, main)

    def write(self, step: int, files: Mapping[str, Source], **about: Any) -> Manifest:
        """Write a checkpoint: files first, then the manifest with what `build` takes. One of the same step is replaced.

        Raises:
            UserError: it could not be written; what was there before is intact.
        """
        with self.stage(step) as stage:
            entries = {name: stage.put(name, source) for name, source in files.items()}
            return stage.commit(entries, **about)

    def delete(self, step: int) -> None:
        """Delete one checkpoint; half of it never looks valid."""
        self.guard(False)
        self.with_retry(lambda: self.backend.remove(self._folder(step)), f"deleting {step_name(step)}")

    def clear(self) -> None:
        """Delete all checkpoints of the run, so that it starts at step 0."""
        self.with_retry(lambda: self.backend.delete(f"{self.run_key}/{COMPLETED}"), f"deleting {COMPLETED}")
        for step in self.steps():
            self.delete(step)
        self.sweep()

    def sweep(self) -> list[str]:
        """Delete what saves that were cut short left behind; only who holds the lease may. Returns the names."""
        found = self.with_retry(lambda: self.backend.leftovers(self.run_key), "looking for leftovers")
        for path in found:
            self.with_retry(lambda path=path: self.backend.discard(path), "deleting leftovers")  # type: ignore[misc]
        for step in self.steps():
            if self.check(step, content=False).unfinished:
                self.delete(step)
                found.append(f"{self.run_key}/{step_name(step)}")
        return [path.rsplit("/", 1)[-1] for path in found]

    def check_writable(self) -> None:
        """Write, read and delete a small object: what would fail at the first save fails now.

        Raises:
            UserError: it cannot be written, with the store's name and the reason.
        """
        path = f"{self.run_key}/.probe-{uuid.uuid4().hex[:8]}"
        try:
            self.with_retry(lambda: self.backend.probe(path), "writing a probe")
        except FileNotFoundError as error:
            raise explain(error, self.location, "writing a probe") from error

    def _folder(self, step: int) -> str:
        return f"{self.run_key}/{step_name(step)}"

    def _target(self, into: Path | None, step: int) -> Path | None:
        return None if into is None else into / step_name(step)

    def _found(self, choice: Choice, into: Path | None) -> Found:
        step, files = choice.manifest.step, {}
        for name in choice.manifest.files:
            path = self.backend.local(f"{self._folder(step)}/{name}")
            if path is None and into is not None:
                path = into / step_name(step) / name
            if path is not None:
                files[name] = path
        where = f"{self.location}/{step_name(step)}"
        return Found(manifest=choice.manifest, location=where, skipped=choice.skipped, files=files)


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
        self.workspace = store.with_retry(
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
            store.with_retry(lambda: store.backend.unfinish(self.folder), what)
        store.with_retry(lambda: store.backend.put(self.folder, name, path), what)
        return entry

    def commit(self, files: Mapping[str, FileEntry], **about: Any) -> Manifest:
        """Finish with the manifest of all files (those of other processes too), with what `build` takes."""
        store, backend = self.store, self.store.backend
        manifest = manifests.build(store.run_key, self.step, files, created=time.time(), **about)
        data, done = manifests.serialise(manifest), json.dumps({"step": self.step}).encode()
        what = f"finishing {step_name(self.step)}"
        store.guard(True)
        if manifest.files == self.there:
            store.with_retry(lambda: backend.write(f"{self.folder}/{manifests.NAME}", data), what)
        else:
            store.with_retry(lambda: backend.commit(self.folder, self.workspace, data, done), what)
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
    with contextlib.ExitStack() as stack:
        file = None
        if target is not None:
            file = stack.enter_context(stack.enter_context(replacing(target, uuid.uuid4().hex)).open("wb"))
        for block in blocks:
            size += len(block)
            sha.update(block)
            if file is not None:
                file.write(block)
    return FileEntry(size=size, sha256=sha.hexdigest())


def rotate(store: Store, keep: int, *, newest: int | None = None, best: Sequence[int] = ()) -> list[int]:
    """Delete old checkpoints beyond the `keep` newest complete ones; return their steps.

    Never deleted: the best one that is complete, `newest`, and anything of a later step (another machine's, or of a
    time line that this run went back from).

    Args:
        keep: at least 1.
        newest: step of the one that is known to be valid, normally the one just written; found by reading where it is
            not given.
        best: steps from the best metric on: the save of the very best one may have failed.
    """
    assert keep >= 1, keep
    if newest is None:
        found = store.newest()
        if found is None:
            return []
        newest = found.manifest.step
    kept, deleted, steps = 1, [], store.steps()
    complete = cache(lambda step: step not in store.broken and not store.check(step, content=False).problems)
    wanted = next((step for step in best if step == newest or (step in steps and complete(step))), None)
    for step in reversed([step for step in steps if step < newest]):
        if kept < keep and complete(step):
            kept += 1
        elif step != wanted:  # a broken one goes too: a newer one is valid
            store.delete(step)
            deleted.append(step)
    return sorted(deleted)
