"""What each step is given, and with that its cache key: its own groups, no more."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from skytune.config import Pipeline, RunConfig, from_dict
from skytune.steps.cache import _there
from skytune.steps.context import EXTRA, named_sets
from skytune.steps.parameters import for_evaluate_model, for_load_data, for_train_model, on

MAKERS = {"load_data": for_load_data, "train_model": for_train_model, "evaluate_model": for_evaluate_model}


@pytest.fixture
def values(tiny_model: Path, tmp_path: Path) -> dict[str, Any]:
    """A configuration of files that are there."""
    (tmp_path / "rows.csv").write_text("text,label\na good film,1\na bad film,0\n")
    (tmp_path / "more.csv").write_text("text,label\na dull plot,0\n")
    return {
        "model": {"name": str(tiny_model)},
        "data": {"source": "files", "train": str(tmp_path / "rows.csv")},
        "eval": {"sets": {"more": str(tmp_path / "more.csv")}},
    }


def made(values: dict[str, Any], **groups: Any) -> dict[str, str]:
    """Return every step's parameters as text."""
    merged = {**values}
    for key, value in groups.items():
        merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
    config = from_dict(RunConfig, merged)
    return {step: json.dumps(make(config), sort_keys=True) for step, make in MAKERS.items()}


def keys(value: Any) -> set[str]:
    if not isinstance(value, dict):
        return set()
    return set(value) | {key for inner in value.values() for key in keys(inner)}


def test_machine_launcher_loader_and_log_are_never_part_of_a_cache_key(values: dict[str, Any]) -> None:
    for make in MAKERS.values():
        assert not keys(make(from_dict(RunConfig, values))) & {"compute", "launch", "loader", "log"}
    plain = made(values)
    elsewhere = made(
        values,
        compute={"device": "cpu"},
        launch={"num_processes": 4, "threads": 3},
        loader={"num_workers": 2},
        log={"every_steps": 1},
        cache=False,
        name="other",
        batch={"micro_size": 2},
        debug={"traceback": True, "profile_steps": 3},
    )
    assert elsewhere == plain


@pytest.mark.parametrize(
    ("groups", "changed"),
    [
        ({"optimizer": {"lr": 1e-4}}, {"train_model"}),
        ({"schedule": {"name": "cosine"}}, {"train_model"}),
        ({"epochs": 2}, {"train_model"}),
        ({"max_steps": 2}, {"train_model"}),
        ({"batch": {"global_size": 8}}, {"train_model"}),
        ({"model": {"dropout": 0.3}}, {"train_model"}),
        ({"model": {"pretrained": False}}, {"train_model"}),
        ({"precision": "bf16"}, {"train_model"}),
        ({"checkpoint": {"metric": "loss"}}, {"train_model"}),
        ({"seed": 1}, {"load_data", "train_model"}),
        ({"data": {"max_rows": 1}}, {"load_data"}),
        ({"data": {"bad_rows": "drop"}}, {"load_data"}),
        ({"eval": {"metrics": ["accuracy"]}}, {"evaluate_model"}),
        ({"eval": {"extra_metrics": {"mine": {"_target_": "json.dumps"}}}}, {"evaluate_model"}),
        ({"extra": {"note": "mine"}}, {"evaluate_model"}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_each_key_reaches_the_steps_that_it_decides(
    values: dict[str, Any], groups: dict[str, Any], changed: set[str]
) -> None:
    plain, other = made(values), made(values, **groups)
    assert {step for step in MAKERS if plain[step] != other[step]} == changed


def test_changed_files_reach_the_steps(values: dict[str, Any]) -> None:
    plain = made(values)
    Path(values["eval"]["sets"]["more"]).write_text("text,label\na nice plot,1\n")
    assert {step for step, text in made(values).items() if text != plain[step]} == {"load_data", "evaluate_model"}
    plain = made(values)
    with Path(values["data"]["train"]).open("a") as file:
        file.write("a fine cast,1\n")
    assert {step for step, text in made(values).items() if text != plain[step]} == {"load_data", "evaluate_model"}


def test_an_evaluation_without_training_knows_its_weights(
    values: dict[str, Any], tiny_model: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    own = {"pipeline": "evaluate", "checkpoint": {"path": str(model)}, "model": {"name": str(model)}}
    config = from_dict(RunConfig, {**values, **own})
    assert config.pipeline is Pipeline.evaluate
    found = for_evaluate_model(config)
    assert found["checkpoint"] == str(model)
    assert {"weights", "predict", "data", "code", "versions"} <= set(found["fingerprints"])
    assert found["evaluation"]["precision"] == "auto"
    (model / "test_results.json").write_text("{}")  # what an evaluation leaves beside the weights does not count
    assert for_evaluate_model(config) == found
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    assert for_evaluate_model(config)["fingerprints"]["weights"] != found["fingerprints"]["weights"]
    trained = for_evaluate_model(from_dict(RunConfig, values))
    assert "checkpoint" not in trained and "weights" not in trained["fingerprints"]


def test_a_step_gets_the_whole_configuration_where_the_cache_does_not_look(values: dict[str, Any]) -> None:
    from skytune.steps.load_data import load_data

    config = from_dict(RunConfig, {**values, "cache": False})
    configured = on(load_data, config).configuration
    assert configured.enable_cache is False
    assert from_dict(RunConfig, configured.extra[EXTRA]) == config
    assert EXTRA not in configured.parameters
    assert not configured.cache_policy.include_step_code, "ZenML's hash of it has its docstring"


class Store:
    """As much of an artifact store as is asked for."""

    exists = staticmethod(lambda uri: Path(uri).exists())
    listdir = staticmethod(lambda uri: [path.name for path in Path(uri).iterdir()])


def test_an_artifact_is_there_when_its_folder_holds_something(tmp_path: Path) -> None:
    assert not _there(Store(), str(tmp_path / "gone"))
    (tmp_path / "empty").mkdir()
    assert not _there(Store(), str(tmp_path / "empty"))
    (tmp_path / "empty" / "file").touch()
    assert _there(Store(), str(tmp_path / "empty"))


def test_named_sets() -> None:
    class Split:
        pass

    one, two = Split(), Split()
    assert named_sets(one) == {"validation": one}  # type: ignore[arg-type]
    assert named_sets({"validation": one, "more": two}) == {"validation": one, "more": two}  # type: ignore[arg-type]
