"""Files of this machine: their hash, and disks that are full."""

import errno
import hashlib
from pathlib import Path

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_disk_full(error: BaseException | None) -> bool:
    """Tell whether an error means that a disk or a quota is full, in Python's, Arrow's or safetensors' words."""
    while error is not None:
        if getattr(error, "errno", None) in _FULL or any(
            text in str(error) for text in ("No space left on device", "Disk quota exceeded", "os error 28")
        ):
            return True
        error = error.__cause__ or error.__context__
    return False
