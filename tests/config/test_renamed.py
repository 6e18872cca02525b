"""Former names of keys: taken for one release, and said."""

import logging
from pathlib import Path

import pytest

from skytune.config import ConfigError, RunConfig, to_dict
from skytune.config.compose import compose_run
from skytune.config.renamed import KEYS, VALUES, renamed_values, renamed_word
from skytune.job import read_json, write_json

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.mark.parametrize(
    ("word", "today"),
    [
        ("benchmark.factors.lr=[1,2]", "study.factors.lr=[1,2]"),
        ("++benchmark.prices={a: 1}", "++study.prices={a: 1}"),
        ("~benchmark.max_usd", "~study.max_usd"),
        ("compute.fast=off", "compute.packed=off"),
        ("checkpoint.asynchronous=false", "checkpoint.async_save=false"),
        ("pipeline=benchmark", "pipeline=study"),
        ("resume=must", "resume=required"),
        ("resume=s3://must", "resume=s3://must"),
        ("data.text=benchmark", "data.text=benchmark"),
        ("benchmarks.x=1", "benchmarks.x=1"),
        ("compute.fastest=1", "compute.fastest=1"),
        ("--help", "--help"),
    ],
)
def test_words_get_todays_names(word: str, today: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "skytune"):
        assert renamed_word(word) == today
    assert len(caplog.records) == (word != today), "one line for each that has another name"


def test_every_new_name_is_a_key() -> None:
    plain = to_dict(RunConfig())
    for new in KEYS.values():
        group = plain
        for name in new.split("."):
            group = group[name]
    for key, (_, now) in VALUES.items():
        assert key in plain and now


def test_a_command_with_former_names_is_composed() -> None:
    found = compose_run(CONFIGS, ["checkpoint.asynchronous=false", "compute.fast=off", "resume=must"])
    same = compose_run(CONFIGS, ["checkpoint.async_save=false", "compute.packed=off", "resume=required"])
    assert to_dict(found) == to_dict(same) and found.checkpoint.async_save is False


def test_a_configuration_that_an_earlier_release_wrote_is_read(tmp_path: Path) -> None:
    now = to_dict(RunConfig())
    now["study"]["name"], now["checkpoint"]["async_save"] = "mine", False
    was = {**now, "benchmark": now["study"], "resume": "must"}
    del was["study"]
    was["checkpoint"] = {("asynchronous" if k == "async_save" else k): v for k, v in now["checkpoint"].items()}
    write_json(tmp_path / "was.json", was)
    assert to_dict(RunConfig.parse(read_json(tmp_path / "was.json"))) == {**now, "resume": "required"}
    assert "benchmark" in was, "what is given is left as it is"


@pytest.mark.parametrize("values", [None, [], 3, {"checkpoint": 3}, {"checkpoint": None}, {"compute": []}])
def test_what_is_no_configuration_is_left_to_the_reader(values: object) -> None:
    assert renamed_values(values) == values


def test_a_preset_with_a_former_name_is_told_todays(tmp_path: Path) -> None:
    (tmp_path / "debug").mkdir()
    (tmp_path / "debug" / "mine.yaml").write_text("# @package _global_\ncheckpoint:\n  asynchronous: false\n")
    with pytest.raises(ConfigError, match=r"checkpoint\.async_save"):
        compose_run(CONFIGS, ["debug=mine"], extra_folder=tmp_path)
