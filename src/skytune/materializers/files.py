"""Artifacts that are folders of plain files: to and from an artifact store, whole or not at all, never a pickle."""

import atexit
import hashlib
import json
import os
import shutil
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from zenml.enums import VisualizationType
from zenml.materializers.base_materializer import BaseMaterializer
from zenml.utils import io_utils

from ..common.files import is_disk_full, sha256
from ..common.paths import resolve_below
from ..config import UserError
from ..job import read_json
from .types import dotted_name

CLASS_FILE = "class.json"
PREVIEW_FILE = "preview.html"

_CHUNK = 8 * 1024 * 1024
_HASH_UP_TO = 1024**3
_PICKLE_SUFFIXES = {".pkl", ".pickle", ".bin", ".pt", ".pth", ".ckpt", ".joblib", ".dill"}


class FolderMaterializer(BaseMaterializer):
    """A materializer whose artifact is a folder; subclasses write and read a folder on this disk.

    With a local artifact store that folder is the artifact's own: nothing is copied. With a remote one it is a
    temporary folder, removed after an upload; one that was downloaded stays until the step ends (loaded data may be
    memory-mapped), or until the process ends where no step runs.
    """

    SKIP_REGISTRATION: ClassVar[bool] = True
    HASHED: ClassVar[bool] = False
    """Whether a hash of the content is recorded: steps that read an equal artifact then stay cached."""

    _content_hash: str | None = None
    _bytes: int | None = None

    def write(self, folder: Path, data: Any) -> None:
        """Write `data` into an empty folder."""
        raise NotImplementedError

    def read(self, folder: Path, data_type: type) -> Any:
        """Read what `write` wrote."""
        raise NotImplementedError

    def content_hash(self, folder: Path) -> str:
        """Return a hash that is equal for equal content."""
        return hash_files(folder, files_under(folder))

    def save(self, data: Any) -> None:
        """Store `data`; whatever goes wrong, no half of it stays.

        Raises:
            UserError: the disk is full, or the data cannot be stored as plain files.
        """
        place = Path(self.uri)
        try:
            if io_utils.is_remote(self.uri):
                with self.get_temporary_directory(delete_at_exit=True) as temporary:
                    place = Path(temporary)
                    self._write(place, data)
                    upload(place, self.uri, self.artifact_store)
            else:
                place.mkdir(parents=True, exist_ok=True)
                self._write(place, data)
        except BaseException as error:
            self._discard()
            if is_disk_full(error):
                raise UserError(
                    f"no space left on the disk of {place} while storing an artifact: free some, or put the "
                    "store (ZENML_LOCAL_STORES_PATH) or temporary files (TMPDIR) on another disk"
                ) from error
            raise

    def write_preview(self, page: str) -> dict[str, VisualizationType]:
        """Write what the dashboard shows beside the artifact's files."""
        uri = f"{self.uri.rstrip('/')}/{PREVIEW_FILE}"
        try:
            with self.artifact_store.open(uri, "w") as file:
                file.write(page)
        except BaseException:
            # ZenML goes on without a preview then; half of one must not stay.
            if self.artifact_store.exists(uri):
                self.artifact_store.remove(uri)
            raise
        return {uri: VisualizationType.HTML}

    def _write(self, folder: Path, data: Any) -> None:
        self.write(folder, data)
        check_no_pickles(folder)
        self._bytes = sum(path.stat().st_size for path in files_under(folder))
        if self.HASHED and self._bytes <= _HASH_UP_TO:
            self._content_hash = self.content_hash(folder)

    def load(self, data_type: type) -> Any:
        """Load the artifact; see `fetch`."""
        return self.read(self.fetch(), data_type)

    def compute_content_hash(self, data: Any) -> str | None:
        """Return the hash that `save` computed, None for large artifacts."""
        return self._content_hash

    def fetch(self) -> Path:
        """Return a folder on this disk that holds the artifact's files, see the class.

        Raises:
            UserError: they are gone, or are not those that were stored (where a hash was recorded).
        """
        folder = self._fetch()
        if self.HASHED and self.expected_content_hash and self._hash_or_why(folder) != self.expected_content_hash:
            raise UserError(f"the artifact's files at {self.uri} are damaged: run again with cache=false")
        return folder

    def _hash_or_why(self, folder: Path) -> str:
        try:
            return self.content_hash(folder)
        except (OSError, ValueError, LookupError, TypeError) as error:  # not even its JSON can be read
            return str(error)

    def _fetch(self) -> Path:
        if not self.artifact_store.exists(self.uri):
            raise UserError(f"the artifact's files at {self.uri} are gone: run again with cache=false")
        if not io_utils.is_remote(self.uri):
            return Path(self.uri)
        with self.get_temporary_directory(delete_at_exit=False) as temporary:
            if not _in_step():
                atexit.register(shutil.rmtree, temporary, ignore_errors=True)
            download(self.uri, Path(temporary), self.artifact_store)
            return Path(temporary)

    def _discard(self) -> None:
        """Remove the artifact's folder, and those of the step's other outputs: none of them will be registered."""
        uris = [self.uri]
        with suppress(RuntimeError):
            from zenml import get_step_context

            outputs = [output.artifact_uri for output in get_step_context()._outputs.values()]
            uris = outputs if self.uri in outputs else uris
        for uri in uris:
            with suppress(Exception):
                if self.artifact_store.exists(uri):
                    self.artifact_store.rmtree(uri)


def _in_step() -> bool:
    from zenml import get_step_context

    try:
        get_step_context()
    except RuntimeError:
        return False
    return True


def files_under(folder: Path) -> list[Path]:
    """Return the artifact's own files, sorted; the preview is none of them."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != PREVIEW_FILE)


def hash_files(folder: Path, files: list[Path]) -> str:
    """Return the SHA-256 over names (relative to `folder`) and bytes."""
    total = hashlib.sha256()
    for path in files:
        total.update(f"{path.relative_to(folder).as_posix()}\0{sha256(path)}\n".encode())
    return total.hexdigest()


def upload(folder: Path, uri: str, store: Any) -> None:
    """Copy the files under `folder` to an artifact store."""
    for path in files_under(folder):
        target = f"{uri.rstrip('/')}/{path.relative_to(folder).as_posix()}"
        store.makedirs(os.path.dirname(target))
        with path.open("rb") as source, store.open(target, "wb") as sink:
            shutil.copyfileobj(source, sink, _CHUNK)


def download(uri: str, folder: Path, store: Any) -> None:
    """Copy an artifact's files from an artifact store into `folder`."""
    for name in map(os.fspath, store.listdir(uri)):
        name = name.rstrip("/").rpartition("/")[2]
        source, target = f"{uri.rstrip('/')}/{name}", resolve_below(folder, name)
        if store.isdir(source):
            target.mkdir(exist_ok=True)
            download(source, target, store)
        elif name != PREVIEW_FILE:
            with store.open(source, "rb") as file, target.open("wb") as sink:
                shutil.copyfileobj(file, sink, _CHUNK)


def check_no_pickles(folder: Path) -> None:
    """Check that no file under `folder` is a pickle or of a kind that holds pickles.

    Raises:
        UserError: one is; the message names it.
    """
    for path in files_under(folder):
        if path.suffix in _PICKLE_SUFFIXES or is_pickle(path):
            raise UserError(f"{path.name} is a pickle, which an artifact must not hold: save weights as safetensors")


def is_pickle(path: Path) -> bool:
    """Tell whether a file begins and ends like a pickle (protocol 2 to 5)."""
    with path.open("rb") as file:
        start = file.read(2)
        # A safetensors file begins with a length and may do so with the same two bytes; it does not end in a full stop.
        if len(start) < 2 or start[0] != 0x80 or not 2 <= start[1] <= 5 or path.suffix == ".safetensors":
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"."


def write_class(folder: Path, data: Any, **more: Any) -> None:
    """Write down of which class `data` is, and what else is to be known without it."""
    (folder / CLASS_FILE).write_text(json.dumps({"class": dotted_name(type(data)), **more}), encoding="utf-8")


def read_class(folder: Path, base: type) -> Any:
    """Return the class that `write_class` wrote down.

    Raises:
        UserError: it is of a module that nobody has imported, is not there, or is no `base`.
    """
    name = str(read_json(folder / CLASS_FILE)["class"])
    module, _, attribute = name.rpartition(".")
    if module.split(".")[0] not in ("transformers", "tokenizers") and module not in sys.modules:
        raise UserError(f"the artifact at {folder} needs the class {name}: import {module} first (plugins=[{module}])")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"the artifact at {folder} needs the class {name}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise UserError(f"the artifact at {folder} names the class {name}, which is no {base.__name__}")
    return found
