"""A job from data sets to results: writes the job directory, has the workers run, hands back what they left."""

import errno
import logging
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import models, tasks
from ..common.mappings import flatten
from ..config import RunConfig, UserError, to_dict
from ..config.secrets import mask_secrets
from ..config.targets import user_paths
from ..data.tables import content_hash, label_names, write_split
from ..job import Job, JobDir, read_json, write_json
from .local import Launcher, LocalLauncher
from .multinode.launcher import NodesLauncher
from .multinode.topology import nodes_of
from .origin import origin
from .run_dir import Claim, RunFolder, identity_config, run_key

if TYPE_CHECKING:
    import datasets

log = logging.getLogger(__name__)

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""What a full or protected disk says."""


@dataclass(frozen=True)
class JobResult:
    """What a finished job left; no other process touches its folder while this exists."""

    job: JobDir
    result: dict[str, Any]
    history: list[dict[str, Any]]
    claim: Claim

    def keep(self) -> None:
        """Hold the folder until this process ends: ZenML stores what a step returns after the step has returned."""
        _kept.append(self.claim)


_kept: list[Claim] = []


def train(
    config: RunConfig,
    train_split: "datasets.Dataset",
    evaluation: Mapping[str, "datasets.Dataset"],
    tokenizer: Any,
    fingerprints: dict[str, str] | None = None,
    launcher: Launcher | None = None,
    since: float = math.inf,
    stop_at_step: int | None = None,
    take: bool = False,
    announce: bool = True,
) -> JobResult:
    """Fine-tune on `train_split`, validate on `evaluation['validation']`, then predict all of `evaluation`.

    Args:
        config: the whole configuration.
        train_split: tokenized rows with a column `labels` whose feature names the classes.
        evaluation: tokenized rows by name; must hold `validation`.
        tokenizer: saved beside the model; None where the rows are numbers already.
        fingerprints: further hashes to write down (code), not part of the run key.
        launcher: where the workers run; this machine if not given.
        since: when the whole command began, in seconds since the epoch: what another process that runs the very same
            has finished since then is taken as it is.
        stop_at_step: see `Job`; the outcome's status is then `paused`, and its folder is free again.
        take: take what is there of this very run as it is, whenever and with whatever code it was trained.
        announce: say in what this run differs from the last one of its name.

    Raises:
        UserError: anything the user can act on, from here or from a worker.
    """
    splits = {"train": train_split, **evaluation}
    config, source, prints, key = identified(config, splits)
    if announce:
        _log_changes(key, config, prints)
    weights = Path(source.path) if source.path else None
    prints |= fingerprints or {}
    return _run("train", key, config, splits, tokenizer, weights, prints, launcher, since, stop_at_step, take)


def identified(
    config: RunConfig, splits: Mapping[str, "datasets.Dataset"]
) -> tuple[RunConfig, "models.ModelSource", dict[str, str], str]:
    """Return the configuration with what data and model decide, the model, the fingerprints of both, and the run key.

    Args:
        splits: tokenized rows by name, `train` among them.
    """
    config = tasks.resolved(mask_secrets(config), splits["train"].features)
    source = models.resolve(config.model)
    if source.revision:
        config = replace(config, model=replace(config.model, revision=source.revision))
    prints = {"data": data_hash(splits), "weights": source.fingerprint}
    return config, source, prints, run_key(config, prints)


def predict(
    config: RunConfig,
    checkpoint: str,
    evaluation: Mapping[str, "datasets.Dataset"],
    tokenizer: Any,
    launcher: Launcher | None = None,
    since: float = math.inf,
) -> JobResult:
    """Predict every split of `evaluation` with a trained model; `since` as in `train`.

    Raises:
        UserError: no model there, or anything a worker names.
    """
    config = tasks.resolved(config, next(iter(evaluation.values())).features)
    folder = Path(models.saved_model(checkpoint).folder)
    prints = {"data": data_hash(evaluation), "weights": checkpoint_hash(folder)}
    named = replace(mask_secrets(config), name=config.name or f"evaluate-{folder.name}")
    return _run("predict", run_key(named, prints), config, evaluation, tokenizer, folder, prints, launcher, since)


def launcher_of(config: RunConfig) -> Launcher:
    """Return the launcher for what the configuration and this process's variables say of machines.

    Raises:
        ConfigError: see `nodes_of`.
    """
    nodes = nodes_of(config.launch, os.environ)
    return NodesLauncher(nodes) if nodes.count > 1 else LocalLauncher()


def _run(
    kind: str,
    key: str,
    config: RunConfig,
    splits: Mapping[str, "datasets.Dataset"],
    tokenizer: Any,
    weights: Path | None,
    fingerprints: dict[str, str],
    launcher: Launcher | None,
    since: float,
    stop_at_step: int | None = None,
    take: bool = False,
) -> JobResult:
    job = Job(
        kind=kind,
        run_key=key,
        config=config,
        labels=class_names(next(iter(splits.values()))),
        train="inputs/train" if "train" in splits else None,
        evaluation={name: f"inputs/{name}" for name in splits if name != "train"},
        tokenizer="inputs/tokenizer" if tokenizer is not None else None,
        weights="inputs/weights" if weights is not None else None,
        sizes={name: len(split) for name, split in splits.items()},
        fingerprints=fingerprints,
        decisive={
            **identity_config(config),
            "fingerprints": {name: fingerprints[name] for name in ("data", "weights")},
        },
        paths=user_paths(),
        stop_at_step=stop_at_step,
        origin=origin(),
    )
    claim = RunFolder(key).claim(since)
    folder = JobDir(claim.path)
    try:
        if claim.finished and folder.read_result() is not None and folder.holds(job):
            log.info("process %s has just finished this very run: its result is taken", claim.before["process"])
        elif take and _whole(folder, key):
            log.info("this very run is there already, trained to its end: its result is taken")
        else:
            for old in (folder.inputs, folder.outputs):
                shutil.rmtree(old, ignore_errors=True)
            write_inputs(folder, job, splits, tokenizer, weights)
            (launcher or launcher_of(config)).run(folder, config.compute)
        result = folder.read_result()
        assert result is not None, "a launcher raises where there is no result"
        history = folder.read_history()
        if result["status"] == "paused":
            claim.close()  # who goes on, may be this very process
        else:
            claim.finish()
    except BaseException as error:
        claim.close()
        if isinstance(error, OSError) and error.errno in UNWRITABLE:
            raise _cannot_write(folder.root, error) from error
        raise
    return JobResult(folder, {**result, "run_key": key, "run_folder": str(folder.root)}, history, claim)


def _whole(folder: JobDir, key: str) -> bool:
    """Whether a folder holds all that a run leaves at its end."""
    try:
        trained = (folder.read_result() or {}).get("status") == "completed" and folder.job.run_key == key
    except UserError:  # nothing that this version reads
        return False
    return trained and any(folder.model.glob("*.safetensors"))


def write_inputs(
    folder: JobDir, job: Job, splits: Mapping[str, "datasets.Dataset"], tokenizer: Any, weights: Path | None
) -> None:
    """Write everything that the workers need; `job.json`, which names it, comes last."""
    for name, split in splits.items():
        write_split(split, folder.inputs / name)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder.inputs / "tokenizer")
    adapter = Path(job.config.model.lora.adapter).expanduser() if job.config.model.lora.adapter else None
    for name, source in (("weights", weights), ("adapter", adapter)):
        if source is not None:
            (folder.inputs / name).mkdir()
            for file in models.model_files(source):  # and nothing else that lies there
                (folder.inputs / name / file.name).symlink_to(file.resolve())
    folder.write_job(job)


def _cannot_write(folder: Path, error: OSError) -> UserError:
    return UserError(f"cannot write to {folder}: {error.strerror or error} (SKYTUNE_HOME chooses another folder)")


def checkpoint_hash(folder: Path) -> str:
    """Return the hash of a trained model's weights and of what says how to build it; results beside it do not count."""
    files = [*sorted(folder.glob("*.safetensors")), folder / "config.json", folder / "skytune_model.json"]
    return models.hash_values([[file.name, models.hash_file(file)] for file in files if file.is_file()])


def read_predictions(job: JobDir, splits: list[str]) -> "datasets.DatasetDict":
    """Return what the workers predicted, memory-mapped, by split."""
    from datasets import Dataset, DatasetDict

    return DatasetDict({name: Dataset.from_file(str(job.predictions(name))) for name in splits})


def class_names(split: "datasets.Dataset") -> list[str]:
    """Return the names of the classes, or outputs, that a split's `labels` column carries; empty where it has none."""
    return label_names(split.features.get("labels"))


def data_hash(splits: Mapping[str, "datasets.Dataset"]) -> str:
    """Return the fingerprint of tokenized splits by name, as `job.json` has it under `fingerprints.data`."""
    import hashlib

    digest = hashlib.sha256()
    for name, split in sorted(splits.items()):
        digest.update(f"{name}:{content_hash(split.with_format('arrow')[:])}:{class_names(split)}".encode())
    return digest.hexdigest()[:16]


def _log_changes(key: str, config: RunConfig, prints: dict[str, str]) -> None:
    """Say in one line in what this run differs from the last one of the same name."""
    name = key.rpartition("-")[0]
    last = RunFolder(f".last-{name}.json").path
    now = {**flatten(to_dict(identity_config(config))), **{f"fingerprint of the {k}": v for k, v in prints.items()}}
    if last.is_file():
        before = read_json(last)
        changed = sorted(k for k in {*before, *now} if before.get(k) != now.get(k))
        if changed:
            shown = [f"{k} {before.get(k)} -> {now.get(k)}" if not k.startswith("finger") else k for k in changed[:4]]
            log.info("a new run (%s): %s%s", key, ", ".join(shown), ", ..." if len(changed) > 4 else "")
    try:
        write_json(last, now)
    except OSError as error:
        raise _cannot_write(last.parent, error) from error
