"""The command that trains a run's model again, for whoever has the data: the run's own, without what has things copied
or promoted."""

import shlex

from ..config import Pipeline
from ..runs.catalog import RunRecord

ASIDE = ("upload", "promote", "tracker", "cache", "log")
"""Groups of keys that change nothing of what is learned."""


def command_again(run: RunRecord) -> str:
    """Return the command; empty where the run came about otherwise (a trial, a cell, a checkpoint of elsewhere), or
    where a secret stood in it."""
    try:
        words = shlex.split(str((run.values.get("origin") or {}).get("command", "")))
    except ValueError:
        return ""
    if (
        len(words) < 2
        or not words[1].endswith("run.py")
        or any(mark in word for word in words for mark in ("<env:", "<secret>"))
    ):
        return ""
    given = dict(word.lstrip("+~").partition("=")[::2] for word in words[2:])
    if given.get("pipeline", Pipeline.training.value) != Pipeline.training.value:
        return ""
    if "/" in given.get("resume", "") or "search.take" in given:
        return ""
    kept = [word for word in words[2:] if word.lstrip("+~").partition("=")[0].split(".")[0] not in ASIDE]
    return shlex.join(["python", "src/run.py", *kept])
