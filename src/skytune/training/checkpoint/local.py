"""A store in a folder of this machine (or one that it mounts): checkpoints appear by a rename, leases by a link."""

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...common.paths import resolve_below
from . import manifest as manifests
from .backends import BLOCK, Backend


class LocalBackend(Backend):
    """A folder: a checkpoint is made under a temporary name and renamed, so that it appears as a whole."""

    def __init__(self, url: str, root: Path) -> None:
        super().__init__(url, None, str(root))

    def at(self, path: str) -> Path:
        """Return the path on this machine."""
        return Path(self.root, path)

    def names(self, folder: str) -> dict[str, int | None]:
        try:
            with os.scandir(self.at(folder)) as found:
                return {entry.name: entry.stat().st_size if entry.is_file() else None for entry in found}
        except FileNotFoundError:
            return {}

    def read(self, path: str) -> bytes:
        return self.at(path).read_bytes()

    def blocks(self, path: str) -> Iterator[bytes]:
        with self.at(path).open("rb") as file:
            while block := file.read(BLOCK):
                yield block

    def local(self, path: str) -> Path | None:
        return resolve_below(self.root, path) if path else Path(self.root)

    def write(self, path: str, data: bytes) -> None:
        target = self.at(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
        try:
            write_durably(temporary, data)
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        flush_folder(target.parent)

    def delete(self, path: str) -> None:
        self.at(path).unlink(missing_ok=True)

    def remove(self, folder: str) -> None:
        """Take the folder out of sight in one rename, then delete it."""
        path = self.at(folder)
        trash = path.with_name(f".trash-{path.name}-{uuid.uuid4().hex[:8]}")
        try:
            path.rename(trash)
        except FileNotFoundError:
            return
        shutil.rmtree(trash, ignore_errors=True)

    def leftovers(self, folder: str) -> list[str]:
        ours = (".step-", ".trash-", ".probe-", f".{manifests.COMPLETED}.")
        return [f"{folder}/{name}" for name in self.names(folder) if name.startswith(ours)]

    def discard(self, path: str) -> None:
        if self.at(path).is_dir():
            shutil.rmtree(self.at(path), ignore_errors=True)
        else:
            self.delete(path)

    def workspace(self, folder: str, token: str) -> Path:
        path = self.at(folder)
        temporary = path.with_name(f".{path.name}-{token}")
        temporary.mkdir(parents=True, exist_ok=True)
        return temporary

    def unfinish(self, folder: str) -> None:
        """Nothing: the new folder takes the old one's place as a whole."""

    def put(self, folder: str, name: str, path: Path) -> None:
        with path.open("rb") as file:
            os.fsync(file.fileno())

    def commit(self, folder: str, workspace: Path, data: bytes, completed: bytes) -> None:
        target = self.at(folder)
        if workspace.exists():  # otherwise a try before this one came through
            write_durably(workspace / manifests.NAME, data)
            flush_folder(workspace)
            if target.exists():
                self.remove(folder)
            workspace.rename(target)
            flush_folder(target.parent)
        self.write(f"{folder.rpartition('/')[0]}/{manifests.COMPLETED}", completed)

    def swap(self, path: str, data: bytes, version: Any) -> bool:
        """Create with an exclusive hard link; replace under a lock on a file beside it."""
        target = self.at(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_name(f".{target.name}.lock")):
            if version is not None:
                if self.read_version(path)[1] != version:
                    return False
                self.write(path, data)
                return True
            temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
            try:
                write_durably(temporary, data)
                os.link(temporary, target)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
                    raise
                return _create(target, data)  # a file system without hard links
            finally:
                temporary.unlink(missing_ok=True)
            return True


def write_durably(path: Path, data: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def flush_folder(path: Path) -> None:
    """Wait until the disk knows a folder's entries, where the file system can say so."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(handle)


def _create(path: Path, data: bytes) -> bool:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl

    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
