"""Files of this machine: their hash, writing them as a whole, and disks that are full."""

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def replacing(path: Path, token: str = "part", *, flush: bool = False) -> Iterator[Path]:
    """Give a path to write to, which then takes the place of `path` in one rename: nobody sees half a file, and whoever
    is killed, or has a full disk, leaves the one before.

    Args:
        token: of its name; one of its own for each writer where several may write at once.
        flush: wait until the disk has it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{token}")
    try:
        yield part
        if flush:
            with part.open("rb") as file:
                os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def replacing_folder(final: Path) -> Iterator[Path]:
    """Give an empty folder to fill, which then takes the place of `final`; where that fails, nothing of it is left."""
    final.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=final.parent, prefix=f".{final.name}."))
    try:
        yield part
        part.chmod(0o755)
        if final.exists():
            shutil.rmtree(final)
        part.replace(final)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def is_disk_full(error: BaseException | None) -> bool:
    """Tell whether an error means that a disk or a quota is full, in Python's, Arrow's or safetensors' words."""
    while error is not None:
        if getattr(error, "errno", None) in _FULL or any(
            text in str(error) for text in ("No space left on device", "Disk quota exceeded", "os error 28")
        ):
            return True
        error = error.__cause__ or error.__context__
    return False
