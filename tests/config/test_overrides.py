"""What may be written on the command line: changing, adding, taking away, choosing, and the short forms."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skytune.config import ConfigError, RunConfig

Compose = Callable[..., RunConfig]


def at(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config[part] if isinstance(config, dict) else getattr(config, part)
    return config


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("epochs=4", "epochs", 4),
        ("++epochs=4", "epochs", 4),
        ("optimizer.lr=1e-4", "optimizer.lr", 1e-4),
        ("optimizer.lr=1", "optimizer.lr", 1.0),
        ("max_steps=null", "max_steps", None),
        ("model.name=/a/b", "model.name", "/a/b"),
        ("model.revision=123", "model.revision", "123"),
        ("data.labels=[neg,pos]", "data.labels", ["neg", "pos"]),
        ("data.train=s3://bucket/*.csv", "data.train", "s3://bucket/*.csv"),
        ("data.text=my column", "data.text", "my column"),
        ("data.text='a, b'", "data.text", "a, b"),
        ("launch.num_processes=2", "launch.num_processes", 2),
        ("+extra.my_key=1", "extra", {"my_key": 1}),
        ("+extra.a.b=null", "extra", {"a": {"b": None}}),
        ("+extra.a={b: [1, x]}", "extra", {"a": {"b": [1, "x"]}}),
        ("++extra.my_key=1", "extra", {"my_key": 1}),
        ("+eval.sets.more=more.tsv", "eval.sets", {"more": "more.tsv"}),
        ("+callbacks.a._target_=b.C", "callbacks", {"a": {"_target_": "b.C"}}),
        ("name=", "name", ""),
        # What Hydra's own grammar cannot read is text all the same, where text is wanted.
        ("data.train=/data/müller.tsv", "data.train", "/data/müller.tsv"),
        ("data.text=Übersicht", "data.text", "Übersicht"),
        ("model.name=/models/lr=1", "model.name", "/models/lr=1"),
        ("data.train=it's.tsv", "data.train", "it's.tsv"),
    ],
)
def test_forms_that_set(compose: Compose, override: str, key: str, value: Any) -> None:
    found = at(compose(override), key)
    assert found == value
    assert type(found) is type(value)


def test_taking_away(compose: Compose) -> None:
    assert compose("+extra.a=1", "+extra.b=2", "~extra.a").extra == {"b": 2}
    assert compose("+extra.a=1", "~extra").extra == {}
    assert compose("~eval.sets").eval.sets == {}
    assert compose("~optimizer").optimizer.lr == 5e-5  # the group's preset goes, the typed defaults stay
    assert compose("~data").epochs == RunConfig().epochs
    assert compose("optimizer=sgd", "~schedule").optimizer.name.value == "sgd"


@pytest.mark.parametrize("group", ["model", "data", "optimizer", "schedule", "compute", "debug"])
def test_null_is_no_preset(compose: Compose, group: str) -> None:
    assert compose(f"{group}=null") == compose(f"~{group}")


def test_checkpoint_is_short_for_its_path(compose: Compose) -> None:
    for path in ("/models/a b=c,d", "owner/name", "it's", "/müller"):
        config = compose("pipeline=evaluate", f"checkpoint={path}")
        assert config.checkpoint.path == path
    assert compose("pipeline=evaluate", "checkpoint='/x'").checkpoint.path == "/x"
    assert compose("pipeline=evaluate", "checkpoint.path=/x").checkpoint.path == "/x"


def test_debug_forms(compose: Compose) -> None:
    assert compose("debug=").debug.traceback
    assert compose("debug=smoke", "max_steps=5").max_steps == 5
    assert compose("data=sst2", "debug=smoke").data.max_rows == 64
    assert compose("debug=null") == compose()
    assert compose("debug.traceback=true") == compose("debug=")


def test_the_last_one_wins(compose: Compose) -> None:
    assert compose("epochs=1", "epochs=2").epochs == 2
    assert compose("data=sst2", "epochs=7").epochs == 7
    assert compose("epochs=7", "data=sst2").epochs == 7  # keys win over presets wherever they stand


@pytest.mark.parametrize(
    ("override", "start", "holds"),
    [
        ("data=[sst2]", "data=['sst2']", "name one preset"),
        ("epcohs=1", "unknown key 'epcohs'", "did you mean epochs?"),
        ("model.nmae=x", "unknown key 'model.nmae'", "model.name"),
        ("modle=minilm", "unknown key 'modle'", "model"),
        ("model.name.x=1", "unknown key 'model.name.x'", "not a group"),
        ("+epochs=3", "'+epochs=3'", "epochs is there already; write epochs=3"),
        ("+nokey=3", "unknown key 'nokey'", "+extra.nokey"),
        ("++nokey=3", "unknown key 'nokey'", "+extra.nokey"),
        ("extra.a=1", "unknown key 'extra.a'", "+extra.a="),
        ("~epochs", "'~epochs'", "fixed key"),
        ("~model.name", "'~model.name'", "set it"),
        ("~extra.a", "~extra.a", "no such key"),
        ("~nokey", "unknown key 'nokey'", "allowed"),
        ("epochs=two", "epochs='two'", "a whole number"),
        ("epochs=null", "epochs", "a whole number"),
        ("epochs=", "epochs=''", "a whole number"),
        ("epochs={a: 1}", "epochs={'a': 1}", "a whole number"),
        ("epochs=0", "epochs=0", "at least 1"),
        ("optimizer.lr=nan", "optimizer.lr=nan", "a number"),
        ("data.labels=pos", "data.labels='pos'", "a list"),
        ("precision=fp64", "precision='fp64'", "auto, fp32, tf32, bf16, fp16, fp8"),
        ("model=nope", "model=nope", "bart-base, bert-base"),
        ("debug=nope", "debug=nope", "overfit, profile, smoke"),
        ("optimizer={lr: 1}", "optimizer={'lr': 1}", "optimizer.KEY="),
        ("optimizer=[adamw,sgd]", "optimizer=['adamw', 'sgd']", "adamw, sgd"),
        ("model@batch=minilm", "'model@batch=minilm'", "group=name"),
        ("+model@batch=minilm", "'+model@batch=minilm'", "group=name"),
        ("epochs=1,2", "'epochs=1,2'", "one value at a time"),
        ("epochs=range(1,3)", "'epochs=range(1,3)'", "one value at a time"),
        ("model=minilm,bert-base", "'model=minilm,bert-base'", "one value at a time"),
        ("hydra.run.dir=/x", "'hydra.run.dir=/x'", "no effect"),
        ("+hydra.job.name=x", "'+hydra.job.name=x'", "no effect"),
        ("noequals", "cannot read 'noequals'", "key=value"),
        ("=3", "cannot read '=3'", "key=value"),
        ("epochs=1\n2", "cannot read 'epochs=1 2'", "key=value"),
        ("name=${nope}", "name", "nope"),
        ("name=${oc.env:SKYTUNE_NO_SUCH_VARIABLE}", "name", "SKYTUNE_NO_SUCH_VARIABLE"),
        ("plugins=[no_such_module]", "plugins: cannot import 'no_such_module'", "ModuleNotFoundError"),
    ],
)
def test_what_is_refused_explains_itself(compose: Compose, override: str, start: str, holds: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(override)
    message = str(caught.value)
    assert message.startswith(start)
    assert holds in message
    assert "\n" not in message
    assert "hydra" not in message.lower() or "hydra" in override


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Presets of the user's own."""
    own = tmp_path / "own"
    for group in ("model", "data", "experiment"):
        (own / group).mkdir(parents=True)
    (own / "model" / "tiny.yaml").write_text("# python src/run.py model=tiny\n# a tiny one\nname: /tiny  # folder\n")
    (own / "data" / "tweets.yaml").write_text(
        "# python src/run.py data=tweets\n# tweets\n"
        "epochs: 9  # many\ndata:\n  source: files  # a file\n  train: t.tsv  # it\n"
    )
    (own / "experiment" / "first.yaml").write_text(
        "# python src/run.py experiment=first\n# the first\nseed: 7  # seven\nplugins: [json]  # mine\n"
        "optimizer:\n  lr: 0.5  # much\n"
    )
    return own


def test_presets_of_ones_own(compose: Compose, folder: Path) -> None:
    config = compose("model=tiny", "data=tweets", extra_folder=folder)
    assert (config.model.name, config.data.train, config.epochs) == ("/tiny", "t.tsv", 9)
    assert compose("model=bert-base", extra_folder=folder).model.name == "google-bert/bert-base-uncased"
    with pytest.raises(ConfigError, match=r"model=huge: no such preset; allowed: .*minilm.*tiny"):
        compose("model=huge", extra_folder=folder)


@pytest.mark.parametrize("override", ["experiment=first", "+experiment=first"])
def test_an_experiment_sets_keys_of_any_group(compose: Compose, folder: Path, override: str) -> None:
    config = compose(override, "optimizer=sgd", extra_folder=folder)
    assert (config.seed, config.optimizer.lr, config.optimizer.momentum) == (7, 0.5, 0.9)
    assert config.plugins == ["json"]
    assert compose(override, "seed=8", extra_folder=folder).seed == 8


def test_a_preset_with_a_mistake_is_named(compose: Compose, folder: Path) -> None:
    (folder / "model" / "typo.yaml").write_text("# python src/run.py model=typo\nnmae: x\n")
    (folder / "model" / "broken.yaml").write_text("# python src/run.py model=broken\nname: [x\n")
    for name in ("typo", "broken"):
        with pytest.raises(ConfigError) as caught:
            compose(f"model={name}", extra_folder=folder)
        assert f"model/{name}" in str(caught.value) or "model.nmae" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_no_such_config_dir(compose: Compose, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--config-dir .*nowhere: no such folder"):
        compose(extra_folder=tmp_path / "nowhere")


def test_to_yaml_composes_back(compose: Compose) -> None:
    import yaml

    from skytune.config import from_dict
    from skytune.config.compose import to_yaml

    config = compose("+extra.a=null", "data=sst2", "eval.metrics=[accuracy]")
    assert from_dict(RunConfig, yaml.safe_load(to_yaml(config))) == config
