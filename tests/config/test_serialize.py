"""Configuration to plain values and back, and whatever a person may type instead."""

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skytune.config import (
    METRICS,
    BatchConfig,
    CheckpointConfig,
    ConfigError,
    DataConfig,
    EvalConfig,
    LaunchConfig,
    LoaderConfig,
    ModelConfig,
    OptimizerConfig,
    OptimizerName,
    Pipeline,
    Precision,
    RunConfig,
    ScheduleConfig,
    ScheduleName,
    Select,
    from_dict,
    to_dict,
)
from skytune.config.help import field_type

counts = st.integers(1, 10**6)
text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
plain: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
groups = st.dictionaries(text, plain, max_size=3)


@st.composite
def configs(draw: st.DrawFn) -> RunConfig:
    """Any valid configuration."""
    size = draw(counts)
    evaluated = draw(st.booleans())
    return RunConfig(
        name=draw(text),
        seed=draw(st.integers(0, 2**32 - 1)),
        epochs=draw(counts),
        max_steps=draw(st.none() | counts),
        precision=draw(st.sampled_from(Precision)),
        cache=draw(st.booleans()),
        plugins=draw(st.lists(text, max_size=2)),
        pipeline=Pipeline.evaluate if evaluated else Pipeline.training,
        model=ModelConfig(
            name=draw(text), dropout=draw(st.none() | st.floats(0, 0.99)), _target_="a.b", args=draw(groups)
        ),
        data=DataConfig(
            text="text",
            label="label",
            fraction=draw(st.floats(0.01, 1)),
            max_rows=draw(st.none() | counts),
            labels=draw(st.none() | st.lists(text, min_size=2, max_size=4, unique=True)),
        ),
        batch=BatchConfig(global_size=size, micro_size=draw(st.none() | st.integers(1, size))),
        loader=LoaderConfig(num_workers=draw(st.integers(0, 8))),
        optimizer=OptimizerConfig(
            name=draw(st.sampled_from(OptimizerName)),
            lr=draw(st.floats(1e-9, 9)),
            clip_norm=draw(st.none() | st.just(1.0)),
        ),
        schedule=ScheduleConfig(name=draw(st.sampled_from(ScheduleName)), warmup_ratio=draw(st.floats(0, 0.99))),
        eval=EvalConfig(
            every_steps=draw(st.integers(0, 9)), metrics=draw(st.permutations(METRICS)), sets={"more": draw(text)}
        ),
        checkpoint=CheckpointConfig(select=draw(st.sampled_from(Select)), path=draw(text) if evaluated else None),
        launch=LaunchConfig(num_processes=draw(st.just("auto") | counts), threads=draw(st.none() | counts)),
        callbacks={name: {"_target_": "a.b", **draw(groups)} for name in draw(st.lists(text, max_size=2))},
        extra=draw(groups),
    )


@given(configs())
@settings(max_examples=60, deadline=None)
def test_round_trip_through_json(config: RunConfig) -> None:
    values = json.loads(json.dumps(to_dict(config)))
    again = from_dict(RunConfig, values)
    assert again == config
    assert to_dict(again) == values


def leaves(values: Any, prefix: str = "") -> list[str]:
    found: list[str] = []
    for name, value in values.items():
        found += leaves(value, f"{prefix}{name}.") if isinstance(value, dict) and value else [f"{prefix}{name}"]
    return found


KEYS = leaves(to_dict(RunConfig()))
RESULT = re.compile(r"(unknown key ')?(?P<key>\w+(\.\w+)*)")


@given(st.sampled_from(KEYS), plain | st.floats() | st.integers(-3, 3))
@settings(max_examples=400, deadline=None)
def test_any_value_at_any_key_is_taken_or_named(key: str, value: Any) -> None:
    """Either a valid configuration, or one line that starts with a key of the same group."""
    values: Any = value
    for part in reversed(key.split(".")):
        values = {part: values}
    try:
        config = from_dict(RunConfig, values)
    except ConfigError as error:
        message = str(error)
        found = RESULT.match(message)
        assert found, message
        field_type(found["key"])  # there is such a key
        assert "\n" not in message.replace(repr(value), "").replace(str(value), "")
    else:
        for leaf in KEYS:
            number = to_dict(config)
            for part in leaf.split("."):
                number = number[part]
            assert not isinstance(number, float) or math.isfinite(number), leaf


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochz": 1}, "unknown key 'epochz': did you mean epochs? (a key of your own: +extra.epochz=...)"),
        ({"optimizer": {"lrr": 1}}, "unknown key 'optimizer.lrr': did you mean optimizer.lr?"),
        ({"optimizer": {"qqq": 1}}, "unknown key 'optimizer.qqq': allowed: name, lr, weight_decay"),
        ({"epochs": "3"}, "epochs='3': must be a whole number"),
        ({"epochs": True}, "epochs=True: must be a whole number"),
        ({"cache": 1}, "cache=1: must be true or false"),
        ({"cache": "yes"}, "cache='yes': must be true or false"),
        ({"max_steps": 1.5}, "max_steps=1.5: must be a whole number or null"),
        ({"optimizer": {"lr": "fast"}}, "optimizer.lr='fast': must be a number"),
        ({"optimizer": {"lr": True}}, "optimizer.lr=True: must be a number"),
        ({"optimizer": 3}, "optimizer=3: must be a group of keys"),
        ({"optimizer": {"betas": [0.9, "x"]}}, "optimizer.betas[1]='x': must be a number"),
        ({"optimizer": {"name": "adam"}}, "optimizer.name='adam': must be one of adamw, sgd"),
        ({"eval": {"sets": {"more": 1}}}, "eval.sets.more=1: must be text"),
        ({"plugins": "mine"}, "plugins='mine': must be a list"),
        ({"extra": [1]}, "extra=[1]: must be a group of keys"),
    ],
)
def test_wrong_keys_and_types(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_dict(RunConfig, values)
    assert str(caught.value).startswith(message)


def test_numbers_widen_and_nothing_else() -> None:
    config = from_dict(RunConfig, {"optimizer": {"lr": 1}, "launch": {"num_processes": 2}})
    assert config.optimizer.lr == 1.0
    assert type(config.optimizer.lr) is float
    assert type(config.launch.num_processes) is int


def test_none_stays_none_and_types_stay() -> None:
    extra = {
        "none": None,
        "one": 1,
        "real": 1.0,
        "yes": True,
        "text": "None",
        "list": [None, "1", 1],
        "deep": {"a": None},
    }
    again = from_dict(RunConfig, json.loads(json.dumps(to_dict(RunConfig(extra=extra)))))
    assert again.extra == extra
    assert [type(value) for value in again.extra.values()] == [type(value) for value in extra.values()]
