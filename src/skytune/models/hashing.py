"""Fingerprints of files and values, by content: a copied file is the same, an edited one is not."""

import ast
import contextlib
import hashlib
import inspect
import json
import os
from pathlib import Path
from typing import Any

from ..common.files import replacing, sha256
from ..config import ConfigError, UserError, to_dict
from ..config.folders import home
from ..config.help import is_text
from ..config.targets import locate

REMEMBER_ABOVE = 32 * 1024 * 1024
"""Bytes above which a file's hash is remembered between runs (hashing takes about a second a gigabyte)."""


def hash_file(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a local file's content, in hex.

    The hash of a big file is remembered under its path, size, inode, modification and change time; the last one
    is set by the kernel, so that an edit which restores the modification time is still seen.

    Raises:
        UserError: the file cannot be read.
    """
    path = Path(path).absolute()
    try:
        status = path.stat()
        if status.st_size < REMEMBER_ABOVE:
            return sha256(path)
        identity = [str(path), status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]
        note = home() / "hashes" / f"{hash_values(str(path))[:32]}.json"
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            known = json.loads(note.read_text(encoding="utf-8"))
            if known["file"] == identity:
                return str(known["sha256"])
        digest = sha256(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    with contextlib.suppress(OSError):  # a read-only home only means hashing again next time
        with replacing(note, str(os.getpid())) as part:
            part.write_text(json.dumps({"file": identity, "sha256": digest}), encoding="utf-8")
    return digest


def hash_values(*values: Any) -> str:
    """Return the SHA-256, in hex, of values that JSON can hold (dictionaries in any order)."""
    text = json.dumps(to_dict(list(values)), sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def hash_target(target: str, args: dict[str, Any], key: str) -> str:
    """Return the hash of something given by `_target_`: the code of its module and its arguments.

    Raises:
        ConfigError: there is nothing at that import path; the message starts with `key`.
    """
    found = locate(target, key)
    if not callable(found):
        raise ConfigError(f"{key}={target}: is not callable")
    try:
        file = inspect.getsourcefile(inspect.unwrap(found))
    except TypeError:  # something built in, or an instance: its own class has the source
        module = inspect.getmodule(type(found))
        file = getattr(module, "__file__", None)
    code = ""
    if file and os.path.isfile(file):
        code = hash_values(ast.dump(parse(Path(file)))) if file.endswith(".py") else hash_file(file)
    return hash_values("target", target, args, code)


def parse(path: Path) -> ast.Module:
    """Return what a Python file means: its syntax tree without docstrings. Comments and layout are not in it.

    Raises:
        UserError: the file cannot be read, or holds no Python.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    for node in ast.walk(tree):
        for block in ("body", "orelse", "finalbody"):
            if isinstance(statements := getattr(node, block, None), list):
                setattr(node, block, [statement for statement in statements if not is_text(statement)])
    return tree
