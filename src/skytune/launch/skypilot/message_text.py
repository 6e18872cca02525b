"""A stream for SkyPilot to write to."""

import io
import re
from collections.abc import Callable
from pathlib import Path

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\r")


class Lines(io.TextIOBase):
    """Whole lines without colours go to a function and into a file."""

    def __init__(self, show: Callable[[str], None], record: Path) -> None:
        self.show, self.record, self.rest = show, record, ""

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str) -> int:
        """Take a piece of text."""
        *lines, self.rest = (self.rest + text).split("\n")
        if lines:
            with self.record.open("a", encoding="utf-8") as file:
                for line in lines:
                    clean = ANSI.sub("", line).rstrip()
                    file.write(clean + "\n")
                    self.show(clean)
        return len(text)
