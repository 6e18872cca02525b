"""A run once more, beside the first time: its data prepared again from their source, trained (or scored) in the same
way; the same result to the bit, or what differs first."""

import logging
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import models
from ..checkpoint.resume import differences
from ..config import RunConfig, UploadConfig, UserError, to_dict
from ..config.folders import home
from ..job import JobDir
from ..launch import predict, train
from ..launch.run_dir import identity_config
from ..launch.run_job import checkpoint_hash, data_hash
from ..tasks.prepared import prepared
from .catalog import RunRecord
from .compare import Comparison, compare

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reproduction:
    """A run, and what came of it the second time."""

    first: RunRecord
    difference: str
    """What differs first; empty where nothing does."""

    changed: list[str]
    """Code, packages and machine that are not what they were."""

    second: RunRecord | None = None
    """None where it was not worth while to compute."""

    @property
    def same(self) -> bool:
        """Whether losses and predictions are the same to the bit."""
        return not self.difference

    def remove(self) -> None:
        """Delete the second run's folder."""
        if self.second is not None:
            shutil.rmtree(self.second.folder, ignore_errors=True)


def base(run: RunRecord) -> dict[str, Any]:
    """Return the values of a run's configuration, to which the command line is added: nothing goes on from checkpoints,
    into the run's own store, to a hub or to a tracker.

    Raises:
        UserError: no such job, or one that only predicts.
    """
    job = JobDir(run.folder).job
    values = dict(run.values["config"])
    if job.kind not in ("train", "predict"):
        raise UserError(f"{run.key}: is a {job.kind} job: run its command again with cache=false")
    values |= {"resume": "never", "trust": False}
    values["checkpoint"] = {**values["checkpoint"], "store": None}
    values["upload"] = to_dict(UploadConfig())
    values["tracker"] = {**values["tracker"], "names": []}
    return values


def run_again(run: RunRecord, config: RunConfig, code: dict[str, str]) -> Reproduction:
    """Run a job once more with a configuration that is its own but for what does not decide the result.

    Args:
        code: fingerprints of the code as it is now, as the step that trains has them.

    Raises:
        UserError: the configuration is another one; anything that a run itself may raise.
    """
    job = JobDir(run.folder).job
    if other := differences(identity_config(config), identity_config(job.config)):
        raise UserError(f"reproduce {run.key}: {'; '.join(other[:3])}: that decides the result")
    config = replace(config, model=replace(config.model, revision=job.config.model.revision))
    trains = job.kind == "train"
    checkpoint = str(config.checkpoint.path)
    known = None if trains else models.saved_model(checkpoint).labels
    found = prepared(config, config.seed, known)
    named = {"validation": found.validation, **found.sets, "test": found.test}
    splits = {name: split for name, split in named.items() if split is not None}
    whole = {"train": found.train, **splits} if trains else splits
    prints = job.fingerprints
    for what, now in (("data", data_hash(whole)), ("weights", _weights(config, checkpoint, trains))):
        if prints.get(what) not in (None, now):
            where = "the data's rows" if what == "data" else "the initial weights"
            return Reproduction(run, f"{where} are not what they were (fingerprint {prints[what]}, now {now})", [])
    os.environ["SKYTUNE_HOME"] = str(home() / "reproductions")  # for the workers, too
    if trains:
        done = train(config, found.train, splits, found.tokenizer, code)
    else:
        done = predict(config, checkpoint, splits, found.tokenizer)
    second = RunRecord.read(Path(done.result["run_folder"]))
    return Reproduction(run, *_verdict(compare(run, second)), second)


def _weights(config: RunConfig, checkpoint: str, trains: bool) -> str:
    if trains:
        return models.resolve(config.model).fingerprint
    return checkpoint_hash(Path(models.saved_model(checkpoint).folder))


def _verdict(found: Comparison) -> tuple[str, list[str]]:
    """Return what differs first, and what is not as it was; empty where nothing is."""
    changed = [f"{d.name} {d.values[0]} -> {d.values[1]}" for d in (*found.packages, *found.machine)]
    changed += [d.name for d in found.code if d.name != "uncommitted changes"]
    if found.losses is not None and found.losses.first is not None:
        step, one, two = found.losses.first
        return f"the loss at step {step:,}: {one!r} the first time, {two!r} now", changed
    if found.predictions:
        return f"the predictions of {found.predictions:,} test rows", changed
    if found.predictions is None:
        return "neither run has predictions of the same test rows", changed
    return "", changed
