"""Taking runs away: what would go and how many bytes that is, what must stay because a later run refers to it, and then
all of it together. Whoever calls says what else belongs to a run (ZenML's records)."""

import os
import shutil
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from ..common.mappings import flatten
from ..common.text import first_line
from ..config import ConfigError, UserError
from ..config.folders import home
from ..config.secrets import resolve_secrets
from ..launch.run_dir import RunFolder
from .catalog import RunRecord, disk_usage, is_held

GOING = ".removed-"
"""Begins the name of a run's folder while it is deleted."""


class Records(Protocol):
    """What an orchestrator keeps of a run."""

    @property
    def runs(self) -> Sized:
        """The orchestrator's runs."""

    @property
    def artifacts(self) -> Sized:
        """What no other run made or used."""

    @property
    def folders(self) -> Sequence[Path]:
        """Where those lie that lie on this machine."""

    @property
    def stages(self) -> Sequence[str]:
        """Stages that the run's model holds, with the model's name: `production of reviews`."""

    def delete(self) -> None:
        """Delete all of it; again where it was cut short."""


@dataclass(frozen=True)
class Removal:
    """A run, and everything that goes with it."""

    run: RunRecord
    kept: str = ""
    """Why the run stays; empty where it goes."""

    local_bytes: int = 0
    """What its folder and its records give back on this machine's disk."""

    checkpoints: str = ""
    """URL of its checkpoints where they lie elsewhere."""

    checkpoint_bytes: int = 0
    records: Records | None = None

    @property
    def bytes(self) -> int:
        """All bytes that are free afterwards."""
        return self.local_bytes + self.checkpoint_bytes


def plan_removal(
    runs: Sequence[RunRecord], everything: Iterable[RunRecord], records_of: Callable[[str], Records | None]
) -> list[Removal]:
    """Return what goes with each run, and which runs stay.

    Args:
        runs: those to take away.
        everything: all runs that there are.
        records_of: the orchestrator's records of a run key.

    Raises:
        UserError: a store of checkpoints cannot be reached.
    """
    going = {run.folder for run in runs}
    others = [run for run in everything if run.folder not in going]
    records = {run.folder: records_of(run.key) for run in runs}
    staying = {
        folder: f"it is {kept.stages[0]}: promote another model first"
        for folder, kept in records.items()
        if kept is not None and kept.stages
    }
    others += [run for run in runs if run.folder in staying]
    while True:  # a run that stays may hold another one that was to go
        found = {run.folder: why for run in runs if run.folder not in staying and (why := _why_kept(run, others))}
        if not found:
            break
        staying |= found
        others += [run for run in runs if run.folder in found]
    return [
        Removal(run, kept=staying[run.folder]) if run.folder in staying else _whole(run, records[run.folder])
        for run in runs
    ]


def remove(removal: Removal) -> None:
    """Take a run away; cut short, the same command takes away what is left.

    Raises:
        UserError: a process works in its folder by now, or something cannot be deleted.
    """
    run = removal.run
    if is_held(run.folder):
        raise UserError(f"{run.key}: a process has begun to work on it: it stays")
    claim = RunFolder(run.key).claim() if run.folder == RunFolder(run.key).path else None
    try:
        if removal.records is not None:
            removal.records.delete()
        if removal.checkpoints:
            system, path = _system(removal.checkpoints)
            if system.exists(path):
                system.rm(path, recursive=True)
        gone = run.folder.with_name(f"{GOING}{run.key}-{os.getpid()}")
        run.folder.rename(gone)
        shutil.rmtree(gone)
    except (UserError, KeyboardInterrupt):
        raise
    except Exception as error:  # every file system has its own
        raise UserError(f"{run.key}: cannot be deleted: {first_line(error)}; the same command goes on") from error
    finally:
        if claim is not None:
            claim.close()


def sweep() -> None:
    """Delete what a removal that was killed has left of folders."""
    for left in (home() / "runs").glob(f"{GOING}*"):
        shutil.rmtree(left, ignore_errors=True)


def old_runs(
    runs: Sequence[RunRecord], *, keep: int | None = None, older_than: timedelta | None = None, unfinished: bool = False
) -> list[RunRecord]:
    """Return the runs that `prune` takes away; all conditions that are given must hold.

    Args:
        runs: oldest first.
        keep: the newest so many of every name (the run key less its hash) stay.
        older_than: by when the job was written.
        unfinished: those alone that have no result.

    Raises:
        ConfigError: no condition.
    """
    if keep is None and older_than is None and not unfinished:
        raise ConfigError("prune: say which: --keep N, --older-than 30d, --unfinished")
    found, later = [], dict[str, int]()
    for run in reversed(runs):
        name = run.key.rpartition("-")[0]
        later[name] = later.get(name, 0) + 1
        if (
            (keep is None or later[name] > keep)
            and (older_than is None or run.created < datetime.now() - older_than)
            and (not unfinished or run.status not in ("completed", "running"))
        ):
            found.append(run)
    return found[::-1]


def _whole(run: RunRecord, records: Records | None) -> Removal:
    store, size = run.setting("checkpoint.store"), 0
    url = f"{store.rstrip('/')}/{run.key}" if isinstance(store, str) and store else ""
    if url:
        try:
            system, path = _system(url)
            size = int(system.du(path)) if system.exists(path) else 0
        except UserError:
            raise
        except Exception as error:  # every file system has its own
            raise UserError(f"{run.key}: its checkpoints at {url} cannot be reached: {first_line(error)}") from error
    folders = [run.folder, *(records.folders if records is not None else [])]
    return Removal(run, "", disk_usage(folders)[1], url, size, records)


def _system(url: str) -> tuple[Any, str]:
    import fsspec

    system, path = fsspec.core.url_to_fs(resolve_secrets(url))
    return system, path


def _why_kept(run: RunRecord, others: Iterable[RunRecord]) -> str:
    """Return why a run has to stay; empty where it need not."""
    if run.folder.parent.resolve() != (home() / "runs").resolve():
        # Its job file says where checkpoints lie that would go with it; anybody may have written that.
        return f"it lies outside of {home() / 'runs'}: delete its folder by hand"
    if run.running:
        return "a process works on it"
    for other in others:
        if _refers(other, run):
            return f"{other.key} refers to it"
    return ""


def _refers(other: RunRecord, run: RunRecord) -> bool:
    """Whether a run was begun from another one's model or checkpoints, scores or predicts with it."""
    links = (other.folder / "inputs" / "weights").glob("*")
    if any(run.folder.resolve() in link.resolve().parents for link in links):
        return True
    values = flatten(other.values.get("config") or {}).values()
    return any(isinstance(value, str) and run.key in value.split("/") for value in values)
