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
