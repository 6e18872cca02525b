"""Secrets kept out of what a process says: its log messages, and the errors that others record."""

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .secrets import USER, of_environment

SHORTEST = 6
"""Shortest secret that is looked for in messages."""


def scrub(text: str) -> str:
    """Return a message without the secrets that this process knows, and without passwords in URLs."""
    known = [value for value in of_environment().values() if len(value) >= SHORTEST]
    if known:
        text = re.sub("|".join(map(re.escape, known)), "<secret>", text)
    return USER.sub(lambda match: "<secret>" if ":" in match[0] else match[0], text)


@contextmanager
def scrubbed() -> Iterator[None]:
    """Scrub the text of an exception that passes, and of those that led to it, for whoever records it."""
    try:
        yield
    except Exception as error:
        found: BaseException | None = error
        while found is not None:
            found.args = tuple(scrub(item) if isinstance(item, str) else item for item in found.args)
            found = found.__cause__ or found.__context__
        raise


def log_plainly() -> None:
    """Show this package's messages on the screen as they are, scrubbed: what every command of ours does first."""
    guard_logs()
    log = logging.getLogger("skytune")
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def guard_logs() -> None:
    """Have every message that this process logs, with whatever logger and handler, go through `scrub`."""
    make = logging.getLogRecordFactory()
    if getattr(make, "scrubs", False):
        return

    def scrubbing(*args: Any, **options: Any) -> logging.LogRecord:
        record = make(*args, **options)
        try:
            text = record.getMessage()
        except Exception:
            return record  # arguments that do not fit: whoever writes the record says so
        clean = scrub(text)
        if clean != text:
            record.msg, record.args = clean, ()
        return record

    scrubbing.scrubs = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(scrubbing)
