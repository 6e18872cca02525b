"""Every reader of names that others wrote (in a bucket, a manifest, a job) refuses those that lead elsewhere."""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skytune.checkpoint.manifest import FileEntry, ManifestError, build, parse, serialise
from skytune.checkpoint.run_card import Recipe, fetch_start, read_recipe, write_recipe
from skytune.checkpoint.store import Store
from skytune.common.paths import UnsafeNameError
from skytune.config import RunConfig, UserError
from skytune.job import Job, JobDir
from skytune.launch.remote.s3_transfer import INPUTS, S3Transfer
from skytune.materializers.arrow import read_dataset, write_dataset
from skytune.materializers.files import download
from skytune.models import model_files

NAMES = ["..", "../x", "../../up/.bashrc", "/abs", "a/../../b", "link/x", "a\0b", "x" * 300, "", "a\\..\\b"]
DATA = b"data"
SHA = hashlib.sha256(DATA).hexdigest()


def bucket(folder: Path) -> str:
    return f"memory://{folder.parents[2].name}"


def outputs(folder: Path, name: Any) -> None:
    """`.outputs.N.json` of a bucket."""
    transfer = S3Transfer(bucket(folder), "run")
    transfer._backend.write("run/.outputs.0.json", json.dumps({"files": [name, "result.json"], "code": "c"}).encode())
    for place in ("run/.outputs/result.json", f"run/.outputs/{name}"):
        with suppress(OSError):  # S3 takes any name
            transfer._backend.write(place, DATA)
    job = JobDir(folder)
    (folder / "outputs").mkdir(parents=True)
    (folder / "outputs" / "link").symlink_to(folder.parent)
    transfer.download_outputs(job)


def inputs(folder: Path, name: Any) -> None:
    """`inputs.json` of a job on a machine."""
    transfer = S3Transfer(bucket(folder), "run")
    transfer._backend.write(f".inputs/{SHA}", DATA)
    (folder / "inputs").mkdir(parents=True)
    (folder / "inputs" / "link").symlink_to(folder.parent)
    (folder / INPUTS).write_text(json.dumps([{"path": name, "sha256": SHA, "size": 4}]))
    transfer.download_inputs(JobDir(folder))


def manifest(folder: Path, name: Any) -> None:
    """`manifest.json` of a checkpoint."""
    whole = build("run", 1, {}, created=0.0)
    parse(serialise(replace(whole, files={name: FileEntry(size=4, sha256=SHA)})))


def recipe(folder: Path, name: Any) -> None:
    """`run.json` of a store, and the files that it lists."""
    store = Store.open(bucket(folder), "run")
    write_recipe(store, Recipe(config={}, fingerprints={}, new_parameters=[], written_by="1"), {})
    values = json.loads(store.backend.read("run/run.json"))
    values["files"] = {name: {"size": 4, "sha256": SHA}}
    store.backend.write("run/run.json", json.dumps(values).encode())
    with suppress(OSError):
        store.backend.write(f"run/start/{name}", DATA)
    folder.mkdir()
    (folder / "link").symlink_to(folder.parent)
    found = read_recipe(store)
    assert found is not None
    fetch_start(store, found, folder)


def job(key: str) -> Callable[[Path, Any], None]:
    """`job.json`."""

    def read(folder: Path, name: Any) -> None:
        whole = JobDir(folder)
        if key == "split":
            name = {name: "inputs/validation"}
        elif key == "evaluation":
            name = {"validation": name}
        folder.mkdir()
        (folder / "link").symlink_to(folder.parent)
        whole.write_job(Job(kind="train", run_key="run", config=RunConfig(), labels=["a", "b"]))
        values = json.loads((folder / "job.json").read_text())
        values["evaluation" if key == "split" else key] = name
        (folder / "job.json").write_text(json.dumps(values))
        _ = JobDir(folder).job
        if key == "split" and name == {"link/x": "inputs/validation"}:
            raise UserError("is below the outputs, where no link can lie that a job brings")

    return read


def artifact(folder: Path, name: Any) -> None:
    """Names in an artifact store."""

    class Stored:
        def listdir(self, uri: str) -> list[str]:
            return [name]

        def isdir(self, uri: str) -> bool:
            return False

        def open(self, path: str, mode: str) -> Any:
            raise AssertionError("was asked for")

    folder.mkdir()
    if "/" in str(name):
        raise UserError("is only a folder's last part there")
    download("memory://readers", folder, Stored())


def dataset(folder: Path, name: Any) -> None:
    """`state.json` of a stored data set."""
    from datasets import Dataset

    write_dataset(Dataset.from_dict({"a": [1]}), folder)
    (folder / "link").symlink_to(folder.parent)
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**state, "_data_files": [{"filename": name}]}))
    read_dataset(folder)


READERS = {
    "outputs": outputs,
    "inputs": inputs,
    "manifest": manifest,
    "recipe": recipe,
    **{f"job.{key}": job(key) for key in ("train", "tokenizer", "weights", "evaluation", "split")},
    "artifact": artifact,
    "dataset": dataset,
}


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:16])
@pytest.mark.parametrize("reader", READERS)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, reader: str, name: str) -> None:
    place = tmp_path / "a" / "b"
    place.mkdir(parents=True)
    with pytest.raises((UserError, ManifestError, UnsafeNameError)) as refused:
        READERS[reader](place / "folder", name)
    assert "\n" not in str(refused.value)
    assert [path for path in tmp_path.rglob("*") if place / "folder" not in (path, *path.parents)] == [
        place.parent,
        place,
    ]


def test_a_checkpoint_whose_file_is_a_link_that_leads_out_is_not_valid(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"), "run")
    store.write(1, {"model.safetensors": DATA})
    (tmp_path / "secret").write_bytes(DATA)
    file = tmp_path / "store" / "run" / "step-00000001" / "model.safetensors"
    file.unlink()
    file.symlink_to(tmp_path / "secret")
    assert "leads out of" in store.check(1).problems[0]


def test_of_a_models_folder_only_what_makes_the_model_is_handed_on(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / ".git").mkdir(parents=True)
    ours = ["config.json", "model.safetensors", "tokenizer.json", "vocab.txt"]
    others = [
        ".env",
        ".git/config.json",
        "optimizer.pt",
        "pytorch_model.bin",
        "evil.py",
        "credentials.json",
        "notes.md",
    ]
    for name in ours + others:
        (folder / name).write_bytes(DATA)
    assert [file.name for file in model_files(folder)] == sorted(ours)
    (folder / "added_tokens.json").symlink_to("/etc/passwd")
    with pytest.raises(UserError, match=r"added_tokens.json is a link that leads out of this folder"):
        model_files(folder)
    # In the Hub's cache every file is a link to a blob beside the snapshots.
    snapshot = tmp_path / "models--me--x" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--me--x" / "blobs").mkdir()
    (tmp_path / "models--me--x" / "blobs" / "ab").write_bytes(DATA)
    (snapshot / "config.json").symlink_to("../../blobs/ab")
    assert [file.name for file in model_files(snapshot)] == ["config.json"]
