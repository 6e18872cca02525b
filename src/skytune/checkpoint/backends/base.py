"""Where files of a store really lie: memory, S3 or a folder here, the Hub in `hub`; no retries, no checks.

A path is relative to the store, with `/`. Every method may raise what its library raises; `Store` tries again and
explains.
"""

import errno
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from ...common.files import replacing
from ...common.paths import resolve_below
from ...common.processes import alive, machine
from .. import manifest as manifests

BLOCK = 8 * 2**20
"""Bytes read at once."""


class Backend:
    """Files of an object store: no renaming, so that a manifest alone decides whether a checkpoint exists."""

    heartbeat_seconds = 15.0
    """How often a lease is renewed here."""

    shared = True
    """Whether several processes can write one checkpoint together."""

    largest_file: int | None = None
    """Bytes that one file may have; None where there is no limit that a model comes near to."""

    def __init__(self, url: str, system: Any, root: str) -> None:
        self.url, self.system, self.root = url, system, root.rstrip("/")

    def path(self, path: str) -> str:
        """Return the file system's own path."""
        return f"{self.root}/{path}".rstrip("/")

    def names(self, folder: str) -> dict[str, int | None]:
        """Return what lies directly in a folder: bytes by name, None for a folder; empty where there is no folder."""
        try:
            found = self.system.ls(self.path(folder), detail=True)
        except FileNotFoundError:
            return {}
        items = {entry["name"].rstrip("/").rsplit("/", 1)[-1]: entry for entry in found}
        items.pop("", None)
        return {name: None if entry["type"] == "directory" else int(entry["size"]) for name, entry in items.items()}

    def read(self, path: str) -> bytes:
        """Return a small file. FileNotFoundError where there is none."""
        data: bytes = self.system.cat_file(self.path(path))
        return data

    def blocks(self, path: str) -> Iterator[bytes]:
        """Yield a file's content, block by block. FileNotFoundError where there is none."""
        with self.system.open(self.path(path), "rb", block_size=BLOCK) as file:
            while block := file.read(BLOCK):
                yield block

    def local(self, path: str) -> Path | None:
        """Return where the file lies on this machine, None where it must be fetched."""
        return None

    def write(self, path: str, data: bytes) -> None:
        """Write a small file as a whole: a reader sees the old content or the new one."""
        self.system.pipe_file(self.path(path), data)

    def write_all(self, files: Mapping[str, bytes]) -> None:
        """Write small files in their order: who sees the last one sees all."""
        for path, data in files.items():
            self.write(path, data)

    def delete(self, path: str) -> None:
        """Delete a file; none there is fine."""
        try:
            self.system.rm_file(self.path(path))
        except FileNotFoundError:
            pass

    def remove(self, folder: str) -> None:
        """Delete a checkpoint so that half of it never looks valid: its manifest first."""
        self.delete(f"{folder}/{manifests.NAME}")
        try:
            self.system.rm(self.path(folder), recursive=True)
        except FileNotFoundError:
            pass

    def leftovers(self, folder: str) -> list[str]:
        """Return temporary things that a process which died left in the folder."""
        return [f"{folder}/{name}" for name in self.names(folder) if name.startswith(".probe-")]

    def discard(self, path: str) -> None:
        """Delete one of the leftovers."""
        self.delete(path)

    def workspace(self, folder: str, token: str) -> Path:
        """Begin a checkpoint: return a folder on this machine in which its files are made."""
        prefix = f"skytune-checkpoint-{hashlib.sha256(machine().encode()).hexdigest()[:8]}-"
        for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            pid = left.name.removeprefix(prefix).partition("-")[0]
            # Anybody may make a folder there. A process that does not run was killed while it wrote.
            with suppress(FileNotFoundError):  # another process does the same
                if re.fullmatch("[1-9][0-9]{0,8}", pid) and left.lstat().st_uid == os.getuid() and not alive(int(pid)):
                    shutil.rmtree(left, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-"))

    def unfinish(self, folder: str) -> None:
        """Take the checkpoint's manifest away, because its files are about to change."""
        self.delete(f"{folder}/{manifests.NAME}")

    def put(self, folder: str, name: str, path: Path) -> None:
        """Take a file of the workspace into the checkpoint."""
        self.system.put_file(str(path), self.path(f"{folder}/{name}"))
        path.unlink()

    def commit(self, folder: str, workspace: Path, data: bytes, completed: bytes) -> None:
        """Finish a checkpoint with its manifest, and then remember in the run's folder that it was completed."""
        self.write(f"{folder}/{manifests.NAME}", data)
        self.write(f"{folder.rpartition('/')[0]}/{manifests.COMPLETED}", completed)

    def probe(self, path: str) -> None:
        """Try whether a small file can be written, read and deleted."""
        data = b"skytune can write here\n"
        self.write(path, data)
        if self.read(path) != data:
            raise OSError("what was written there cannot be read back")
        self.delete(path)

    def read_version(self, path: str) -> tuple[bytes | None, Any]:
        """Return a small file (None where there is none) and a mark of its version for `swap`."""
        try:
            data = self.read(path)
        except FileNotFoundError:
            return None, None
        return data, data

    def swap(self, path: str, data: bytes, version: Any) -> bool:
        """Write a small file unless it changed since `version`; return whether it was written."""
        raise NotImplementedError


class MemoryBackend(Backend):
    """Memory of this process, for tests."""

    _lock = threading.Lock()

    def swap(self, path: str, data: bytes, version: Any) -> bool:
        with self._lock:
            if self.read_version(path)[1] != version:
                return False
            self.write(path, data)
            return True


class S3Backend(Backend):
    """A bucket, through s3fs; conditional writes (`If-None-Match`, `If-Match`) make leases atomic."""

    def read_version(self, path: str) -> tuple[bytes | None, Any]:
        from fsspec.asyn import sync

        bucket, key, _ = self.system.split_path(self.path(path))
        try:
            # One request for both, which cannot be of two versions; and the answer to a GET says why it is refused.
            answer = self.system.call_s3("get_object", Bucket=bucket, Key=key)
        except FileNotFoundError:
            return None, None
        return sync(self.system.loop, answer["Body"].read), answer["ETag"]

    def swap(self, path: str, data: bytes, version: Any) -> bool:
        condition = {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}
        try:
            self.system.pipe_file(self.path(path), data, **condition)
        except FileExistsError:
            return False
        except OSError as error:
            code = getattr(error.__cause__, "response", {}).get("Error", {}).get("Code")
            if code in ("PreconditionFailed", "412", "NoSuchKey"):
                return False
            raise
        return True


class LocalBackend(Backend):
    """A folder: a checkpoint is made under a temporary name and renamed, so that it appears as a whole."""

    def __init__(self, url: str, root: Path) -> None:
        super().__init__(url, None, str(root))

    def at(self, path: str) -> Path:
        """Return the path on this machine."""
        return Path(self.root, path)

    def names(self, folder: str) -> dict[str, int | None]:
        sizes: dict[str, int | None] = {}
        try:
            found = list(os.scandir(self.at(folder)))
        except FileNotFoundError:
            return sizes
        for entry in found:
            with suppress(FileNotFoundError):  # one that another process took away meanwhile takes no other with it
                sizes[entry.name] = entry.stat().st_size if entry.is_file() else None
        return sizes

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
        with replacing(target, uuid.uuid4().hex[:8]) as part:
            write_durably(part, data)
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
        if workspace.exists():
            write_durably(workspace / manifests.NAME, data)
            flush_folder(workspace)
            if target.exists():
                self.remove(folder)
            workspace.rename(target)
            flush_folder(target.parent)
        elif self.read(f"{folder}/{manifests.NAME}") != data:  # not a try before this one that came through
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(workspace))
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
                try:  # a file system without hard links
                    write_durably(target, data, "xb")
                except FileExistsError:
                    return False
            finally:
                temporary.unlink(missing_ok=True)
            return True


def write_durably(path: Path, data: bytes, mode: Literal["wb", "xb"] = "wb") -> None:
    """Write a file and wait until the disk has it; FileExistsError with mode `xb` where there is one."""
    with path.open(mode) as file:
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


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
