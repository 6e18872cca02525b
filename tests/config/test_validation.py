"""Every rule of every group: refused with one line that starts with the key; and every field says what it means."""

import dataclasses
import typing
from typing import Any

import pytest

from skytune.config import ConfigError, RunConfig, from_dict
from skytune.config.help import field_docs

REFUSED = [
    "epochs=0",
    "epochs=-1",
    "max_steps=0",
    "limit_train_batches=0",
    "limit_eval_batches=-5",
    "seed=-1",
    f"seed={2**32}",
    "model.name=",
    "model.dropout=1.0",
    "model.dropout=-0.1",
    "data.fraction=0.0",
    "data.fraction=1.1",
    "data.max_rows=0",
    "data.max_length=3",
    "data.validation_fraction=0.0",
    "data.validation_fraction=0.5",
    "data.test_fraction=0.7",
    "batch.global_size=0",
    "batch.micro_size=0",
    "batch.micro_size=33",
    "batch.bucket_batches=0",
    "batch.pad_multiple=0",
    "loader.num_workers=-1",
    "optimizer.lr=0.0",
    "optimizer.lr=10.0",
    "optimizer.weight_decay=-0.1",
    "optimizer.momentum=-0.1",
    "optimizer.momentum=1.0",
    "optimizer.eps=0.0",
    "optimizer.eps=-1.0",
    "optimizer.clip_norm=0.0",
    "schedule.warmup_steps=-1",
    "schedule.warmup_ratio=1.0",
    "schedule.warmup_ratio=-0.1",
    "eval.every_epochs=-1",
    "eval.every_steps=-1",
    "eval.batch_size=0",
    "checkpoint.mode=most",
    "checkpoint.metric=nice",
    "log.every_steps=0",
    "log.every_seconds=-1.0",
    "launch.num_processes=0",
    "launch.num_processes=some",
    "launch.threads=0",
    "launch.timeouts.kill=0.0",
    "launch.timeouts.start=-1.0",
    "debug.profile_steps=-1",
]
"""One value that is wrong by itself; the rest of the configuration is the default."""

IMPOSSIBLE: list[tuple[str, dict[str, Any]]] = [
    ("data.source=target needs data._target_", {"data": {"source": "target"}}),
    ("data.args", {"data": {"args": {"a": 1}}}),
    ("data.labels=['a', 'a']", {"data": {"labels": ["a", "a"]}}),
    ("data.labels=['a']", {"data": {"labels": ["a"]}}),
    ("data.text", {"data": {"text": "x", "label": "x"}}),
    ("model.args", {"model": {"args": {"a": 1}}}),
    ("model.freeze_backbone=true", {"model": {"freeze_backbone": True, "pretrained": False}}),
    ("optimizer.args", {"optimizer": {"args": {"a": 1}}}),
    ("optimizer.betas=[0.9]", {"optimizer": {"betas": [0.9]}}),
    ("optimizer.betas=[0.9, 1.0]", {"optimizer": {"betas": [0.9, 1.0]}}),
    ("schedule.args", {"schedule": {"args": {"a": 1}}}),
    ("schedule.warmup_steps", {"schedule": {"warmup_steps": 1, "warmup_ratio": 0.2}}),
    ("eval.metrics: unknown metric 'acc'", {"eval": {"metrics": ["accuracy", "acc"]}}),
    ("eval.extra_metrics.mine: needs _target_", {"eval": {"extra_metrics": {"mine": {"beta": 1}}}}),
    ("eval.sets.test", {"eval": {"sets": {"test": "a.tsv"}}}),
    ("callbacks.mine: needs _target_", {"callbacks": {"mine": {}}}),
    ("callbacks.mine: needs _target_", {"callbacks": {"mine": {"_target_": 3}}}),
    ("pipeline=evaluate needs checkpoint=PATH", {"pipeline": "evaluate"}),
    ("checkpoint=PATH has no effect on training", {"checkpoint": {"path": "/x"}}),
    ("precision=fp16 is not supported on compute=cpu", {"precision": "fp16", "compute": {"device": "cpu"}}),
    ("checkpoint.metric=accuracy: not among", {"eval": {"metrics": ["f1"]}, "checkpoint": {"metric": "accuracy"}}),
]


@pytest.mark.parametrize("text", REFUSED)
def test_a_wrong_value_is_refused(text: str) -> None:
    key, _, written = text.partition("=")
    value: Any = written
    for kind in (float, int):
        try:
            value = kind(written)
        except ValueError:
            pass
    values: Any = value
    for part in reversed(key.split(".")):
        values = {part: values}
    with pytest.raises(ConfigError) as caught:
        from_dict(RunConfig, values)
    message = str(caught.value)
    assert message.startswith(key.split(".")[0])
    assert key in message
    assert "\n" not in message
    assert len(message) > len(text) + 5, "the message says what is allowed"


@pytest.mark.parametrize(("start", "values"), IMPOSSIBLE, ids=[start for start, _ in IMPOSSIBLE])
def test_an_impossible_combination_is_refused(start: str, values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        from_dict(RunConfig, values)
    assert str(caught.value).startswith(start)
    assert "\n" not in str(caught.value)


def test_combinations_that_are_possible() -> None:
    from_dict(RunConfig, {"pipeline": "evaluate", "checkpoint": {"path": "/x"}})
    from_dict(RunConfig, {"checkpoint": {"metric": "loss"}, "eval": {"metrics": []}})
    own_metrics = {"mine": {"_target_": "a.b"}}
    from_dict(
        RunConfig,
        {"checkpoint": {"metric": "mine"}, "eval": {"metrics": ["folder/of/it"], "extra_metrics": own_metrics}},
    )
    from_dict(
        RunConfig, {"optimizer": {"clip_norm": None}, "model": {"dropout": 0.0}, "schedule": {"warmup_ratio": 0.1}}
    )


def groups(cls: type, prefix: str = "") -> list[tuple[str, type]]:
    found = [(prefix, cls)]
    for name, hint in typing.get_type_hints(cls).items():
        if dataclasses.is_dataclass(hint):
            found += groups(typing.cast(type, hint), f"{prefix}{name}.")
    return found


@pytest.mark.parametrize(("prefix", "cls"), groups(RunConfig), ids=[cls.__name__ for _, cls in groups(RunConfig)])
def test_every_field_says_what_it_means(prefix: str, cls: type) -> None:
    docs = field_docs(cls)
    for entry in dataclasses.fields(cls):  # type: ignore[arg-type]
        assert docs.get(entry.name, "").endswith("."), f"{prefix}{entry.name} has no docstring that is a sentence"
        assert entry.kw_only
    assert cls.__doc__
