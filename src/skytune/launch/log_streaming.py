"""What workers print, while they print it: on the screen, in a file, and rank 0's log as log records here, so
that whoever keeps a step's log (ZenML) keeps the training lines too.

What the workers print goes to the screen as raw bytes, for the sake of the live bar; a screen's frames are no log.
"""

import contextlib
import logging
import os
import re
import selectors
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ..common.files import is_disk_full
from .processes import Child

log = logging.getLogger(__name__)

records = logging.getLogger("skytune.workers")
"""Lines of rank 0's log. They are on the screen already, so they do not travel to other handlers from here."""
records.propagate = False
records.setLevel(logging.INFO)


STAMP = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ ")
"""Time and level at the beginning of a line; whoever keeps the record has them of their own."""

NOISE = re.compile(r"\[?[WI]\d{4} \d\d:\d\d:\d\d\.\d+ ")
"""How PyTorch's own warnings begin, which go to standard error: the logs of clouds have both streams in one."""


class Follower:
    """Reads what was appended to a log file since the last look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read_bytes = path.stat().st_size if path.is_file() else 0

    def poll(self) -> None:
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


def show_line(text: str, tail: deque[str]) -> None:
    """Show a line of rank 0's that came from another machine, keep it, and hand it on as a log record."""
    tail.append(text)
    if NOISE.match(text):
        return
    if sys.__stdout__ is not None:
        sys.__stdout__.write(text + "\n")
        sys.__stdout__.flush()
    records.info("%s", STAMP.sub("", text))


def pump(
    child: Child,
    record: IO[bytes],
    tail: deque[str],
    follower: Follower,
    check: Callable[[], None],
    result: Path,
    grace: float,
) -> int:
    """Show what rank 0 prints while it prints it; keep everything in the record, the end also in `tail`.

    Args:
        check: called twice a second; ends the wait by raising.

    Returns:
        The child's exit code; 0 for one that left its result and then did not end within `grace` seconds.
    """
    assert child.stdout is not None and child.stderr is not None
    pending = {"out": b"", "err": b""}
    until = None
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ, "out")
        selector.register(child.stderr, selectors.EVENT_READ, "err")
        while True:
            ended = child.poll() is not None
            if selector.get_map():
                # A process that outlives the workers (a loader of theirs) may hold the pipe open for ever.
                ready = selector.select(timeout=0.2 if ended else 0.5)
            else:  # both are closed: that ends the child within moments, and no event tells of it
                ready = []
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(0.5)
            if ended and not ready:
                break
            for key, _ in ready:
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    selector.unregister(key.fileobj)
                    continue
                _record(record, chunk)
                if key.data == "out":
                    _show(chunk)
                *lines, pending[key.data] = (pending[key.data] + chunk).split(b"\n")
                tail.extend(line.decode(errors="replace") for line in lines)
            follower.poll()
            check()
            if until is None and result.is_file():
                until = time.monotonic() + grace
            if until is not None and time.monotonic() > until and child.poll() is None:
                log.warning("the worker processes left their result but did not end (a thread of theirs?): ended them")
                return 0
    tail.extend(rest.decode(errors="replace") for rest in pending.values() if rest)  # last words without a line's end
    return child.wait()


def _record(record: IO[bytes], chunk: bytes) -> None:
    try:
        record.write(chunk)
    except OSError as error:  # a full disk must not end the workers
        if not is_disk_full(error):
            raise


def _show(chunk: bytes) -> None:
    """Pass bytes on as they are: a progress bar redraws its line."""
    stream = sys.__stdout__
    if stream is None:
        return
    stream.flush()
    stream.buffer.write(chunk)
    stream.buffer.flush()
