"""What can be refused before ZenML is imported, which takes seconds."""

from dataclasses import replace
from pathlib import Path

from .. import data, models
from ..config import DataSource, Pipeline, RunConfig, UserError, to_dict
from ..config.schema.tracking import check_trackers_installed
from ..config.targets import locate
from ..config.trust import approve, flat
from ..launch.predict_files import check_files
from ..release.destination import check_address
from ..release.results import run_of
from ..tasks import find_task, of_saved


def validated(config: RunConfig) -> RunConfig:
    """Return the configuration with what it implies; look whether what it names is there. No hub is asked.

    Raises:
        UserError: it is not.
    """
    if config.pipeline in (Pipeline.study, Pipeline.search):  # their plans look
        return config
    if config.upload.url:
        check_address(config.upload.url)
    if config.pipeline is Pipeline.publish:
        models.saved_model(str(config.checkpoint.path))
        run_of(str(config.checkpoint.path))
        return config
    if config.pipeline is Pipeline.training:
        check_trackers_installed(config.tracker)
        if config.model.lora.adapter:
            models.check_adapter(Path(config.model.lora.adapter).expanduser())
        place = Path(config.model.name).expanduser()
        if models.is_adapter(place):
            raise UserError(
                f"model.name={config.model.name}: is an adapter, not a model: model.name=BASE "
                f"model.lora.adapter={config.model.name} trains on, BASE being the model that it was trained on; "
                f"pipeline=merge checkpoint={config.model.name} makes one model of both"
            )
    config = _resolved(config)
    if not config.task.is_auto:
        find_task(config.task)
    if config.model._target_:
        locate(config.model._target_, "model._target_")
    else:
        models.local_folder(config.model.name, "model.name")
    if config.model.tokenizer:
        models.local_folder(config.model.tokenizer, "model.tokenizer")
    if config.pipeline is Pipeline.predict:
        check_files(config.predict)
    elif config.data.source is not DataSource.hub:
        data.Source(config.data).fingerprint(config.eval.sets)
    return config


def _resolved(config: RunConfig) -> RunConfig:
    """Return the configuration with what `pipeline=evaluate` and `predict` imply: the checkpoint's own tokenizer, or
    image processor and size of images.

    Raises:
        UserError: the checkpoint is no model.
    """
    if config.pipeline not in (Pipeline.evaluate, Pipeline.predict):
        return config
    saved = models.saved_model(str(config.checkpoint.path))
    if saved.target:
        own = [str(value).rpartition(".")[0] for key, value in flat(to_dict(config)) if key.endswith("_target_")]
        where = f"checkpoint={config.checkpoint.path}: its {models.TARGET_FILE}"
        approve({"model._target_": saved.target}, [*config.plugins, *own], config.trust, where)
    model = replace(config.model, name=saved.folder, revision=None, tokenizer=None)
    if saved.target:  # a network of the user's own; its tokenizer, where it has one, lies beside it all the same
        model = replace(model, _target_=saved.target, tokenizer=saved.folder if saved.tokenizer else None)
    trained_for = of_saved(saved, f"checkpoint={config.checkpoint.path}")
    if config.task.is_auto:
        config = replace(config, task=replace(config.task, name=trained_for))
    scored = config.data.test
    if config.pipeline is Pipeline.evaluate and scored and data.Source(config.data).is_file(scored):
        config = replace(config, data=replace(config.data, train=""))  # nothing has to be cut from it
    return replace(config, model=model, data=replace(config.data, image_size=None))
