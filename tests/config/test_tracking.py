"""Trackers by name: what a command may ask for, what is refused, and that none of it decides a result."""

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import pytest

from skytune.config import ConfigError, RunConfig, UserError, from_dict, to_dict
from skytune.config.schema.tracking import EXTRAS, TrackerConfig, WandbConfig, WandbMode, check_trackers_installed


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], ["tensorboard"]),
        (["tracker=tensorboard"], ["tensorboard"]),
        (["tracker=wandb"], ["wandb"]),
        (["tracker=tensorboard-wandb"], ["tensorboard", "wandb"]),
        (["tracker.names=[wandb,auto,tensorboard]"], ["wandb", "tensorboard"]),
        (["tracker=tensorboard-wandb", "tracker.wandb.mode=disabled"], ["tensorboard"]),
        (["tracker=none"], []),
        (["tracker=null"], []),
        (["tracker.names=[]"], []),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, list) else "",
)
def test_which_trackers_a_command_means(words: list[str], wanted: list[str], compose: Callable[..., RunConfig]) -> None:
    assert compose(*words).tracker.wanted() == wanted


def test_wandb_mode_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert TrackerConfig(names=["wandb"]).wanted() == []
    assert TrackerConfig(names=["wandb"], wandb=WandbConfig(mode=WandbMode.offline)).wanted() == ["wandb"]
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert WandbConfig().effective_mode() == "offline"


def test_what_wandb_is_told(compose: Callable[..., RunConfig]) -> None:
    config = compose(
        "tracker=wandb",
        "tracker.wandb.project=p",
        "tracker.wandb.mode=offline",
        "+tracker.wandb.args.tags=[a,b]",
        "+tracker.wandb.args.notes='two words'",
        "+tracker.wandb.args.job_type=train",
        "+tracker.wandb.args.settings.x=1",
    ).tracker.wandb
    assert config == WandbConfig(
        project="p",
        mode=WandbMode.offline,
        args={"tags": ["a", "b"], "notes": "two words", "job_type": "train", "settings": {"x": 1}},
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"names": ["tensorbored"]},
            r"tracker.names: unknown tracker 'tensorbored'; allowed: auto, tensorboard, wandb",
        ),
        ({"dir": ""}, "tracker.dir is empty"),
        ({"wandb": {"mode": "on"}}, r"tracker.wandb.mode='on': must be one of online, offline, disabled or null"),
        ({"wandb": {"tags": ["a"]}}, "unknown key 'tracker.wandb.tags': did you mean tracker.wandb.args"),
        ({"wandb": {"args": {"project": "p"}}}, r"args.project: has a key of its own, tracker.wandb.project"),
        ({"wandb": {"args": {"resume": "must"}}}, r"tracker.wandb.args.resume: the run decides it"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_dict(RunConfig, {"tracker": values})


def test_a_tracker_asked_for_by_name_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default goes on without; it says so when it starts."""
    monkeypatch.setattr("skytune.config.schema.tracking.find_spec", lambda name: None)
    check_trackers_installed(TrackerConfig())
    check_trackers_installed(TrackerConfig(names=[]))
    check_trackers_installed(TrackerConfig(names=["wandb"], wandb=WandbConfig(mode=WandbMode.disabled)))
    for name, extra in EXTRAS.items():
        with pytest.raises(UserError) as refused:
            check_trackers_installed(TrackerConfig(names=["auto", name]))
        assert f"tracker={name}: the package {name} is not installed" in str(refused.value)
        assert f"-e '.[{extra}]'" in str(refused.value) and "\n" not in str(refused.value)


def test_looking_for_a_package_does_not_import_it() -> None:
    if importlib.util.find_spec("wandb") is None or "wandb" in sys.modules:
        pytest.skip("wandb is not installed, or imported already")
    check_trackers_installed(TrackerConfig(names=["wandb"]))
    assert "wandb" not in sys.modules


def test_trackers_decide_nothing() -> None:
    from skytune.launch.run_dir import identity_config, run_key

    plain = RunConfig()
    other = from_dict(
        RunConfig, {"tracker": {"names": ["wandb"], "dir": "/x", "wandb": {"mode": "offline", "args": {"tags": ["a"]}}}}
    )
    assert identity_config(plain) == identity_config(other) and run_key(plain, {}) == run_key(other, {})
    assert from_dict(RunConfig, to_dict(other)) == other


def test_help_explains_the_keys_of_a_group_inside_a_group(compose: Callable[..., RunConfig]) -> None:
    from skytune.config.help import help_text

    text = help_text([], compose())
    assert "tracker.wandb.project=null" in text and "\n  tracker.wandb: " in text and "tracker.names=[auto]" in text
