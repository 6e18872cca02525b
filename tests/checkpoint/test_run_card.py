"""What a run is made of, beside its checkpoints, in stores of every kind; and what a path or URL to it means."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from skytune.checkpoint.resume import Place, locate, runs
from skytune.checkpoint.run_card import Recipe, fetch_start, read_recipe, write_recipe
from skytune.checkpoint.store import Store
from skytune.config import UserError

RECIPE = Recipe(config={"seed": 3}, fingerprints={"data": "d", "weights": "w"}, new_parameters=["head"], written_by="1")
START = {"config.json": b"{}", "vocab.txt": "\u00fcber\n".encode()}

every_kind = pytest.mark.parametrize("url", ["file", "memory", "s3"], indirect=True)


@every_kind
def test_what_is_written_comes_back(store: Store, tmp_path: Path) -> None:
    assert read_recipe(store) is None
    assert write_recipe(store, RECIPE, START)
    found = read_recipe(store)
    assert found is not None and found.config == {"seed": 3} and found.new_parameters == ["head"]
    assert found.files["vocab.txt"].sha256 == hashlib.sha256(START["vocab.txt"]).hexdigest()
    fetch_start(store, found, tmp_path / "start")
    assert {path.name: path.read_bytes() for path in (tmp_path / "start").iterdir()} == START
    assert not write_recipe(store, RECIPE, START), "the same again is not written"
    assert write_recipe(store, RECIPE, {**START, "config.json": b"{ }"})


def test_on_the_hub_it_is_one_commit(start_hub: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    hub = start_hub()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    store = Store.open("hf://me/runs", "run-1")
    assert write_recipe(store, RECIPE, START) and not write_recipe(store, RECIPE, START)
    assert hub.messages("me/runs") == ["initial commit", "Write run-1/run.json"]
    assert locate("hf://me/runs") == locate("hf://me/runs/run-1") == Place("hf://me/runs", "run-1", None)
    assert locate("hf://me/runs/run-1/step-00000020") == Place("hf://me/runs", "run-1", 20)
    found = read_recipe(store)
    assert found is not None
    fetch_start(store, found, tmp_path / "start")


@every_kind
def test_damage_is_named(store: Store, tmp_path: Path) -> None:
    write_recipe(store, RECIPE, START)
    found = read_recipe(store)
    assert found is not None
    store.backend.write("run-1/start/vocab.txt", b"other")
    with pytest.raises(UserError, match=r"run-1/start/vocab.txt is damaged"):
        fetch_start(store, found, tmp_path / "start")
    store.backend.delete("run-1/start/vocab.txt")
    with pytest.raises(UserError, match=r"run-1/start/vocab.txt is missing"):
        fetch_start(store, found, tmp_path / "start")
    for broken in (b"", b"[]", b'{"schema": 1, "run_key": "run-1"}', b'{"schema": 1, "run_key": 1, "files": 3}'):
        store.backend.write("run-1/run.json", broken)
        with pytest.raises(UserError, match=r"run-1/run.json is damaged"):
            read_recipe(store)
    store.backend.write("run-1/run.json", b'{"schema": 2, "run_key": "run-1"}')
    with pytest.raises(UserError, match="has schema 2, this version reads 1"):
        read_recipe(store)


@every_kind
def test_a_place_is_a_store_a_run_or_a_checkpoint(store: Store) -> None:
    url = store.backend.url
    with pytest.raises(UserError, match=r"holds 0 runs \(none\)$"):
        locate(url)
    write_recipe(store, RECIPE, START)  # it was stopped before its first checkpoint
    assert locate(url) == locate(f"{url}/") == locate(f"{url}/run-1") == Place(url, "run-1", None)
    store.write(20, {"model.safetensors": b"w"})
    assert locate(f"{url}/run-1") == Place(url, "run-1", None)
    assert locate(f"{url}/run-1/step-00000020") == Place(url, "run-1", 20)
    Store(store.backend, "run-2").write(4, {"model.safetensors": b"w"})  # of a version that wrote no recipes
    assert runs(url) == ["run-1", "run-2"]
    with pytest.raises(UserError, match=r"holds 2 runs \(run-1, run-2\); name one of them \(resume=.*/run-1\)"):
        locate(url)
    assert locate(f"{url}/run-2") == Place(url, "run-2", None)
