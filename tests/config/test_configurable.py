"""Things of the user's own: `@configurable` in every group, plugins, and import paths."""

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skytune.config import ConfigError, RunConfig
from skytune.config.help import help_text, presets
from skytune.config.targets import GROUPS, configurable, import_plugins, instantiate, locate, split_spec

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
Compose = Callable[..., RunConfig]


def test_a_model(compose: Compose, module: str) -> None:
    config = compose(f"plugins=[{module}]", "model=mine", "model.args.width=32")
    assert config.model._target_ == f"{module}.build"
    # What the package offers (the number of classes) is not frozen at the signature's default.
    assert config.model.args == {"width": 32, "activation": "relu"}
    made = instantiate(config.model._target_, config.model.args, offered={"num_labels": 5, "vocab_size": 9})
    assert made == {"width": 32, "activation": "relu", "num_labels": 5, "vocab_size": 9}


def test_data(compose: Compose, module: str) -> None:
    config = compose(f"plugins=[{module}]", "data=mine", "data.args.language=de")
    assert (config.data._target_, config.data.source.value) == (f"{module}.rows", "target")
    assert instantiate(config.data._target_, config.data.args) == (10, "de")


def test_an_optimizer(compose: Compose, module: str) -> None:
    config = compose(f"plugins=[{module}]", "optimizer=mine")
    assert config.optimizer._target_ == f"{module}.Sign"
    # The rate and the decay have keys of their own, which schedule and parameter groups read.
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (0.25, 0.5)
    assert config.optimizer.args == {"nesterov": False}
    assert compose(f"plugins=[{module}]", "optimizer=mine", "optimizer.lr=0.1").optimizer.lr == 0.1


def test_a_schedule(compose: Compose, module: str) -> None:
    config = compose(f"plugins=[{module}]", "schedule=mine", "schedule.args.floor=0.3")
    assert (config.schedule._target_, config.schedule.args) == (f"{module}.steps", {"floor": 0.3})
    assert instantiate(config.schedule._target_, config.schedule.args, 9, 10) == 0.3


@pytest.mark.parametrize("plus", ["", "+"])
def test_a_metric(compose: Compose, module: str, plus: str) -> None:
    config = compose(f"plugins=[{module}]", f"{plus}metric=mine", "eval.extra_metrics.mine.beta=3.0")
    assert config.eval.extra_metrics == {"mine": {"_target_": f"{module}.fbeta", "beta": 3.0}}
    target, args = split_spec(config.eval.extra_metrics["mine"])
    rows = {"predictions": [1], "references": [1]}
    assert instantiate(target, {**args, **rows}, offered={"logits": [[0.0]]}) == -3.0


@pytest.mark.parametrize("plus", ["", "+"])
def test_a_callback(compose: Compose, module: str, plus: str) -> None:
    config = compose(f"plugins=[{module}]", f"{plus}callback=mine", "callbacks.mine.greeting=hi")
    assert config.callbacks == {"mine": {"_target_": f"{module}.Greeter", "greeting": "hi"}}
    target, args = split_spec(config.callbacks["mine"])
    made = instantiate(target, args, offered={"config": config})
    assert (made.greeting, made.config) == ("hi", config)


def test_defaults_that_are_no_plain_values_stay_with_the_thing(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    name = f"{module}_more"
    (tmp_path / f"{name}.py").write_text(
        "from pathlib import Path\n"
        "from skytune.config.targets import configurable\n"
        "@configurable('model', 'odd')\n"
        "def build(inner=len, where=Path('x'), sizes=(1, 2), names={'a': None}, *more, rate=0.5, **rest): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    config = compose(f"plugins=[{name}]", "model=odd")
    assert config.model.args == {"sizes": [1, 2], "names": {"a": None}, "rate": 0.5}


def test_an_argument_of_the_wrong_type_is_named(compose: Compose, module: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.args\.width='wide': .*wide") as caught:
        compose(f"plugins=[{module}]", "model=mine", "model.args.width=wide")
    assert "typing" not in str(caught.value)


def test_all_groups_are_in_the_help(compose: Compose, module: str) -> None:
    import_plugins([module])
    found = presets(CONFIGS)
    assert {group for group in GROUPS if "mine" in found.get(group, {})} == set(GROUPS)
    shown = help_text([CONFIGS], RunConfig())
    for about in (
        "A small model of mine.",
        "A few rows of mine.",
        "Steps by sign.",
        "Down to a floor.",
        "F-beta.",
        "Says hello.",
    ):
        assert about in shown


def test_a_name_that_nobody_registered(compose: Compose, module: str) -> None:
    with pytest.raises(ConfigError, match="callback=other: no such preset; allowed: mine"):
        compose(f"plugins=[{module}]", "callback=other")


def test_plugins_from_the_environment(compose: Compose, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYTUNE_PLUGINS", f"json,{module}")
    config = compose("model=mine")
    assert config.plugins == ["json", module]  # the worker imports them too
    assert compose("plugins=[json]").plugins == ["json"]


def test_it_imports_where_there_is_no_hydra(module: str) -> None:
    """As on a machine that only trains: hydra, hydra-zen, omegaconf and zenml cannot be imported there."""
    code = (
        "import sys\n"
        "for name in ('hydra', 'hydra_zen', 'omegaconf', 'zenml', 'sky'): sys.modules[name] = None\n"
        f"from skytune.config.targets import import_plugins, locate\n"
        f"import_plugins(['{module}'])\n"
        f"print(locate('{module}.build')(width=3)['width'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout.strip()) == (0, "3"), done.stderr


def test_the_decorated_thing_is_itself(module: str) -> None:
    own = importlib.import_module(module)
    assert own.build(width=1)["width"] == 1
    assert isinstance(own.Greeter, type)


def test_refused_registrations(module: str) -> None:
    own = importlib.import_module(module)
    with pytest.raises(ConfigError, match="unknown group; allowed: model, data"):
        configurable("modle", "x")
    with pytest.raises(ConfigError, match="the name is taken by"):
        configurable("model", "mine")(own.rows)

    def inner() -> None: ...

    with pytest.raises(ConfigError, match="top of its module"):
        configurable("model", "inner")(inner)
    importlib.reload(own)  # the same thing again is no clash


def test_a_plugin_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad_plugin.py").write_text("raise RuntimeError('my fault')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="plugins: cannot import 'bad_plugin': RuntimeError: my fault"):
        import_plugins(["bad_plugin"])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nodots", "must be an import path like"),
        ("a.b c", "must be an import path like"),
        ("no_such_package_here.x", "no module 'no_such_package_here'"),
        ("json.nothing", "module 'json' has no 'nothing'"),
        ("json.decoder.JSONDecoder.nothing", "module 'json.decoder' has no 'nothing'"),
        ("bad_target.x", "importing 'bad_target' failed: No module named 'no_such_dependency'"),
        ("worse_target.x", "importing 'worse_target' failed: ZeroDivisionError"),
    ],
)
def test_import_paths_that_lead_nowhere(
    target: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad_target.py").write_text("import no_such_dependency\n")
    (tmp_path / "worse_target.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        locate(target, "model._target_")
    assert str(caught.value).startswith(f"model._target_={target}: ")
    assert message in str(caught.value)


def test_import_paths() -> None:
    from json.decoder import JSONDecoder

    assert locate("json.decoder.JSONDecoder") is JSONDecoder
    assert locate("json.decoder.JSONDecoder.decode") is JSONDecoder.decode


def target(a: int, b: int = 2, **rest: Any) -> tuple[int, int, dict[str, Any]]:
    return a, b, rest


def test_instantiate_gives_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skytune.config.targets.locate", lambda name, key: target)
    assert instantiate("a.b", {"a": 1}) == (1, 2, {})
    assert instantiate("a.b", {"a": 1}, offered={"b": 5, "c": 6}) == (1, 5, {})  # c was not asked for by name
    assert instantiate("a.b", {"a": 1, "b": 3}, offered={"b": 5}) == (1, 3, {})
    with pytest.raises(ConfigError, match="missing a required argument: 'a'"):
        instantiate("a.b", {})
