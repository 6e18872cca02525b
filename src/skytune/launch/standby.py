"""A worker that stands by: it imports its libraries while the command opens ZenML and loads the data, and gets its job
when that is written. Imports are most of a worker's time to its first step, and take as long as the command's own.

It is the very process that would be started then. A command that was given before finds its training in ZenML's cache:
for it none is started.
"""

import contextlib
import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ..config import Pipeline, RunConfig, UserError, to_dict
from ..config.folders import home
from ..job import read_json, write_json
from .gpus import device_here, processes_wanted, threads_each
from .multinode.topology import nodes_of
from .processes import environment, module_command, start
from .remote.machine import machines_asked

HERE = (Pipeline.training, Pipeline.evaluate, Pipeline.predict)
"""Pipelines whose workers run on this machine, one job at a time."""

REMEMBERED = 1000
"""Configurations that were given before."""

LATER = (
    "SKYTUNE_",
    "ZENML_",
    "GLOO_",
    "NCCL_",
    "TORCH_DISABLE_SHARE_",
    "OMP_WAIT_",
    "COLUMNS",
    "KMP_",
    "TF_CPP_",
    "DISABLE_CREDENTIALS_",
)
"""Variables that may be set while it waits, by us or by what the command imports: no library has read them by then."""

_waiting: subprocess.Popen[bytes] | None = None
_given: Mapping[str, str] = {}
_mark = ""


def begin(config: RunConfig) -> None:
    """Start the worker of a run, if that will be one process of this machine as far as one can tell by now."""
    global _waiting, _given, _mark
    compute, launch = config.compute, config.launch
    away = machines_asked(compute) and not compute.local
    # What a plugin changes, libraries find when they are imported.
    if _waiting or away or config.pipeline not in HERE or config.plugins or nodes_of(launch, os.environ).count > 1:
        return
    _mark = hashlib.sha256(json.dumps(to_dict(config), sort_keys=True, default=str).encode()).hexdigest()[:16]
    if config.cache and _mark in _before():
        return
    # What fails here, fails again when it is needed, and is told then.
    with contextlib.suppress(OSError, ImportError):
        if processes_wanted(compute, launch) == 1:
            words = ["skytune.training.worker", "--standby", device_here(compute)]
            _given = environment(1, threads_each(launch, 1), launch.timeouts.stop)
            _waiting = start(module_command(*words, processes=1, folder=Path()), dict(_given), subprocess.PIPE)


def take(job: str, env: Mapping[str, str]) -> "subprocess.Popen[bytes] | None":
    """Give the worker that stands by a job; return it, None where there is none, or its libraries were imported under
    other variables than the job has (ZenML sets those of a stack when the step begins).

    Args:
        env: its environment from now on.
    """
    global _waiting
    child, _waiting = _waiting, None
    if child is None:
        return None
    assert child.stdin is not None
    changed = {name for name, _ in env.items() ^ _given.items()}
    if not all(name.startswith(LATER) for name in changed):
        _end(child)
        return None
    try:
        with child.stdin as order:
            order.write(json.dumps({"job": job, "env": dict(env)}).encode() + b"\n")
    except OSError:  # it has ended
        _end(child)
        return None
    with contextlib.suppress(OSError):
        write_json(_file(), [*_before(), _mark][-REMEMBERED:])
    return child


def _file() -> Path:
    return home() / "standby.json"


def _before() -> list[str]:
    with contextlib.suppress(OSError, UserError):
        found = read_json(_file())
        return [str(mark) for mark in found] if isinstance(found, list) else []
    return []


def end() -> None:
    """End the worker that stands by, if there is one."""
    global _waiting
    child, _waiting = _waiting, None
    if child is not None:
        _end(child)


def _end(child: "subprocess.Popen[bytes]") -> None:
    child.kill()
    with child:  # waits for it, and closes its pipes
        pass
