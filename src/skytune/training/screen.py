"""A terminal whose last line is a live bar: whatever else is printed takes its place, and it comes back below."""

import logging
import sys
from typing import Any, TextIO

ERASE = "\r\033[K"
NO_WRAP, WRAP = "\033[?7l", "\033[?7h"
"""DEC private mode 7: text beyond the last column is cut off instead of going to the next line."""


class Screen:
    """Standard output while a bar is on it: what others print (a callback of the user's) stays readable."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.bar_there = False

    def write(self, text: str) -> int:
        """Write text in the place of the bar."""
        if self.bar_there and text:
            self.bar_there = False
            self.stream.write(ERASE)
        return self.stream.write(text)

    def install(self) -> "Screen":
        """Become `sys.stdout`, also of the log handlers that write there."""
        self._exchange(self.stream, self)
        return self

    def remove(self) -> None:
        """Give `sys.stdout` back."""
        self._exchange(self, self.stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    @staticmethod
    def _exchange(old: Any, new: Any) -> None:
        if sys.stdout is old:
            sys.stdout = new
        for handler in logging.getLogger("skytune").handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is old:
                handler.setStream(new)


class Frames:
    """The file that a bar draws to. In a window that was made narrower a frame is cut, so it can still be redrawn."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen

    def write(self, text: str) -> int:
        """Draw a frame."""
        self.screen.bar_there = not text.endswith("\n")
        return self.screen.stream.write(f"{NO_WRAP}{text}{WRAP}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.screen.stream, name)
