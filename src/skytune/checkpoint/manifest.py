"""What a checkpoint is: a folder of files and a manifest, written last, that says what must lie in the folder.

All of it is pure: whether a checkpoint is whole, and which one is the newest. Without a valid manifest a checkpoint
does not exist.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..common.json import load_json
from ..common.paths import UnsafeNameError, check_name
from ..config import UserError

SCHEMA = 1
NAME = "manifest.json"
COMPLETED = "completed.json"
"""File of a run that remembers the last step that was completed."""
LEASE = "lease.json"
"""File of a run that says who may write."""
RUN_FILE = "run.json"
"""File of a run that says what it is made of (see `recipe`)."""
FINISHED = "finished.json"
"""File of a run that says that it came to its end."""


class ManifestError(ValueError):
    """These bytes are no manifest of the checkpoint that was asked for; the message says why."""


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of a checkpoint."""

    size: int
    """Bytes."""

    sha256: str
    """Of the whole file, in hexadecimal digits."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All that must be true of a checkpoint."""

    run_key: str
    """The run that it belongs to."""

    step: int
    """Optimizer steps done: the position in training."""

    created: float
    """Seconds since the epoch."""

    world_size: int
    """Processes that trained when it was saved."""

    files: dict[str, FileEntry]
    """Every file beside the manifest, by name."""

    state: dict[str, Any] = field(default_factory=dict)
    """Small JSON: totals, best metric, elapsed time, a summary of the config."""

    decisive: dict[str, Any] = field(default_factory=dict)
    """Config values and fingerprints that decide the result: another run's checkpoint is refused by them."""

    @property
    def bytes(self) -> int:
        """Return the size of all files together."""
        return sum(entry.size for entry in self.files.values())


def step_name(step: int) -> str:
    """Return the folder name of a step, e.g. `step-00001200`."""
    return f"step-{step:08d}"


def parse_step(name: str) -> int | None:
    """Return the step that a folder name means, None for anything else (a temporary name too)."""
    match = re.fullmatch(r"step-([0-9]{8,})", name)
    if match is None or step_name(int(match[1])) != name:
        return None
    return int(match[1])


def build(
    run_key: str,
    step: int,
    files: Mapping[str, FileEntry],
    *,
    created: float,
    world_size: int = 1,
    state: Mapping[str, Any] | None = None,
    decisive: Mapping[str, Any] | None = None,
) -> Manifest:
    """Return the manifest of a checkpoint; values are what JSON makes of them, so that writing and reading agree."""
    for name in files:
        _check_file(name)
    return Manifest(
        run_key=run_key,
        step=step,
        created=created,
        world_size=world_size,
        files=dict(sorted(files.items())),
        state=json.loads(json.dumps(state or {})),
        decisive=json.loads(json.dumps(decisive or {})),
    )


def serialise(manifest: Manifest) -> bytes:
    """Return the bytes of `manifest.json`; they hold a checksum of themselves."""
    body = {"schema": SCHEMA, **asdict(manifest)}
    return _dump({**body, "checksum": hashlib.sha256(_dump(body)).hexdigest()})


def parse(data: bytes, *, run_key: str | None = None, step: int | None = None) -> Manifest:
    """Read `manifest.json`.

    Args:
        run_key: the run it must belong to, None for any.
        step: the step it must be of, None for any.

    Raises:
        ManifestError: cut short, changed by a single bit, of another version, run or step.
    """
    try:
        values = load_json(data, dict)
        schema = values.pop("schema")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ManifestError(f"{NAME} is damaged (it is not a manifest)") from None
    if schema != SCHEMA:
        raise ManifestError(f"{NAME} has schema {schema}, this version reads {SCHEMA}")
    try:
        checksum = values.pop("checksum")
        files = {name: FileEntry(**entry) for name, entry in values.pop("files").items()}
        for name in files:
            _check_file(name)
        manifest = Manifest(files=files, **values)
        whole = serialise(manifest) == data
    except UnsafeNameError as error:
        raise ManifestError(f"{NAME} is damaged ({error})") from None
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ManifestError(f"{NAME} is damaged (keys are missing)") from None
    if not whole:
        raise ManifestError(f"{NAME} is damaged (its checksum {str(checksum)[:12]} does not fit)")
    if step is not None and manifest.step != step:
        raise ManifestError(f"{NAME} is of step {manifest.step}")
    if run_key is not None and manifest.run_key != run_key:
        raise ManifestError(f"{NAME} belongs to the run {manifest.run_key}")
    return manifest


def verify(
    manifest: Manifest, size: Callable[[str], int | None], digest: Callable[[str], FileEntry] | None = None
) -> list[str]:
    """Return what is wrong with a checkpoint's files, one line a file; nothing when it is whole.

    Args:
        size: returns the bytes of a file, None where there is none.
        digest: reads a file and returns what it holds; None looks at sizes alone. FileNotFoundError means missing.
    """
    problems = []
    for name, wanted in manifest.files.items():
        found = size(name)
        if found is None:
            problems.append(f"{name} is missing")
        elif found != wanted.size:
            problems.append(f"{name} has {found} bytes instead of {wanted.size}")
    if problems or digest is None:
        return problems
    for name, wanted in manifest.files.items():
        try:
            read = digest(name)
        except FileNotFoundError:
            problems.append(f"{name} is missing")
            continue
        if read.size != wanted.size:
            problems.append(f"{name} has {read.size} bytes instead of {wanted.size}")
        elif read.sha256 != wanted.sha256:
            problems.append(f"{name} is damaged (its SHA-256 is not the one that was saved)")
    return problems


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What looking at one checkpoint gave."""

    manifest: Manifest | None = None
    """There when it can be read."""

    problems: tuple[str, ...] = ()
    """Empty when the checkpoint is whole."""

    unfinished: bool = False
    """It never had a manifest: the save was cut short before it was complete, which is nobody's loss."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The newest valid checkpoint."""

    manifest: Manifest
    skipped: tuple[str, ...] = ()
    """Newer ones that are not valid, one line each with the reason."""


def choose(
    steps: Iterable[int], check: Callable[[int], Verdict], *, where: str, completed: int | None = None
) -> Choice | None:
    """Return the newest checkpoint that is whole; None where none was ever completed.

    Args:
        steps: what lies in the store, in any order.
        check: looks at one of them; called from the newest on, until one is whole.
        where: the store, for the message.
        completed: the step that the store remembers as completed, None where it remembers none.

    Raises:
        UserError: there were checkpoints and none of them is whole: starting again at step 0 would hide the loss.
    """
    skipped: list[str] = []
    broken = False
    for step in sorted(steps, reverse=True):
        verdict = check(step)
        if verdict.manifest is not None and not verdict.problems:
            return Choice(manifest=verdict.manifest, skipped=tuple(skipped))
        broken = broken or not verdict.unfinished
        skipped.append(f"{step_name(step)}: {'; '.join(verdict.problems) or 'not whole'}")
    if completed is not None and not skipped:
        skipped.append(f"{step_name(completed)} was completed and is gone")
    if broken or completed is not None:
        raise UserError(
            f"{where}: no checkpoint there is whole ({' | '.join(skipped)}); "
            "bring one back, or start again at step 0 with resume=never"
        )
    return None


def _check_file(name: str) -> None:
    """Refuse what cannot be the name of a checkpoint's file: they all lie in one folder."""
    if "/" in check_name(name) or name.startswith(".") or name == NAME:
        raise UnsafeNameError(f"'{name}' cannot be the name of a checkpoint's file")


def _dump(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, indent=1, sort_keys=True, ensure_ascii=True).encode("ascii")
