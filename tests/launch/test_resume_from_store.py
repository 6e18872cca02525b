"""What `resume=PLACE` finds in a store, what may be changed on top of it, and what is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skytune.checkpoint.run_card import Recipe, write_recipe
from skytune.checkpoint.store import Store
from skytune.config import RunConfig, UserError, from_dict, to_dict
from skytune.launch.resume_from_store import Continued, find_stored_run
from skytune.launch.run_dir import RunFolder

VALUES: dict[str, Any] = {
    "seed": 7,
    "model": {"name": "/models/mine"},
    "batch": {"global_size": 8},
    "launch": {"num_processes": 4},
    "checkpoint": {"store": "s3://elsewhere/runs"},
    "callbacks": {"mine": {"_target_": "my.Hook", "api_token": "<env:MY_TOKEN>"}},
}


@pytest.fixture
def stored(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes a run into a store and returns the store's path."""

    def make(key: str = "mine-0123456789ab", step: int | None = 20, folder: Path = tmp_path / "store") -> str:
        store = Store.open(str(folder), key)
        config = {**to_dict(from_dict(RunConfig, VALUES)), "resume": "auto"}
        fingerprints = {"data": "d", "weights": "w"}
        write_recipe(store, Recipe(config=config, fingerprints=fingerprints, new_parameters=[], written_by="9"), {})
        if step is not None:
            store.write(step, {"model.safetensors": b"w"})
        return str(folder)

    return make


def on_top(found: Continued, **groups: Any) -> RunConfig:
    values = found.base()
    for key, value in groups.items():
        values[key] = {**values[key], **value} if isinstance(value, dict) else value
    return from_dict(RunConfig, values)


def test_the_run_goes_on_in_the_store_that_was_named(stored: Any) -> None:
    place = stored()
    found = find_stored_run(place)
    assert found is not None
    config = found.adopt(on_top(found))
    assert config.resume == f"{place}/mine-0123456789ab" and config.checkpoint.store == place
    before = from_dict(RunConfig, VALUES)
    assert replace(config, resume="auto", checkpoint=before.checkpoint, callbacks=before.callbacks) == before
    assert "abcdefgh" not in (Path(place) / "mine-0123456789ab" / "run.json").read_text()


def test_a_step_may_be_named(stored: Any) -> None:
    place = f"{stored()}/mine-0123456789ab/step-00000020"
    found = find_stored_run(place)
    assert found is not None and found.adopt(on_top(found)).resume == place


def test_the_run_folders_own_store_stays_the_run_folders(stored: Any) -> None:
    place = stored(folder=RunFolder("mine-0123456789ab").path / "checkpoints")
    found = find_stored_run(place)
    assert found is not None and found.adopt(on_top(found)).checkpoint.store is None


def test_what_does_not_decide_may_be_changed(stored: Any) -> None:
    found = find_stored_run(stored())
    assert found is not None
    secret = {"mine": {"_target_": "my.Hook", "api_token": "<env:MY_TOKEN>"}}
    config = on_top(
        found, launch={"num_processes": 1}, compute={"device": "cpu"}, checkpoint={"store": "/new"}, callbacks=secret
    )
    config = found.adopt(config)
    assert (config.launch.num_processes, config.checkpoint.store) == (1, "/new")
    assert config.callbacks == secret


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"seed": 8}, "seed: 7 there, 8 here"),
        ({"model": {"name": "/models/other"}}, 'model.name: "/models/mine" there, "/models/other" here'),
        ({"batch": {"global_size": 16}, "seed": 1}, "batch.global_size: 8 there, 16 here; seed: 7 there, 1 here"),
    ],
)
def test_what_decides_is_refused_in_one_line(stored: Any, groups: dict[str, Any], message: str) -> None:
    place = stored()
    found = find_stored_run(place)
    assert found is not None
    with pytest.raises(UserError) as caught:
        found.adopt(on_top(found, **groups))
    assert str(caught.value) == f"resume={place}: is of another run, mine-0123456789ab: {message}"


def test_a_run_without_a_checkpoint(stored: Any) -> None:
    place = stored(step=None)
    found = find_stored_run(place)
    assert found is not None and found.adopt(on_top(found)).resume == "auto"
    (Path(place) / "mine-0123456789ab" / "finished.json").write_text("{}")
    with pytest.raises(UserError, match=r"the run mine-0123456789ab is finished, and its checkpoints are gone$"):
        found.adopt(on_top(found))


def test_what_cannot_be_found_or_used_is_named(stored: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds 0 runs \(none\)$"):
        find_stored_run(str(tmp_path / "nothing"))
    place = stored()
    stored("other-0123456789ab")
    with pytest.raises(UserError, match=r"holds 2 runs \(mine-0123456789ab, other-0123456789ab\)"):
        find_stored_run(place)
    file = Path(place) / "mine-0123456789ab" / "run.json"
    values = json.loads(file.read_text())
    values["config"]["wings"] = 2
    file.write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"written by version 9\) does not fit this version: unknown key 'wings'"):
        find_stored_run(f"{place}/mine-0123456789ab")
    file.unlink()
    assert find_stored_run(f"{place}/mine-0123456789ab") is None  # as in stores that an older version wrote
