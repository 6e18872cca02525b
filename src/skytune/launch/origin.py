"""Where a run was asked for: the command, the machine, and the commit of this checkout."""

import json
import os
import shlex
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import skytune

from ..config.scrubbing import scrub

VARIABLE = "SKYTUNE_ORIGIN"
"""Tells the processes that a command starts."""


def origin() -> dict[str, Any]:
    """Return `command`, `host`, `time` (UTC, ISO 8601) and, where the package lies in a git checkout, `git_commit` and
    `git_dirty` (whether a file that git does not ignore differs), of the command that this process is part of."""
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = json.dumps(_collect())
    found: dict[str, Any] = json.loads(os.environ[VARIABLE])
    return found


def begin() -> None:
    """Forget what a command that started this one has said."""
    os.environ.pop(VARIABLE, None)


def _collect() -> dict[str, Any]:
    root = str(Path(skytune.__file__).resolve().parents[2])
    found = {
        "command": scrub(shlex.join(["python", *sys.argv])),
        "host": socket.gethostname(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if _git(root, "rev-parse", "--show-toplevel") == root and (commit := _git(root, "rev-parse", "HEAD")):
        return found | {"git_commit": commit, "git_dirty": bool(_git(root, "status", "--porcelain"))}
    return found  # installed, or below a repository of somebody else


def _git(folder: str, *words: str) -> str:
    """Return what git says; empty where there is no git, no repository, or no answer in time."""
    try:
        done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
