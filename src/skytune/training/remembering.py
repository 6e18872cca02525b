"""Leaves in the store what another machine needs that has nothing but the store: see `checkpoint.recipe`."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import skytune

from .. import models
from ..config import UserError, to_dict
from ..job import Job, JobDir
from .checkpoint.recipe import Recipe, write_recipe
from .checkpoint.store import Store

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)


def remember(store: Store, jobdir: JobDir, job: Job, model: "torch.nn.Module") -> None:
    """Write the run's recipe beside its checkpoints; to be called by whoever holds the run's lease.

    A store that refuses costs the convenience, not the run: that is said, and training goes on.
    """
    # How this machine came to it is not part of the run.
    config = {**to_dict(job.config), "resume": "auto", "trust": False}
    recipe = Recipe(
        config=config,
        fingerprints={name: job.fingerprints[name] for name in ("data", "weights") if name in job.fingerprints},
        new_parameters=list(getattr(model, models.NEW, ())),
        written_by=skytune.__version__,
    )
    try:
        write_recipe(store, recipe, _start(jobdir, job))
    except UserError as error:
        log.warning("not written beside the checkpoints (only the whole command can go on from them): %s", error)


def refuse_empty_start(model: "torch.nn.Module", resumed_from: int | None, name: str) -> None:
    """Refuse to train weights that mean nothing: the model's own files are elsewhere, and no checkpoint was loaded.

    Raises:
        UserError: with the model's name.
    """
    if resumed_from is None and getattr(model, models.AWAITS, False):
        raise UserError(f"model.name={name}: is not on this machine, and there is no checkpoint to take weights from")


def _start(jobdir: JobDir, job: Job) -> dict[str, bytes]:
    """Return the model's configuration and its tokenizer's files."""
    found: list[Path] = []
    if job.tokenizer:
        found += (jobdir.root / job.tokenizer).iterdir()
    if not job.config.model._target_:
        folder = jobdir.root / job.weights if job.weights else None
        name, revision = job.config.model.name, job.config.model.revision
        found.append(Path(folder or models.fetch(name, revision, weights=False)) / "config.json")
    return {path.name: path.read_bytes() for path in found if path.is_file()}
