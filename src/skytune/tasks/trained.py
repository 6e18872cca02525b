"""What a trained model implies for the configuration that uses it."""

from dataclasses import replace

from .. import data, models
from ..config import Pipeline, RunConfig, to_dict
from ..config.trust import approve, flat
from . import of_saved


def with_checkpoint(config: RunConfig) -> RunConfig:
    """Return the configuration with the model `checkpoint=PATH`, its own tokenizer (or image processor and
    size of images) and its task.

    Raises:
        UserError: the checkpoint is no model, or wants to run code that nobody has allowed.
    """
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
    if config.pipeline in (Pipeline.evaluate, Pipeline.export) and scored and data.Source(config.data).is_file(scored):
        config = replace(config, data=replace(config.data, train=""))  # nothing has to be cut from it
    return replace(config, model=model, data=replace(config.data, image_size=None))
