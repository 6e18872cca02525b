"""Copies that SkyPilot's server on this machine keeps of what it was asked: those with our secrets are deleted.

It writes every task into `~/.sky/api_server/clients/` (twice) and every request into a database beside it, secrets
included, and keeps both for good. A server that was killed leaves the scripts that it was sending (`sky_setup_*`,
`sky_app_*` in the folder for temporary files). What its logs and cluster records show is redacted by SkyPilot. On the
machines the job's script holds the secrets; it goes with their disks.
"""

import json
import logging
import sqlite3
import tempfile
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from ...config.secrets import SHORTEST

log = logging.getLogger(__name__)

SERVER = Path("~/.sky/api_server")
AT_THE_END = ("generated", "tmp")
"""Folders beside the server's that are in use as long as machines are."""

SCRIPTS = ("sky_setup_*", "sky_app_*")
OLD_SECONDS = 3600.0
"""Younger scripts may be those of another launch, which is sending them."""


def values_of(hidden: dict[str, str]) -> set[str]:
    """Return the secrets themselves; a short one may be an ordinary word."""
    return {value for value in hidden.values() if len(value) >= SHORTEST}


def forget(secrets: Iterable[str], server: Path | None = None, *, ended: str = "") -> int:
    """Delete task files and finished requests that hold a secret; return how many.

    Args:
        secrets: the values.
        server: the folder of SkyPilot's server, where it is not the usual one.
        ended: name of the cluster that has ended: nothing needs its scripts and records any more.
    """
    folder, count = (server or SERVER).expanduser(), 0
    # As they stand in YAML and in JSON.
    texts = {text for value in secrets for text in (value, json.dumps(value)[1:-1])}
    if not texts:
        return 0
    files = list(folder.glob("clients/**/*.yaml"))
    if ended:
        files += [file for name in AT_THE_END for file in (folder.parent / name).rglob(f"*{ended}*")]
        files += [file for pattern in SCRIPTS for file in Path(tempfile.gettempdir()).glob(pattern) if _is_old(file)]
    for file in files:
        try:
            if not file.is_file():
                continue
            content = file.read_text(encoding="utf-8", errors="replace")
            if any(text in content for text in texts):
                file.unlink()
                count += 1
        except OSError as error:
            log.debug("%s: %s", file, error)
    database = folder / "requests.db"
    if not database.is_file():
        return count
    try:
        with closing(sqlite3.connect(database, timeout=30.0)) as connection:
            connection.execute("PRAGMA secure_delete = ON")
            for text in texts:
                gone = connection.execute(
                    "DELETE FROM requests WHERE finished_at IS NOT NULL AND instr(request_body, ?) > 0", (text,)
                )
                count += gone.rowcount
            connection.commit()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error as error:
        log.warning("secrets may be left in %s, where SkyPilot's server keeps its requests: %s", database, error)
    return count


def _is_old(file: Path) -> bool:
    try:
        return time.time() - file.stat().st_mtime > OLD_SECONDS
    except OSError:
        return False
