"""What can be refused before ZenML is imported, which takes seconds."""

from pathlib import Path

from .. import data, models
from ..config import DataSource, Pipeline, RunConfig, UserError
from ..config.schema.tracking import check_trackers_installed
from ..config.targets import locate
from ..launch.predict_files import check_files
from ..release.destination import check_address
from ..release.results import run_of
from ..tasks import find_task
from ..tasks.trained import with_checkpoint


def validated(config: RunConfig) -> RunConfig:
    """Return the configuration with what it implies; look whether what it names is there. No hub is asked.

    Raises:
        UserError: it is not.
    """
    if config.pipeline in (Pipeline.study, Pipeline.search):  # their plans look
        return config
    if config.upload.url:
        check_address(config.upload.url)
    if config.pipeline in (Pipeline.publish, Pipeline.promote):
        if config.checkpoint.path:
            models.saved_model(config.checkpoint.path)
            run_of(config.checkpoint.path)
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
    if config.pipeline in (Pipeline.evaluate, Pipeline.predict, Pipeline.export):
        config = with_checkpoint(config)
    if not config.task.is_auto:
        find_task(config.task)
    if config.model._target_:
        model = locate(config.model._target_, "model._target_")
        getattr(model, "check_installed", lambda: None)()
    else:
        models.local_folder(config.model.name, "model.name")
    if config.model.tokenizer:
        models.local_folder(config.model.tokenizer, "model.tokenizer")
    if config.pipeline is Pipeline.predict:
        check_files(config.predict)
    elif config.data.source is not DataSource.hub:
        data.Source(config.data).fingerprint(config.eval.sets)
    return config
