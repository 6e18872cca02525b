"""What a file names is called only where the command names its module too, or says `trust=true`."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from skytune.config import RunConfig, UserError, to_dict
from skytune.config.cli_grammar import verbatim
from skytune.config.compose import compose_run
from skytune.config.trust import approve

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
OWN = """
import os
from subprocess import Popen
from torch.nn import Linear, Module
from torch.optim import Optimizer

class Net(Module): ...
class Rate(Optimizer): ...
class Hook:
    def on_step_end(self, run): ...
class Score:
    def compute(self, predictions, references): ...
class Nothing: ...
def make(): ...
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_trust.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_trust"


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that leaves a file when it is imported."""
    (tmp_path / "evil_trust.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Hook: on_step_end = 1"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "ran"


def stored(**groups: Any) -> dict[str, Any]:
    values = to_dict(RunConfig())
    for key, value in groups.items():
        values[key] = {**values[key], **value} if isinstance(value, dict) else value
    return values


@pytest.mark.parametrize(
    ("groups", "wish"),
    [
        ({"callbacks": {"x": {"_target_": "evil_trust.Hook"}}}, "callbacks.x._target_=evil_trust.Hook"),
        ({"data": {"_target_": "os.system", "source": "target"}}, "data._target_=os.system"),
        ({"model": {"_target_": "evil_trust.Hook"}}, "model._target_=evil_trust.Hook"),
        ({"optimizer": {"_target_": "evil_trust.Hook"}}, "optimizer._target_=evil_trust.Hook"),
        ({"schedule": {"_target_": "skytune.job.write_json"}}, "schedule._target_=skytune.job.write_json"),
        (
            {"eval": {"extra_metrics": {"m": {"_target_": "posix.system"}}}},
            "eval.extra_metrics.m._target_=posix.system",
        ),
        ({"eval": {"metrics": ["accuracy", "/tmp/evil"]}}, "eval.metrics=[/tmp/evil]"),
        ({"plugins": ["evil_trust"]}, "plugins=[evil_trust]"),
        ({"upload": {"url": "s3://evil/x"}}, "upload.url=s3://evil/x"),
        ({"launch": {"hosts": ["-oProxyCommand=x"]}}, "launch.hosts=[-oProxyCommand=x]"),
    ],
)
def test_what_a_store_wants_is_refused_and_listed(evil: Path, groups: dict[str, Any], wish: str) -> None:
    with pytest.raises(UserError) as refused:
        compose_run(CONFIGS, ["resume=/some/store"], base=stored(**groups))
    message = str(refused.value)
    assert (
        message.startswith("resume=/some/store: ")
        and wish in message
        and "trust=true" in message
        and "\n" not in message
    )
    assert not evil.exists()
    allowed = compose_run(CONFIGS, ["trust=true"], base=stored(upload={"url": "s3://mine/x"}))
    assert allowed.upload.url == "s3://mine/x" and allowed.trust


def test_modules_that_the_command_names_are_enough(own: str) -> None:
    base = stored(callbacks={"mine": {"_target_": f"{own}.Hook"}}, optimizer={"_target_": "torch.optim.NAdam"})
    assert compose_run(CONFIGS, [f"plugins=[{own}]"], base=base).optimizer._target_ == "torch.optim.NAdam"
    assert compose_run(CONFIGS, [f"callbacks.mine._target_={own}.Hook"], base=base).callbacks
    assert not compose_run(CONFIGS, ["~callbacks.mine"], base=base).callbacks
    with pytest.raises(UserError, match=r"callbacks.mine._target_=own_trust.Hook"):
        compose_run(CONFIGS, ["plugins=[json]"], base=base)
    # What a module has only imported is not its own.
    with pytest.raises(UserError, match="comes from subprocess"):
        compose_run(CONFIGS, [f"plugins=[{own}]"], base=stored(data={"_target_": f"{own}.Popen", "source": "target"}))


@pytest.mark.parametrize(
    ("key", "right", "wrong"),
    [
        ("model._target_", ["Net", "make"], ["Hook", "os.system", "Popen", "os"]),
        ("optimizer._target_", ["Rate", "make"], ["Net", "os.system"]),
        ("callbacks.x._target_", ["Hook", "make"], ["Nothing", "os.system"]),
        ("eval.extra_metrics.x._target_", ["Score", "make"], ["Nothing", "os.system"]),
        ("schedule._target_", ["make"], ["Nothing", "os.system"]),
        ("data._target_", ["make", "Nothing"], ["os.system", "os.environ"]),
    ],
)
def test_even_what_is_trusted_must_be_of_its_kind(own: str, key: str, right: list[str], wrong: list[str]) -> None:
    for name in right:
        approve({key: f"{own}.{name}"}, [own], False, "file")
    for name in wrong:
        with pytest.raises(UserError, match=r"that is no|comes from"):
            approve({key: f"{own}.{name}"}, [own], True, "file")
    with pytest.raises(UserError, match="has no 'System'"):
        approve({"optimizer._target_": "torch.optim.System"}, [], False, "file")


def test_trust_is_said_on_the_command_line_alone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"trust=true: give it on the command line"):
        compose_run(CONFIGS, [], base=stored(trust=True))
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "sly.yaml").write_text("# @package _global_\ntrust: true\n")
    with pytest.raises(UserError, match=r"trust=true: give it on the command line"):
        compose_run(CONFIGS, ["experiment=sly"], tmp_path)


@given(st.text(alphabet="\\${}a:,.b'\"", max_size=12))
def test_no_value_of_a_store_is_an_interpolation(text: str) -> None:
    config = OmegaConf.create(verbatim({"key": text}))
    assert OmegaConf.to_container(config, resolve=True) == {"key": text}
