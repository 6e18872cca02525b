"""The runs in `<home>/runs`, read as they lie there: also those of other versions of this package, and broken ones."""

import fcntl
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from ..common.json import load_json
from ..common.text import is_number
from ..config import METRICS, ConfigError, UserError
from ..config.folders import home
from ..job import JobDir
from ..launch.run_dir import model_name
from ..pricing.cost import cost_of
from ..tasks.classification import wilson

STATUSES = ("completed", "running", "preempted", "failed", "stopped")
"""As `RunRecord.status` says it."""


@dataclass(frozen=True)
class RunRecord:
    """One run's folder, and what its files say; what cannot be read counts as not there."""

    folder: Path
    values: dict[str, Any] = field(repr=False)
    """What `job.json` holds."""

    result: dict[str, Any] = field(repr=False)
    """What `outputs/result.json` holds; empty while the job has not ended by itself."""

    running: bool = False
    """Whether a process holds the folder."""

    @classmethod
    def read(cls, folder: Path) -> "RunRecord":
        """Read the files of a run's folder."""
        values, result = (_read(folder / name) for name in ("job.json", "outputs/result.json"))
        return cls(folder, values, result, is_held(folder))

    @property
    def key(self) -> str:
        """The run key, which is the folder's name."""
        return self.folder.name

    @property
    def kind(self) -> str:
        """`train` or what else the job does."""
        return str(self.values.get("kind", "?"))

    @property
    def created(self) -> datetime:
        """When the job was written, in local time."""
        file = JobDir(self.folder).file
        return datetime.fromtimestamp((file if file.is_file() else self.folder).stat().st_mtime)

    @property
    def status(self) -> str:
        """One of `STATUSES`."""
        if self.running:
            return "running"
        if self.result:
            return str(self.result.get("status", "completed"))
        return "failed" if JobDir(self.folder).read_errors() else "stopped"

    def setting(self, key: str) -> Any:
        """Return a value of the configuration by its dotted key; None where there is none."""
        found: Any = self.values.get("config")
        for part in key.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return found

    @property
    def model(self) -> str:
        """The model's name as a person knows it."""
        name = self.setting("checkpoint.path") or self.setting("model._target_") or self.setting("model.name")
        return model_name(name) if isinstance(name, str) and name else "?"

    @property
    def data(self) -> str:
        """The data set's name, or its files."""
        keys = ("predict.input", "data.test") if self.kind != "train" else ()
        own = ("data.train",) if self.setting("data.source") == "files" else ()
        if used := next(filter(None, map(self.setting, (*keys, *own))), None):
            return Path(str(used)).name
        parts = (self.setting("data._target_") or self.setting("data.name"), self.setting("data.subset"))
        return "/".join(str(part) for part in parts if part) or "?"

    @cached_property
    def scores(self) -> dict[str, Any]:
        """What was measured on the test split: `metrics` by name, `n_rows`; empty where nothing was."""
        outputs = self.folder / "outputs"
        return next(filter(None, (_read(outputs / part / "test_results.json") for part in ("model", "."))), {})

    @property
    def score(self) -> tuple[str, float, tuple[float, float] | None] | None:
        """The main number: name, value, 95 % interval where it is a share of rows; None where there is none."""
        metrics, rows = self.scores.get("metrics") or {}, self.scores.get("n_rows")
        wanted = [self.setting("checkpoint.metric"), *METRICS, *metrics]
        name = next((n for n in wanted if n != "loss" and is_number(metrics.get(n))), None)
        if name is None:
            return None
        share = name == "accuracy" and isinstance(rows, int) and rows > 0
        return name, metrics[name], wilson(metrics[name], int(rows or 0)) if share else None

    @property
    def usd(self) -> float | None:
        """What it cost, None where nobody knows."""
        try:
            hourly = self.setting("compute.usd_per_hour")
            return cost_of({**self.result, "run_folder": str(self.folder)}, hourly).usd
        except (UserError, TypeError, ValueError, AttributeError):
            return None

    @cached_property
    def size(self) -> int:
        """Bytes on disk."""
        return disk_usage([self.folder])[0]

    @property
    def seconds(self) -> float | None:
        """How long it trained, or predicted."""
        phases = self.result.get("phases") or {}
        return phases.get("train_s", phases.get("predict_s"))


def all_runs() -> list[RunRecord]:
    """Return all runs, oldest first."""
    folder = home() / "runs"
    found = [RunRecord.read(path) for path in folder.iterdir() if _is_run(path)] if folder.is_dir() else []
    return sorted(found, key=lambda run: run.created)


def find_run(name: str, runs: Iterable[RunRecord] | None = None) -> RunRecord:
    """Return the run that a key, a part of one that only one run has, or a path (of the run, or of its model) means.

    Raises:
        UserError: none, or several.
    """
    path = Path(name).expanduser().absolute()
    for folder in (path, *path.parents[:2]) if "/" in name or name == "." else ():
        if _is_run(folder):
            return RunRecord.read(folder)
    known = {run.key: run for run in (all_runs() if runs is None else runs)}
    if name in known:
        return known[name]
    found = [key for key in known if name in key]
    if len(found) == 1:
        return known[found[0]]
    if found:
        shown = ", ".join(found[-4:]) + (", ..." if len(found) > 4 else "")
        raise UserError(f"{name}: {len(found)} runs have this in their name ({shown}): give more of it")
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}?" if near else "`python src/runs.py ls` lists all"
    raise UserError(f"{name}: no such run in {home() / 'runs'}; {hint}")


FIELDS = ("name", "date", "status", "data", "model", "score", "cost", "size")
"""What a list of runs has, and is sorted by."""


def selected(
    runs: Iterable[RunRecord], *, pattern: str = "", model: str = "", data: str = "", status: str = ""
) -> list[RunRecord]:
    """Return the runs of which key, model and data contain what is given (whatever the case), with this status."""
    if status and status not in STATUSES:
        raise ConfigError(f"--status {status}: allowed are {', '.join(STATUSES)}")
    wanted = ((pattern, "key"), (model, "model"), (data, "data"), (status, "status"))
    return [run for run in runs if all(text.casefold() in str(getattr(run, what)).casefold() for text, what in wanted)]


def ordered(runs: Iterable[RunRecord], by: str, descending: bool = False) -> list[RunRecord]:
    """Return the runs sorted by one of `FIELDS`; those that lack it come last."""

    def value(run: RunRecord) -> Any:
        columns = {"name": run.key, "date": run.created, "cost": run.usd, "score": run.score and run.score[1]}
        return columns[by] if by in columns else getattr(run, by)

    known = [(value(run), run) for run in runs]
    there = sorted((pair for pair in known if pair[0] is not None), key=lambda pair: pair[0], reverse=descending)
    return [run for _, run in [*there, *(pair for pair in known if pair[0] is None)]]


def as_values(run: RunRecord) -> dict[str, Any]:
    """Return what a list says of a run, as plain values."""
    name, value, interval = run.score or (None, None, None)
    return {
        "name": run.key,
        "date": run.created.isoformat(timespec="seconds"),
        "kind": run.kind,
        "status": run.status,
        "data": run.data,
        "model": run.model,
        "metric": name,
        "score": value,
        "interval": interval,
        "rows": run.scores.get("n_rows"),
        "usd": run.usd,
        "seconds": run.seconds,
        "bytes": run.size,
        "folder": str(run.folder),
    }


def disk_usage(paths: Iterable[Path]) -> tuple[int, int]:
    """Return the bytes of all files below some paths, and those that would be free without them: a file that has a
    further name elsewhere stays on the disk."""
    files: dict[tuple[int, int], tuple[int, int]] = {}
    seen: dict[tuple[int, int], int] = {}
    for root in paths:
        for folder, _, names in os.walk(root):
            for name in names:
                found = os.lstat(os.path.join(folder, name))
                inode = found.st_dev, found.st_ino
                files[inode] = found.st_size, found.st_nlink
                seen[inode] = seen.get(inode, 0) + 1
    total = sum(size for size, _ in files.values())
    return total, sum(size for inode, (size, links) in files.items() if seen[inode] >= links)


def is_held(folder: Path) -> bool:
    """Whether a process works in a run's folder (see `launch.run_dir.Claim`)."""
    try:
        with (folder / ".lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _is_run(path: Path) -> bool:
    return (
        path.is_dir() and not path.name.startswith(".") and (JobDir(path).file.is_file() or (path / ".lock").is_file())
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = load_json(path.read_bytes(), dict)
    except (OSError, ValueError):
        return {}
    return found
