"""What a run will cost in all, as far as runs before it tell: of the same run, or of the same work for other steps.

Every run that came to its end in one piece (one attempt, not resumed) leaves a line in `<home>/spent.jsonl`. Where no
line fits, the total is unknown: nothing is guessed from other machines or other data.
"""

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...common.json import load_json
from ...config import RunConfig, to_dict
from ...config.folders import home
from ...job import Job
from ...pricing.cost import Attempt, dollars

log = logging.getLogger(__name__)

WORK = ("model", "batch", "precision", "strategy", "compile", "limit_train_batches")
"""Beside the data: what decides how long an optimizer step takes on a given machine."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a finished run took."""

    key: str
    """Run key."""

    work: str
    """Hash of what decides how long a step takes."""

    machine: str
    """The cloud's name of it; the market does not make it faster."""

    nodes: int
    seconds: float
    """Paid, of one machine."""

    stepping_s: float
    """Of these, training and validating."""

    steps: int
    steps_per_epoch: int
    day: str


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What is expected of a run."""

    seconds: float
    why: str

    def words(self, hourly_usd: float | None) -> str:
        """Return it for a person, at a price for all machines together."""
        money = "price n/a" if hourly_usd is None else f"about {dollars(self.seconds / 3600 * hourly_usd)}"
        return f"in all {money}, {self.seconds / 60:.0f} min ({self.why})"


UNKNOWN = "in all unknown (no run like it has ended on such machines)"


def remember(job: Job, result: dict[str, Any], attempts: list[Attempt]) -> None:
    """Write down what a run took, if it tells what others will take."""
    phases, steps = result.get("phases") or {}, int(result.get("steps") or 0)
    whole = len(attempts) == 1 and result.get("status") == "completed" and result.get("resumed_from") is None
    if not (whole and job.kind == "train" and steps and attempts[0].instance_type):
        return
    (attempt,) = attempts
    record = Record(
        key=job.run_key,
        work=work(job),
        machine=attempt.instance_type,
        nodes=attempt.nodes,
        seconds=round(sum(attempt.phases.values()), 1),
        stepping_s=round(float(phases.get("train_s") or 0.0) + float(phases.get("validate_s") or 0.0), 3),
        steps=steps,
        steps_per_epoch=int(result.get("steps_per_epoch") or 0),
        day=datetime.now(UTC).date().isoformat(),
    )
    try:
        home().mkdir(parents=True, exist_ok=True)
        with _file().open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")
    except OSError as error:
        log.debug("%s: %s", _file(), error)


def expected(job: Job, machine: str, nodes: int) -> Expected | None:
    """Return what a run is expected to take on a machine; None where nothing tells."""
    found = [each for each in _records() if each.machine == machine and each.nodes == nodes]
    same = [each for each in found if each.key == job.run_key]
    if same:
        return Expected(seconds=same[-1].seconds, why=f"as this run took on {same[-1].day}")
    alike = [each for each in found if each.work == work(job)]
    if not alike or job.kind != "train":
        return None
    last = alike[-1]
    steps = _steps(job.config, last.steps_per_epoch)
    each_s = last.stepping_s / last.steps
    rest = max(0.0, last.seconds - last.stepping_s)
    return Expected(
        seconds=rest + steps * each_s,
        why=f"{steps} steps of {each_s:.2g} s and {rest / 60:.0f} min besides, as {last.key} took on {last.day}",
    )


def work(job: Job) -> str:
    """Return the hash of what decides how long a step takes."""
    values = to_dict(job.config)
    how = [values["launch"]["num_processes"], values["compute"]["device"], values["compute"]["packed"]]
    decides = [{key: values[key] for key in WORK}, job.fingerprints.get("data"), how]
    return hashlib.sha256(json.dumps(decides, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _steps(config: RunConfig, steps_per_epoch: int) -> int:
    return config.max_steps or config.epochs * steps_per_epoch


def _file() -> Path:
    return home() / "spent.jsonl"


def _records() -> Iterator[Record]:
    """Yield all records, the oldest first; what another version or a full disk left is passed over."""
    try:
        lines = _file().read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for text in lines:
        try:
            record = Record(**load_json(text, dict))
        except (ValueError, TypeError):
            continue
        if record.steps > 0:
            yield record
