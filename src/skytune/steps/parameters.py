"""What each step is given: its own config groups and the fingerprints of what it depends on, no more.

Everything here is part of ZenML's cache key of the step. Machine, launcher and logging are not here: a step reads them
from its run (`context.run_config`).
"""

from pathlib import Path
from typing import Any

from .. import models
from ..config import Pipeline, RunConfig, to_dict
from ..data import Source
from ..launch import checkpoint_hash, identity_config
from ..stacks.flavor import operator_of
from .context import EXTRA
from .fingerprints import fingerprints


def on(step: Any, config: RunConfig) -> Any:
    """Return the step with the whole configuration where the cache does not look, and caching as configured."""
    from zenml.config.cache_policy import CachePolicy

    # The code is in the fingerprints, without comments and docstrings.
    policy = CachePolicy(include_step_code=False)
    return step.with_options(extra={EXTRA: to_dict(config)}, enable_cache=config.cache, cache_policy=policy)


def elsewhere(step: Any, config: RunConfig) -> Any:
    """Return the step with the stack's step operator, where the stack has one and the run wants it."""
    from zenml.client import Client

    operator = operator_of(Client(), config.compute)
    return step.with_options(step_operator=operator) if operator else step


def for_load_data(config: RunConfig) -> dict[str, Any]:
    """Return the parameters of `load_data`. Of the model only what decides tokens is there."""
    model = to_dict(config.model)
    tokens = {key: model[key] for key in ("name", "revision", "tokenizer", "_target_", "args")}
    return {
        "data": to_dict(config.data),
        "model": tokens,
        "sets": dict(config.eval.sets),
        "seed": config.seed,
        "task": to_dict(config.task),
        "classes": models.saved_model(config.model.name).labels if config.pipeline is Pipeline.evaluate else None,
        "fingerprints": {
            "data": Source(config.data).fingerprint(config.eval.sets),
            "model": models.resolve(config.model).fingerprint,
            **fingerprints("load_data", config),
        },
    }


def for_train_model(config: RunConfig) -> dict[str, Any]:
    """Return the parameters of `train_model`."""
    prints = {"weights": models.resolve(config.model).fingerprint, **fingerprints("train_model", config)}
    return {"decisive": identity_config(config), "fingerprints": prints}


def for_evaluate_model(config: RunConfig) -> dict[str, Any]:
    """Return the parameters of `evaluate_model`."""
    prints = {"data": Source(config.data).fingerprint(config.eval.sets), **fingerprints("evaluate_model", config)}
    evaluation = {key: to_dict(config.eval)[key] for key in ("metrics", "extra_metrics")} | {"extra": config.extra}
    values: dict[str, Any] = {"evaluation": evaluation, "fingerprints": prints}
    if config.pipeline is Pipeline.evaluate:
        # No training stands before it: the weights, and the code that predicts, decide the result.
        prints["weights"] = checkpoint_hash(Path(config.model.name))
        prints["predict"] = fingerprints("train_model", config)["code"]
        evaluation["limit_eval_batches"] = config.limit_eval_batches
        evaluation["generate"] = [config.eval.generate, config.eval.max_new_tokens]
        evaluation["precision"] = config.precision.value
        values["checkpoint"] = config.checkpoint.path
    return values
