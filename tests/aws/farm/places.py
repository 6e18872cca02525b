"""Where the stand-in keeps what it makes: one cache folder outside the checkout, and one folder for each farm in it."""

import os
import sys
import time
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skytune-farm"

FARMS = CACHE / "farms"
"""One folder for each farm that runs, or ran and was not tidied away."""


def log(text: str) -> None:
    """Say something to the person who waits: standard error, with the time."""
    print(f"{time.strftime('%H:%M:%S')} farm: {text}", file=sys.stderr, flush=True)
