"""A configuration that a run brings along takes the place of `config.yaml`; the command line goes on top of it."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from skytune.config import ConfigError, RunConfig, to_dict
from skytune.config.compose import compose_run, parse_resume_path

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.fixture
def stored() -> dict[str, Any]:
    """A run that differs from the defaults in every kind of key."""
    words = [
        "data=sst2",
        "model=bert-base",
        "compute=cuda",
        "seed=7",
        "launch.num_processes=4",
        "optimizer.lr=1e-3",
        "+extra.price='a \\${b} c'",
        "+extra.nested.deep=[1,null,x]",
        "+callbacks.mine._target_=skytune.training.callbacks.base.Callback",
        "+callbacks.mine.indent=2",
        "max_steps=9",
    ]
    found: dict[str, Any] = to_dict(compose_run(CONFIGS, words))
    return found


def trusted(stored: dict[str, Any], *words: str) -> dict[str, Any]:
    """Compose on top of it; its callback is code, which is to be trusted."""
    return {**to_dict(compose_run(CONFIGS, ["trust=true", *words], base=stored)), "trust": False}


def test_alone_it_comes_out_as_it_went_in(stored: dict[str, Any]) -> None:
    assert stored["extra"]["price"] == "a ${b} c"
    assert trusted(stored) == stored
    assert stored != to_dict(RunConfig())


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (["compute=cpu"], {"compute.device": "cpu"}),
        (["seed=42", "log.every_steps=3"], {"seed": 42, "log.every_steps": 3}),  # the default's value is said, too
        (["callbacks.mine.indent=4"], {"callbacks.mine.indent": 4}),
        (["~callbacks.mine"], {"callbacks": {}}),
        (["+extra.more=1"], {"extra.more": 1}),
        (["resume=hf://me/name"], {"resume": "hf://me/name"}),
    ],
)
def test_what_the_command_line_says_goes_on_top(
    stored: dict[str, Any], words: list[str], changed: dict[str, Any]
) -> None:
    wanted = trusted(stored)
    for key, value in changed.items():
        *groups, last = key.split(".")
        inner = wanted
        for group in groups:
            inner = inner[group]
        inner[last] = value
    assert trusted(stored, *words) == wanted


def test_presets_change_what_they_name_and_no_more(stored: dict[str, Any]) -> None:
    found = compose_run(CONFIGS, ["trust=true", "data=files", "data.train=my.tsv", "debug=smoke"], base=stored)
    assert (found.data.source.value, found.data.train, found.seed) == ("files", "my.tsv", 7)
    assert (found.max_steps, found.cache, found.model.name) == (2, False, stored["model"]["name"])


def test_mistakes_are_told_as_ever(stored: dict[str, Any]) -> None:
    for word, message in (
        ("compute=gpu", "no such preset"),
        ("sed=1", "did you mean"),
        ("seed=x", "must be a whole number"),
    ):
        with pytest.raises(ConfigError, match=message):
            compose_run(CONFIGS, [word], base=stored)


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("resume=hf://me/name", "hf://me/name"),
        ("resume=s3://b/runs/minilm-x-0123456789ab", "s3://b/runs/minilm-x-0123456789ab"),
        ("seed=1 resume=./runs resume=/a/b", "/a/b"),
        ("resume='/a folder/b=c'", "/a folder/b=c"),
        ("resume=auto", None),
        ("resume=400", None),
        ("seed=1", None),
        ("resume=/a/b pipeline=evaluate checkpoint=/m", None),
    ],
)
def test_the_place_is_read_off_the_command_line(words: str, place: str | None) -> None:
    assert parse_resume_path(shlex.split(words)) == place
