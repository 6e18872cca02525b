"""A model's folder goes where it is wanted; what has arrived is not sent again; a failure is one line."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from skytune.checkpoint.retry import Retry
from skytune.config import ConfigError, RunConfig, UploadConfig, UserError, from_dict
from skytune.release.destination import LOADED, check_address, copy_to, move_tag

FAST = Retry(deadline_seconds=1, first_seconds=0.02, longest_seconds=0.1)


def contents(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file() and file.name not in (".hidden", "SHA256SUMS"))
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def on_hub(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name != ".gitattributes"}


def test_into_a_folder(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "a" / "b"
    assert copy_to(model, UploadConfig(url=f"file://{target}")) == {"url": f"file://{target}"}
    assert contents(target) == contents(model) and len(contents(model)) == 4
    lines = dict(line.split("  ")[::-1] for line in (target / "SHA256SUMS").read_text().splitlines())
    assert lines == {name: hashlib.sha256(data).hexdigest() for name, data in contents(model).items()}
    assert list(lines)[-1] == "config.json"


def test_what_was_cut_short_goes_on(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that have arrived are not sent again, one that was half written is, also under another model's sums."""
    import fsspec

    system = fsspec.filesystem("memory")
    put, sent = system.put_file, []

    def breaking(source: str, target: str) -> None:
        sent.append(target.rpartition("/mine/")[2])
        if len(sent) == 3:
            system.pipe_file(target, b"half")
            raise PermissionError("the bucket's owner")
        put(source, target)

    monkeypatch.setattr(system, "put_file", breaking)
    upload = UploadConfig(url="memory://models/mine")
    with pytest.raises(UserError, match=r"^memory://models/mine: no permission for uploading the model: the bucket"):
        copy_to(model, upload, FAST)
    assert sent == ["README.md", "model.safetensors", "more/notes.txt"]
    copy_to(model, upload, FAST)
    assert sent[3:] == ["more/notes.txt", "config.json"]
    copy_to(model, upload, FAST)
    assert len(sent) == 5
    (model / "model.safetensors").write_text("other weights".ljust((model / "model.safetensors").stat().st_size))
    copy_to(model, upload, FAST)
    assert sent[5:] == ["model.safetensors", "config.json"]
    found = {name: system.cat_file(f"/models/mine/{name}") for name in contents(model)}
    assert found == contents(model)


def test_what_a_model_before_left_is_not_loaded_with_this_one(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "there"
    (model / "adapter_config.json").write_text("{}")
    copy_to(model, UploadConfig(url=str(target)))
    (model / "adapter_config.json").unlink()
    for name in ("notes.md", "requirements.txt", "handler.py", "data.json"):
        (target / name).write_text("somebody's")
    copy_to(model, UploadConfig(url=str(target)))
    assert not (target / "adapter_config.json").exists(), "an upload put it there"
    assert (target / "notes.md").read_text() == "somebody's"
    (target / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"there: holds adapter_config\.json, .*: remove it, or name another folder$"):
        copy_to(model, UploadConfig(url=str(target)), FAST)
    assert (target / "SHA256SUMS").is_file(), "nothing was changed"


def test_a_list_of_sums_names_no_file_outside_of_its_folder(model: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "there").mkdir()
    outside = (f"{'0' * 64}  ../mine.txt", f"{'0' * 64}  {tmp_path}/mine.txt", f"{'0' * 64}  a/../../mine.txt")
    (tmp_path / "there" / "SHA256SUMS").write_text("\n".join(outside))
    (tmp_path / "there" / "photo.jpg").write_text("mine")
    with (tmp_path / "there" / "SHA256SUMS").open("a") as file:
        file.write(f"\n{'0' * 64}  photo.jpg\n")
    copy_to(model, UploadConfig(url=str(tmp_path / "there")))
    assert (tmp_path / "mine.txt").read_text() == (tmp_path / "there" / "photo.jpg").read_text() == "mine"


def test_a_file_that_was_changed_there_is_sent_again(model: Path, tmp_path: Path) -> None:
    copy_to(model, UploadConfig(url=str(tmp_path / "there")))
    weights = tmp_path / "there" / "model.safetensors"
    weights.write_text("other".ljust(weights.stat().st_size))
    copy_to(model, UploadConfig(url=str(tmp_path / "there")))
    assert contents(tmp_path / "there") == contents(model)


def test_half_of_one_model_and_half_of_another_is_no_model(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.local import LocalFileSystem

    target, put, sent = tmp_path / "there", LocalFileSystem.put_file, list[str]()
    copy_to(model, UploadConfig(url=str(target)))
    for file in ("model.safetensors", "more/notes.txt"):
        (model / file).write_text("another model's")

    def breaking(self: Any, source: str, there: str, **more: Any) -> None:
        if sent:
            raise PermissionError("the disk's owner")
        sent.append(there)
        put(self, source, there, **more)

    monkeypatch.setattr(LocalFileSystem, "put_file", breaking)
    with pytest.raises(UserError, match="the disk's owner"):
        copy_to(model, UploadConfig(url=str(target)), FAST)
    assert sent, "one file of the other model is there"
    assert not (target / "SHA256SUMS").exists() and not (target / "config.json").exists()
    monkeypatch.undo()
    copy_to(model, UploadConfig(url=str(target)), FAST)
    assert contents(target) == contents(model) and (target / "SHA256SUMS").is_file()


def test_a_model_before_is_not_loaded_from_the_hub_either(model: Path, hub: Any) -> None:
    (model / "adapter_config.json").write_text("{}")
    copy_to(model, UploadConfig(url="hf://me/mine"), FAST)
    copy_to(model, UploadConfig(url="hf://me/mine/folder"), FAST)
    (model / "adapter_config.json").unlink()
    (model / "handler.py").write_text("somebody's")
    copy_to(model, UploadConfig(url="hf://me/mine"), FAST)
    (model / "handler.py").unlink()
    copy_to(model, UploadConfig(url="hf://me/mine"), FAST)
    found = on_hub(hub.files("me/mine"))
    assert "adapter_config.json" not in found and "folder/adapter_config.json" in found
    assert found.pop("handler.py") == b"somebody's"
    assert {name: data for name, data in found.items() if not name.startswith("folder/")} == contents(model)


def test_to_the_hub(model: Path, hub: Any) -> None:
    hub.failing = [503]  # once: it is tried again
    done = copy_to(model, UploadConfig(url="hf://me/mine", private=False), FAST)
    assert hub.visibility["me/mine"] in (False, "public")
    assert on_hub(hub.files("me/mine")) == contents(model)
    assert hub.messages("me/mine")[1:] == ["Upload the trained model"]
    assert done == {"url": "hf://me/mine", "commit": hub.repos["me/mine"][-1][0]}
    assert len(hub.sent) == 1
    assert copy_to(model, UploadConfig(url="hf://me/mine"), FAST) == done, "nothing has changed: no commit"
    assert len(hub.repos["me/mine"]) == 2
    copy_to(model, UploadConfig(url="hf://me/other/folder"), FAST)
    assert hub.visibility["me/other"] in (True, "private")
    assert "folder/more/notes.txt" in hub.files("me/other")
    assert len(hub.sent) == 1, "the Hub has the large file already"


def test_a_branch_and_a_tag(model: Path, hub: Any) -> None:
    first = copy_to(model, UploadConfig(url="hf://me/mine", revision="next", tag="v1"), FAST)
    assert on_hub(hub.branches["me/mine", "next"][-1][2]) == contents(model)
    assert not on_hub(hub.files("me/mine")), "main is as it was"
    assert hub.tags["me/mine"] == {"v1": first["commit"]}
    assert copy_to(model, UploadConfig(url="hf://me/mine", revision="next", tag="v1"), FAST) == first
    (model / "config.json").write_text("{}")
    second = copy_to(model, UploadConfig(url="hf://me/mine", revision="next"), FAST)
    with pytest.raises(UserError, match=r"^upload\.tag=v1: hf://me/mine has this tag for another model \(commit"):
        copy_to(model, UploadConfig(url="hf://me/mine", revision="next", tag="v1"), FAST)
    assert hub.tags["me/mine"] == {"v1": first["commit"]}
    move_tag("hf://me/mine", "production", first["commit"])
    move_tag("hf://me/mine", "production", second["commit"])
    assert hub.tags["me/mine"] == {"v1": first["commit"], "production": second["commit"]}


def test_a_hub_that_does_not_take_it(model: Path, hub: Any) -> None:
    hub.token = "Bearer another"
    with pytest.raises(UserError, match=r"^hf://me/mine: the Hub does not accept the token: run `hf auth login`"):
        copy_to(model, UploadConfig(url="hf://me/mine"), FAST)
    hub.fault = lambda method, path: 503
    with pytest.raises(UserError, match=r"^hf://me/mine: gave up on uploading the model after .* tries in"):
        copy_to(model, UploadConfig(url="hf://me/mine"), FAST)


def test_an_address_that_cannot_be() -> None:
    with pytest.raises(UserError, match=r"^upload\.url=nowhere://x: .*nowhere"):
        check_address("nowhere://x")


@pytest.mark.parametrize(
    ("name", "loaded"),
    [
        ("adapter_config.json", True),
        ("adapter_model.safetensors", True),
        ("model.safetensors.index.json", True),
        ("pytorch_model-00001-of-00002.bin", True),
        ("preprocessor_config.json", True),
        ("spiece.model", True),
        ("merges.txt", True),
        ("chat_template.jinja", True),
        ("more/adapter_config.json", False),
        ("requirements.txt", False),
        ("handler.py", False),
        ("test_results.json", False),
        ("README.md", False),
    ],
)
def test_what_a_model_would_be_loaded_with(name: str, loaded: bool) -> None:
    assert bool(LOADED.fullmatch(name)) == loaded


@pytest.mark.parametrize(
    ("upload", "told"),
    [
        ({"url": "hf://mine"}, r"^upload\.url=hf://mine: write hf://user/name"),
        ({"tag": "v1"}, r"^upload\.tag has an effect only together with upload\.url"),
        ({"url": "s3://a/b", "tag": "v1"}, r"^upload\.tag=v1: has an effect only with upload\.url=hf://"),
        ({"url": "/tmp/a", "revision": "next"}, r"^upload\.revision=next: has an effect only with upload\.url=hf://"),
        ({"url": "hf://a/b", "tag": "a b"}, r"^upload\.tag='a b': letters, digits and"),
        ({"url": "hf://a/b", "tag": "a..b"}, r"^upload\.tag='a\.\.b': letters, digits and"),
        ({"url": "hf://a/b", "revision": "-x"}, r"^upload\.revision='-x': letters, digits and"),
        ({"url": "hf://a/b", "license": "MIT: all\nrights"}, r"^upload\.license=.*write it as the Hub does"),
        ({"url": "hf://a/b", "language": ["english"]}, r"^upload\.language: 'english' is no code"),
    ],
)
def test_what_cannot_be_is_refused(upload: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        from_dict(RunConfig, {"upload": upload})
