"""The room of tasks: what is learned from a row. Nobody else asks which task it is.

A task is one frozen object (`Task`) with six answers, made of plain functions in a file of its own:

columns   which columns of the table it reads (`Column`), and, by `arrange`, which rows cannot be used and why
targets   what is learned from each row: an object (see `skytune.data.targets.Targets`) found in the train split that
          encodes splits, names classes or outputs, gives the key to stratify by, and lays rows out as the model's
          inputs with a column `labels`: ClassLabel (a class a row), struct of float32 (numbers; the fields are their
          names), struct of bool (several classes), List(ClassLabel) (a class a token, -100: none)
model     which class of transformers has the head, what its configuration is told, and a loss where it is not the
          model's own (`skytune.models.Head`)
weigh     units of the loss of every row: rows, or tokens that count
collect   what is kept of each row of a batch that was predicted: a few numbers
score     what is said of a split: numbers, which of them stand first, sections for the report

`TASKS` is the one place that knows their names. `task._target_` names one of a user's own. What a task may import:
data, models and what is below; no ZenML.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..config import PACKAGED, ConfigError, DataConfig, ModelConfig, RunConfig, TaskConfig, UserError
from ..config.schema.task import AUTO
from ..config.targets import instantiate, locate
from ..data.columns import Column
from ..data.targets import Encoded, Reading, Targets
from ..models import SavedModel
from ..models.head import KINDS, Head
from . import causal_lm, image_classification, multi_label, regression, sft, text_classification, token_classification
from .choosing import choose
from .task import Collected, Scored, Scoring, Section, Shown, Task

log = logging.getLogger(__name__)

TASKS = {
    file.TASK.name: file.TASK
    for file in (
        text_classification,
        multi_label,
        regression,
        token_classification,
        image_classification,
        causal_lm,
        sft,
    )
}
"""By name."""


def find_task(config: TaskConfig) -> Task:
    """Return the task that a configuration names (`resolved`, or not `auto`).

    Raises:
        ConfigError: there is none of that name; `task._target_` is none.
    """
    if config._target_:
        found = locate(config._target_, "task._target_")
        if not isinstance(found, Task):
            found = instantiate(config._target_, config.args, key="task._target_")
        if not isinstance(found, Task):
            raise ConfigError(f"task._target_={config._target_}: is a {type(found).__name__}, not a skytune.tasks.Task")
        return found
    if config.name not in TASKS:
        raise ConfigError(f"task.name={config.name}: no such task; there are: auto, {', '.join(TASKS)}")
    return TASKS[config.name]


def chosen(config: TaskConfig, data: DataConfig, model: ModelConfig) -> Task:
    """Return the task that a configuration names, or, for `auto`, the one that columns and model ask for; say which."""
    if not config.is_auto:
        return find_task(config)
    name, why = choose(data, model)
    log.info("task: %s, because %s (task=NAME decides otherwise)", name, why)
    return TASKS[name]


def of_saved(saved: SavedModel, where: str) -> str:
    """Return the name of the task that a trained model was trained for; `auto` for a module of one's own.

    Args:
        where: the setting that names the model.

    Raises:
        UserError: it has another head than any task asks for.
    """
    if saved.target:
        return AUTO
    heads = {task.name: task.model(RunConfig(), saved.labels, None) for task in TASKS.values()}
    fitting = [name for name, head in heads.items() if head.auto == saved.auto]
    if not fitting:
        raise UserError(f"{where}: holds no trained classifier but a {KINDS[str(saved.auto)]}; train it first")
    told = [name for name in fitting if heads[name].settings.items() <= saved.values.items()]
    return next(iter([*told, *fitting]))


def resolved(config: RunConfig, features: Mapping[str, Any]) -> RunConfig:
    """Return the configuration with the task that a prepared split's features have in the place of `auto`, and with
    what follows from the task: `eval.metrics`, `checkpoint.metric`.

    Raises:
        ConfigError: a split that is no task's, or not the task's that is asked for; a metric that it does not have.
    """
    name, own = config.task.name, config.task._target_ is not None
    fitting = [task for task in TASKS.values() if task.fits(features)]
    if config.task.is_auto:
        if not fitting:
            raise ConfigError(f"task=auto: no task learns from labels of the type {features.get('labels')}")
        name = fitting[0].name
    task = find_task(replace(config.task, name=name))
    if not task.fits(features):
        other = f": they are {fitting[0].name}'s" if fitting else ""
        raise ConfigError(f"task={task.name} does not learn from the labels that the data was prepared with{other}")
    if not (config.augment.is_off or task.augments):
        raise ConfigError(f"augment.*: task={task.name} has no images; leave these keys out")
    if not (config.loss.is_plain or task.weighs_classes):
        raise ConfigError(f"loss.*: task={task.name} has a loss of its own; leave these keys out")
    if config.eval.threshold is not None and task.tune is None:
        raise ConfigError(f"eval.threshold={config.eval.threshold}: task={task.name} has no thresholds")
    metrics = list(task.metrics) if config.eval.metrics is None else config.eval.metrics
    known = (*task.metrics, *task.more_metrics)
    if lacking := [metric for metric in metrics if metric in PACKAGED and metric not in known]:
        raise ConfigError(f"eval.metrics: task={task.name} has no {lacking[0]}; it has: {', '.join(known)}")
    main = next(iter([*(m for m in task.metrics[:1] if m in metrics), *metrics]), "loss")
    checkpoint = config.checkpoint
    if checkpoint.metric == AUTO:
        checkpoint = replace(checkpoint, metric=main)
    return replace(
        config,
        task=config.task if own else replace(config.task, name=name),
        eval=replace(config.eval, metrics=metrics),
        checkpoint=checkpoint,
    )
