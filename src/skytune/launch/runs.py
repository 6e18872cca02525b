"""The folder of a run, and the key that names it: what decides the result, not where it is computed."""

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..config import RunConfig, ScaleLr, UserError, to_dict
from ..config.folders import home
from ..job import JobDir

log = logging.getLogger(__name__)

UNDECISIVE = (
    "name",
    "pipeline",
    "cache",
    "plugins",
    "loader",
    "compute",
    "launch",
    "log",
    "data",
    "resume",
    "upload",
    "tracker",
    "strategy",
    "compile",
    "benchmark",
)
"""Config keys that do not change what is learned. The data enters by the fingerprint of its tokenized rows."""

UNDECISIVE_EVAL = ("batch_size", "sets", "metrics", "extra_metrics")
"""Likewise of `eval`: the logits are kept, whatever they are scored with."""


def decisive(config: RunConfig) -> dict[str, Any]:
    """Return the part of the configuration that decides the result."""
    values = {key: value for key, value in to_dict(config).items() if key not in UNDECISIVE}
    # How the global batch is cut up changes rounding only.
    values["batch"] = {key: value for key, value in values["batch"].items() if key not in ("micro_size", "auto")}
    values["checkpoint"] = {key: values["checkpoint"][key] for key in ("select", "metric", "mode")}
    if config.schedule.scale_lr is ScaleLr.none:  # keys of runs from before there was such a thing stay what they were
        values["schedule"] = {k: v for k, v in values["schedule"].items() if not k.startswith("scale_")}
    values["debug"] = {"overfit": config.debug.overfit}
    values["eval"] = {key: value for key, value in values["eval"].items() if key not in UNDECISIVE_EVAL}
    if own := deciding_metrics(config):
        values["eval"]["deciding"] = own
    if not config.callbacks:  # they alone see it
        del values["extra"]
    return values


def deciding_metrics(config: RunConfig) -> dict[str, Any]:
    """Return those of `eval.extra_metrics` that give `checkpoint.metric`."""
    metric = config.checkpoint.metric
    return {n: spec for n, spec in config.eval.extra_metrics.items() if metric == n or metric.startswith(f"{n}_")}


def run_key(config: RunConfig, fingerprints: dict[str, str]) -> str:
    """Return `<name>-<12 hex digits>` for the decisive configuration and the fingerprints of data and weights."""
    text = json.dumps([decisive(config), fingerprints], sort_keys=True)
    model = (config.model._target_ or "").rpartition(".")[2] or Path(config.model.name).name
    data = (config.data._target_ or "").rpartition(".")[2] or Path(config.data.name).name
    name = config.name or f"{model}-{data}"
    return f"{slug(name)}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def slug(text: str) -> str:
    """Return the text as a file name: lower case, anything unusual a hyphen, at most 60 characters."""
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-.")[:60] or "run"


class RunFolder:
    """`<home>/runs/<run key>`: one job directory, used by one process at a time."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.path = home() / "runs" / key
        self.job = JobDir(self.path)

    @contextmanager
    def claimed(self) -> Iterator[JobDir]:
        """Hold the folder, emptied for a new job; wait (and say so once) while another process trains the same run.

        The lock is the operating system's, so it is gone with the process that held it.

        Raises:
            UserError: the folder cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / ".lock").open("a+")
        except OSError as error:
            raise UserError(
                f"cannot use the run folder {self.path}: {error.strerror} (SKYTUNE_HOME chooses another)"
            ) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                log.warning("this very run is being trained by process %s: waiting for it to end", file.read() or "?")
                fcntl.flock(file, fcntl.LOCK_EX)
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            for old in (self.job.inputs, self.job.outputs):
                shutil.rmtree(old, ignore_errors=True)
            yield self.job
