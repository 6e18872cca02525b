"""The folder of a run, and the key that names it: what decides the result, not where it is computed."""

import fcntl
import hashlib
import json
import logging
import math
import os
import re
import time
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from ..config import METRICS, RunConfig, ScaleLr, UserError, to_dict
from ..config.folders import home
from ..config.schema.task import AUTO
from ..job import JobDir

log = logging.getLogger(__name__)

UNDECISIVE = (
    "name",
    "pipeline",
    "cache",
    "plugins",
    "trust",
    "loader",
    "compute",
    "launch",
    "sagemaker",
    "dry_run",
    "log",
    "data",
    "resume",
    "upload",
    "promote",
    "tracker",
    "strategy",
    "compile",
    "study",
    "search",
    "predict",
    "export",
)
"""Config keys that do not change what is learned. The data enters by the fingerprint of its tokenized rows."""

UNDECISIVE_EVAL = ("batch_size", "sets", "metrics", "extra_metrics")
"""Likewise of `eval`: the logits are kept, whatever they are scored with."""


NEWER = {
    "": ("on_nan",),
    "model": ("lora",),
    "optimizer": ("no_decay", "layer_decay", "groups", "gradient_noise"),
    "schedule": ("cycles", "unfreeze_epochs"),
    "eval": ("generate", "max_new_tokens"),
}
"""Keys by group that enter only where they are set: keys of runs from before there were such stay what they were."""


def identity_config(config: RunConfig) -> dict[str, Any]:
    """Return the part of the configuration that decides the result."""
    values = {key: value for key, value in to_dict(config).items() if key not in UNDECISIVE}
    # How the global batch is cut up changes rounding only.
    values["batch"] = {key: value for key, value in values["batch"].items() if key not in ("micro_size", "auto")}
    values["checkpoint"] = {key: values["checkpoint"][key] for key in ("select", "metric", "mode")}
    if config.task.is_first:  # likewise of runs from before there were several tasks
        del values["task"]
        if config.checkpoint.metric == AUTO:
            values["checkpoint"]["metric"] = METRICS[0]
    if config.schedule.scale_lr is ScaleLr.none:  # keys of runs from before there was such a thing stay what they were
        values["schedule"] = {k: v for k, v in values["schedule"].items() if not k.startswith("scale_")}
    plain = to_dict(RunConfig())
    for group, names in NEWER.items():
        here, there = (values[group], plain[group]) if group else (values, plain)
        for name in names:
            if here[name] == there[name]:
                del here[name]
    values["debug"] = {"overfit": config.debug.overfit}
    values["eval"] = {key: value for key, value in values["eval"].items() if key not in UNDECISIVE_EVAL}
    if config.loss.is_plain:
        del values["loss"]
    if config.augment.is_off:
        del values["augment"]
    if config.eval.threshold is None:
        del values["eval"]["threshold"]
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
    text = json.dumps([identity_config(config), fingerprints], sort_keys=True)
    return f"{run_name(config)}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def run_name(config: RunConfig) -> str:
    """Return what runs of a configuration are called: the first part of their keys."""
    model = (config.model._target_ or "").rpartition(".")[2] or Path(config.model.name).name
    data = (config.data._target_ or "").rpartition(".")[2] or Path(config.data.name).name
    return slug(config.name or f"{model}-{data}")


def model_name(path: str) -> str:
    """Return what a trained model is called: a run's own as the run, else its folder."""
    parts = Path(path.rstrip("/")).parts
    return parts[-3] if parts[-2:] == ("outputs", "model") and len(parts) > 2 else parts[-1]


def slug(text: str) -> str:
    """Return the text as a file name: lower case, anything unusual a hyphen, at most 60 characters."""
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-.")[:60] or "run"


class RunFolder:
    """`<home>/runs/<run key>`: one job directory, used by one process at a time."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.path = home() / "runs" / key
        self.job = JobDir(self.path)

    def claim(self, since: float = math.inf) -> "Claim":
        """Hold the folder; wait (and say so once) while another process trains the same run.

        Args:
            since: in seconds since the epoch: a job that has ended well after it is `finished`; one that ends while
                this waits always is.

        Raises:
            UserError: the folder cannot be made.
        """
        return Claim(self.path, min(since, time.time()))


class Claim:
    """A run's folder held by this process: until `close`, until nobody knows of it any more, or until the process ends.

    The lock is the operating system's, so it is gone with the process that held it.
    """

    _finished: ClassVar[WeakValueDictionary[Path, "Claim"]] = WeakValueDictionary()
    """Those of this process whose job has ended: who wants the folder again need not wait for itself."""

    def __init__(self, path: Path, since: float) -> None:
        self.path = path
        if (own := self._finished.pop(path, None)) is not None:
            own.close()
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._file = (path / ".lock").open("a+")
        except OSError as error:
            raise UserError(
                f"cannot use the run folder {path}: {error.strerror} (SKYTUNE_HOME chooses another)"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = self._read().get("process", "?")
            log.warning("this very run is being trained by process %s: waiting for it to end", other)
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self.before = self._read()
        self.finished = self.before.get("finished", -math.inf) >= since
        """Whether the process that held the folder before ended its job well after `since`."""
        self._write(process=os.getpid())

    def finish(self) -> None:
        """Note that the job has ended well."""
        self._write(process=os.getpid(), finished=time.time())
        self._finished[self.path] = self

    def close(self) -> None:
        """Let others have the folder."""
        self._file.close()

    def _read(self) -> dict[str, Any]:
        self._file.seek(0)
        try:
            found = json.loads(self._file.read())
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, **values: float) -> None:
        self._file.truncate(0)
        self._file.write(json.dumps(values))
        self._file.flush()
