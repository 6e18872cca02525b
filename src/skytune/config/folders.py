"""The one folder under which everything that a run leaves is kept; nothing is written into the checkout."""

import os
from pathlib import Path


def home() -> Path:
    """Return `SKYTUNE_HOME`, else `~/.cache/skytune`."""
    return Path(os.environ.get("SKYTUNE_HOME") or "~/.cache/skytune").expanduser()
