"""What ZenML keeps of a run: a name and tags by which a person finds it, the run key, commit and report that belong to
it; found by run key, and deleted with the run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zenml import add_tags, log_metadata
from zenml.enums import ModelStages
from zenml.metadata.metadata_types import Uri

from ..common.text import is_number, number
from ..config import RunConfig
from ..launch.origin import origin
from ..launch.run_dir import model_name, run_name

if TYPE_CHECKING:
    from uuid import UUID

    from zenml.client import Client

RUN_KEY = "run_key"
"""Metadata of a pipeline run, and of a step that ran the workers."""


def named(pipeline: Any, config: RunConfig) -> Any:
    """Return a pipeline whose runs are called after model and data, with all that is known before they begin."""
    model, data = Path(config.model._target_ or config.model.name).name, config.data._target_ or config.data.name
    if config.checkpoint.path:  # a trained model: called after its run; and the files that it is used on
        model, used = model_name(config.checkpoint.path), config.predict.input or config.data.test
        data = Path(used).name if used else data
        config = replace(config, name=config.name or f"{config.pipeline.value}-{model}")
    tags = [f"model:{model}", f"data:{data}"]
    return pipeline.with_options(run_name=f"{run_name(config)}-{{date}}-{{time}}", tags=tags, extra=origin())


def describe(run: Any, result: Mapping[str, Any], score: tuple[str, Any], report: Path | None) -> None:
    """Put onto a finished pipeline run what it is found by: its main number, run key, commit and report."""
    name, value = score
    if is_number(value):
        add_tags([f"{name}:{number(value)}"], run=run.id)
    found: dict[str, Any] = {**run.config.extra, **{key: result[key] for key in (RUN_KEY, "run_folder")}}
    if report is not None:
        found["report"] = Uri(report.as_uri())
    log_metadata(found, run_id_name_or_prefix=run.id)


@dataclass(frozen=True)
class ZenRecords:
    """The pipeline runs of a run key, and the artifacts that no other run made or used."""

    client: "Client"
    runs: "list[UUID]"
    artifacts: "dict[UUID, str]"
    """Where they lie, by id."""

    stages: list[str]
    """Stages that the run's model holds, with the model's name."""

    @property
    def folders(self) -> list[Path]:
        """The artifacts that lie on this machine."""
        return [Path(uri) for uri in self.artifacts.values() if "://" not in uri]

    def delete(self) -> None:
        """Delete all of it: the runs first, since ZenML deletes no artifact that one refers to. Of a deletion that was
        cut short, `zenml artifact prune` finds the artifacts that are left."""
        for run in self.runs:
            self.client.delete_pipeline_run(run)
        for artifact in self.artifacts:
            self.client.delete_artifact_version(artifact, delete_from_artifact_store=True)


def records_of(client: "Client", key: str) -> ZenRecords:
    """Return what ZenML has of a run."""
    found = {run.id for run in _all(client.list_pipeline_runs, run_metadata=f"{RUN_KEY}:{key}")}
    found |= {step.pipeline_run_id for step in _all(client.list_run_steps, run_metadata=f"{RUN_KEY}:{key}")}
    own: dict[UUID, str] = {}
    used: set[UUID] = set()
    for step in _all(client.list_run_steps, hydrate=True) if found else ():
        outputs = [version for versions in step.outputs.values() for version in versions]
        if step.pipeline_run_id in found:
            own |= {version.id: version.uri for version in outputs}
        else:
            used |= {version.id for version in outputs}
            used |= {version.id for versions in step.inputs.values() for version in versions}
    held = [
        f"{stage.value} of {version.model.name}"
        for stage in (ModelStages.PRODUCTION, ModelStages.STAGING)
        for version in _all(client.list_model_versions, stage=stage.value)
        if version.name.rpartition("-")[0] == key  # see `steps.model_versions.Version`
    ]
    return ZenRecords(client, sorted(found), {id_: uri for id_, uri in own.items() if id_ not in used}, held)


def _all(method: Any, **options: Any) -> list[Any]:
    """Return all entries of a list that comes in pages."""
    found, page, pages = [], 1, 1
    while page <= pages:
        got = method(page=page, size=500, **options)
        found += got.items
        page, pages = page + 1, got.total_pages
    return found
