"""Names that others wrote (in a bucket, a share, a manifest) as paths below a folder, or not at all."""

import os
import re
from pathlib import Path

from .text import shorten

_LONGEST_PART = 255  # bytes: what the usual file systems take
_LONGEST = 1024  # bytes: what an S3 key takes


class UnsafeNameError(ValueError):
    """A name that others wrote does not lead to a place below the folder that it belongs in."""


def check_name(name: object) -> str:
    """Return a name that others wrote, if its text alone can only lead below the folder or prefix it is joined to.

    For names that are joined to a URL. Where they become files on this disk, `resolve_below` looks at links too.

    Raises:
        UnsafeNameError: It is no text, empty, too long, absolute, has `.` or `..` or nothing between two slashes, a
            backslash, a drive letter, or a character that does not print.
    """
    if not isinstance(name, str):
        raise UnsafeNameError(f"not the name of a file: {shorten(ascii(name))}")
    parts = name.split("/")
    if (
        any(part in ("", ".", "..") for part in parts)
        or "\\" in name
        or re.match(r"[A-Za-z]:", name)
        or not name.isprintable()  # NUL, line breaks, lone surrogates
        or len(name.encode()) > _LONGEST
        or any(len(part.encode()) > _LONGEST_PART for part in parts)
    ):
        raise UnsafeNameError(f"a name that is not trusted as a path: {shorten(ascii(name))}")
    return name


def resolve_below(folder: str | os.PathLike[str], name: object) -> Path:
    """Return the path of a foreign name below `folder`; it need not exist.

    Raises:
        UnsafeNameError: The name is refused by `check_name`, or a symbolic link on the way leads out of the folder.
    """
    path = Path(folder) / check_name(name)
    try:
        inside = path.resolve().is_relative_to(Path(folder).resolve())
    except (OSError, RuntimeError):  # links in a circle
        inside = False
    if not inside:
        raise UnsafeNameError(f"a name that leads out of {folder}: {shorten(ascii(name))}")
    return path
