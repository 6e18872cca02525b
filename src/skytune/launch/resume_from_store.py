"""`resume=URL` alone: a run goes on from what lies in its store, on a machine that has nothing else of it.

    python src/run.py resume=hf://user/name
    python src/run.py resume=s3://bucket/runs/minilm-reviews-0123456789ab launch.num_processes=4

The configuration comes from the store. What the command line says goes before it, where that does not decide the
result; what decides the result must be the same. The data are prepared again from their source, and compared with those
of the run before training goes on.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import models
from ..checkpoint.manifest import step_name
from ..checkpoint.resume import Place, differences, is_finished, locate
from ..checkpoint.run_card import Recipe, fetch_start, read_recipe
from ..checkpoint.store import Store
from ..config import ConfigError, RunConfig, UserError
from ..config.folders import home
from .run_dir import RunFolder, identity_config

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Continued:
    """A run that lies in a store."""

    named: str
    """The place as the command line names it."""

    place: Place
    recipe: Recipe

    @property
    def store(self) -> Store:
        """The run's checkpoints."""
        return Store.open(self.place.store, self.place.run_key)

    def base(self) -> dict[str, Any]:
        """Return the values to which the command line is added: the run's own, with checkpoints in that store."""
        values = {**self.recipe.config, "resume": "auto", "trust": False}
        own = RunFolder(self.place.run_key).path / "checkpoints"
        url = None if Path(self.place.store) == own else self.place.store
        values["checkpoint"] = {**values["checkpoint"], "store": url}
        return values

    def adopt(self, config: RunConfig) -> RunConfig:
        """Return the configuration with which the run goes on.

        Args:
            config: the run's own, with what the command line says on top.

        Raises:
            UserError: the command line asks for something else that decides the result; nothing to go on from.
        """
        key, store = self.place.run_key, self.store
        other = differences(identity_config(config), identity_config(RunConfig.parse(self.base())))
        if other:
            more = f" (and {len(other) - 3} more)" if len(other) > 3 else ""
            raise UserError(f"resume={self.named}: is of another run, {key}: {'; '.join(other[:3])}{more}")
        if store.steps():
            step = f"/{step_name(self.place.step)}" if self.place.step is not None else ""
            return replace(config, resume=f"{self.place.store.rstrip('/')}/{key}{step}")
        if is_finished(store):
            raise UserError(f"resume={self.named}: the run {key} is finished, and its checkpoints are gone")
        return replace(config, resume="auto")  # it was stopped before its first checkpoint

    def prepare(self, config: RunConfig) -> None:
        """Say what is continued; where the initial model's files cannot be had here, let the store's stand in.

        Raises:
            UserError: the store's are damaged.
        """
        log.info("continuing %s: its configuration comes from %s", self.place.run_key, self.store.location)
        if not self.recipe.files or not models.lacks_files(config.model):
            return
        if config.model.lora.on:
            raise UserError(
                f"resume={self.named}: its checkpoints hold an adapter alone, and its base, model.name="
                f"{config.model.name}, is not on this machine: bring it here first (for a folder, to the same place)"
            )
        folder = home() / "fetched" / self.place.run_key
        fetch_start(self.store, self.recipe, folder)
        models.stand_in(config.model, str(folder), self.recipe.fingerprints["weights"], self.recipe.new_parameters)
        name = config.model.name
        log.info("model.name=%s is not on this machine: its architecture and tokenizer come from the store", name)


def find_stored_run(text: str) -> Continued | None:
    """Return the run that `resume=` means; None where the store does not say what the run is made of.

    Raises:
        UserError: no run there, or several; a store that cannot be read; a recipe that this version cannot use.
    """
    place = locate(text)
    if "://" not in place.store:
        place = replace(place, store=str(Path(place.store).expanduser().absolute()))
    recipe = read_recipe(Store.open(place.store, place.run_key))
    if recipe is None:
        return None
    found = Continued(text, place, recipe)
    try:
        RunConfig.parse(found.base())
    except (ConfigError, KeyError, TypeError) as error:
        raise UserError(
            f"resume={text}: the configuration in the store (written by version {recipe.written_by}) does not fit this "
            f"version: {error}"
        ) from error
    return found
