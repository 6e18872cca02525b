"""Rank 0's log as log records of this process, so that whoever keeps a step's log (ZenML) keeps the training lines too.

What the workers print goes to the screen as raw bytes, for the sake of the live bar; a screen's frames are no log.
"""

import logging
import re
from pathlib import Path

records = logging.getLogger("skytune.workers")
"""Lines of rank 0's log. They are on the screen already, so they do not travel to other handlers from here."""
records.propagate = False
records.setLevel(logging.INFO)


STAMP = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ ")
"""Time and level at the beginning of a line; whoever keeps the record has them of their own."""


class Follower:
    """Reads what was appended to a log file since the last look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read_bytes = path.stat().st_size if path.is_file() else 0

    def look(self) -> None:
        """Hand on the whole lines that are new."""
        if not records.handlers or not self.path.is_file():
            return
        with self.path.open("rb") as file:
            file.seek(self.read_bytes)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self.read_bytes += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            records.info("%s", STAMP.sub("", line))
