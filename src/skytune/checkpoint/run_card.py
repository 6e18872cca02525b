"""What a run is made of, beside its checkpoints: enough to go on for a machine that has nothing but the store.

    <store>/<run key>/run.json   configuration (no secrets), fingerprints of data and weights, which parameters were new
    <store>/<run key>/start/     the initial model's config.json and its tokenizer; the weights lie in every checkpoint

`run.json` is written last and holds the size and SHA-256 of what lies in `start`.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import skytune

from .. import models
from ..common.json import load_json
from ..common.paths import check_name, resolve_below
from ..config import UserError, to_dict
from ..job import Job, JobDir
from .manifest import RUN_FILE, FileEntry
from .store import Store, hash_blocks

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

SCHEMA = 1
START = "start"
"""Folder of what the initial model is built from."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What `run.json` holds."""

    config: dict[str, Any]
    """The whole configuration as plain values, secrets removed."""

    fingerprints: dict[str, str]
    """Hashes of the data, the initial weights and the code."""

    new_parameters: list[str]
    """Parameters of the initial model that no file of weights held."""

    written_by: str
    """Version of this package."""

    files: dict[str, FileEntry] = field(default_factory=dict)
    """What lies in `start`, by name."""


def write_recipe(store: Store, recipe: Recipe, start: Mapping[str, bytes]) -> bool:
    """Write the recipe and the files of `start`, unless the same lies there already; return whether it was written.

    Raises:
        UserError: the store cannot be written.
    """
    files = {name: hash_blocks([data]) for name, data in sorted(start.items())}
    values = {
        "schema": SCHEMA,
        "run_key": store.run_key,
        **asdict(recipe),
        "files": {name: asdict(entry) for name, entry in files.items()},
    }
    data = json.dumps(values, indent=1, sort_keys=True, ensure_ascii=False).encode()
    path = f"{store.run_key}/{RUN_FILE}"
    if store.read(path) == data:
        return False
    content = {f"{store.run_key}/{START}/{name}": start[name] for name in files} | {path: data}
    store.with_retry(lambda: store.backend.write_all(content), f"writing {RUN_FILE}")
    return True


def read_recipe(store: Store) -> Recipe | None:
    """Return the recipe of a run, None where there is none.

    Raises:
        UserError: the store cannot be read, or what is there is no recipe that this version reads.
    """
    data = store.read(f"{store.run_key}/{RUN_FILE}")
    if data is None:
        return None
    try:
        values = load_json(data, dict)
        schema = values.pop("schema")
        values.pop("run_key")
        if schema != SCHEMA:
            raise UserError(f"{store.location}/{RUN_FILE} has schema {schema}, this version reads {SCHEMA}")
        files = {check_name(name): FileEntry(**entry) for name, entry in values.pop("files").items()}
        recipe = Recipe(**values, files=files)
        if isinstance(recipe.config, dict) and isinstance(recipe.fingerprints, dict):
            return recipe
        raise ValueError("its configuration is none")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{store.location}/{RUN_FILE} is damaged ({error}): give the run's whole command, or delete it"
        ) from error


def fetch_start(store: Store, recipe: Recipe, folder: Path) -> None:
    """Bring the files of `start` into a folder of this machine.

    Raises:
        UserError: one is missing or not what the recipe says.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, wanted in recipe.files.items():
        target = resolve_below(folder, name)
        data = store.read(f"{store.run_key}/{START}/{name}")
        if data is None or hash_blocks([data]) != wanted:
            what = "is missing" if data is None else "is damaged"
            raise UserError(f"{store.location}/{START}/{name} {what}: give the run's whole command")
        target.write_bytes(data)


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


def check_weights_loaded(model: "torch.nn.Module", resumed_from: int | None, name: str) -> None:
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
