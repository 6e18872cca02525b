"""Versions of a model in ZenML's Model Control Plane: which one has a stage, and how another one gets it. One promotion
of a model at a time, on all machines that share the artifact store."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zenml import log_metadata
from zenml.client import Client
from zenml.exceptions import EntityExistsError
from zenml.model.utils import link_artifact_version_to_model_version

from ..checkpoint.lease import Lease, LeaseHeld, acquire
from ..checkpoint.store import Store
from ..config import UserError
from ..config.folders import home
from ..launch import checkpoint_hash
from ..launch.run_dir import slug
from ..models import saved_model


@dataclass(frozen=True)
class Version:
    """A run's model that is, or was, a version: the model's folder, the hash by which it is known whether that folder
    still holds it, and the name of the version that had the stage before, empty where none had."""

    name: str
    checkpoint: str
    weights: str
    replaced: str = ""

    @classmethod
    def of(cls, run_key: str, checkpoint: str) -> "Version":
        """Return what a run's model is as a version."""
        folder = Path(saved_model(checkpoint).folder).absolute()
        weights = checkpoint_hash(folder)
        return cls(f"{run_key}-{weights[:8]}", str(folder), weights)

    def check(self) -> None:
        """Make sure that the model still lies where it did.

        Raises:
            UserError: it does not.
        """
        folder = Path(self.checkpoint)
        if not folder.is_dir() or checkpoint_hash(folder) != self.weights:
            what = "its weights are others now" if folder.is_dir() else "that folder is gone"
            raise UserError(
                f"the version {self.name} lies in {self.checkpoint}, and {what}: put it back, or promote another model "
                "with promote.force=true, which compares nothing"
            )


@contextmanager
def one_at_a_time(model: str) -> Iterator[Lease]:
    """Hold the right to change a model's stages.

    Raises:
        UserError: somebody else has it.
    """
    place = str(Client().active_stack.artifact_store.path)
    shared = place.startswith("s3://") or "://" not in place
    store = Store.open(f"{place.rstrip('/')}/promotions" if shared else str(home() / "promotions"), slug(model))
    try:
        lease = acquire(store, uuid.uuid4().hex)
    except LeaseHeld as error:
        raise UserError(
            f"another promotion of {model} is under way (process {error.owner.pid} on {error.owner.host}): nothing was "
            "changed; run this command again when that one has ended"
        ) from error
    try:
        yield lease
    finally:
        lease.release()


def holder(model: str, stage: str) -> Version | None:
    """Return the version that has a stage; None where none has."""
    try:
        return _read(Client().get_model_version(model, stage), stage)
    except KeyError:
        return None


def give_stage(model: str, stage: str, version: Version, before: Version | None, lease: Lease) -> None:
    """Give a stage to a version, which is made where it is new; the one that has it is archived.

    Raises:
        UserError: somebody else has taken over meanwhile.
    """
    client = Client()
    try:
        client.create_model(model)
    except EntityExistsError:
        pass
    try:
        made = client.create_model_version(model, version.name)
    except EntityExistsError:
        made = client.get_model_version(model, version.name)
    known = {"checkpoint": version.checkpoint, "weights": version.weights}
    known[f"replaced_{stage}"] = before.name if before else ""
    log_metadata({**known}, model_name=model, model_version=version.name)
    for artifact in _artifacts(client, version.name.rpartition("-")[0]):
        link_artifact_version_to_model_version(artifact_version=artifact, model_version=made)
    lease.check(look=True)
    made.set_stage(stage, force=True)


def roll_back(model: str, stage: str, lease: Lease) -> tuple[Version, Version]:
    """Give a stage back to the version that had it before; return what had it, and what has it now.

    Raises:
        UserError: there is none, or it is gone.
    """
    now = holder(model, stage)
    if now is None:
        raise UserError(f"promote.rollback=true: no version of {model} is in {stage}")
    if not now.replaced:
        raise UserError(f"promote.rollback=true: {now.name} is the first that {model} had in {stage}")
    found = Client().get_model_version(model, now.replaced)
    before = _read(found, stage)
    before.check()
    lease.check(look=True)
    found.set_stage(stage, force=True)
    return now, before


def _read(version: Any, stage: str) -> Version:
    """Return what is known of a version.

    Raises:
        UserError: somebody else made it.
    """
    told = version.run_metadata
    if not {"checkpoint", "weights"} <= told.keys():
        raise UserError(f"the version {version.name} of {version.model.name} was not promoted by this command")
    return Version(version.name, told["checkpoint"], told["weights"], str(told.get(f"replaced_{stage}") or ""))


def _artifacts(client: Client, run_key: str) -> list[Any]:
    """Return the model as ZenML stores it, of the newest run of a key."""
    steps = client.list_run_steps(run_metadata=f"run_key:{run_key}", name="train_model", sort_by="desc:created", size=1)
    return [found for step in steps.items for found in client.get_run_step(step.id).outputs.get("model", ())]
