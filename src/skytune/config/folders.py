"""The one folder under which everything that a run leaves is kept; nothing is written into the checkout."""

import contextlib
import os
from pathlib import Path


def home() -> Path:
    """Return `SKYTUNE_HOME`, else `~/.cache/skytune`."""
    return Path(os.environ.get("SKYTUNE_HOME") or "~/.cache/skytune").expanduser()


def load_dotenv(folder: Path) -> None:
    """Take variables from `.env` in a checkout; those that are set already stay."""
    with contextlib.suppress(ImportError):  # what is missing is told by what needs it
        from dotenv import load_dotenv

        load_dotenv(folder / ".env")


def keep_compiled() -> None:
    """Keep compiled code between runs, below SKYTUNE_HOME: torch's own place is below /tmp, and importing its compiler
    sets the variable for all processes that are started later. Where it cannot be written, or the environment names
    another place, that one is used."""
    there = next(folder for folder in (home().absolute(), *home().absolute().parents) if os.access(folder, os.F_OK))
    if there.is_dir() and os.access(there, os.W_OK):  # it is made when there is something to keep
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(home() / "compiled" / "inductor"))
        os.environ.setdefault("TRITON_CACHE_DIR", str(home() / "compiled" / "triton"))
