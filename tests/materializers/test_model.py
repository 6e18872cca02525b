import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skytune.config import UserError
from skytune.materializers import ModelFolder, ModelFolderMaterializer
from skytune.materializers.files import is_pickle

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film"]


def model() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=512,
        id2label={0: "negative", 1: "positive"},
    )
    return transformers.BertForSequenceClassification(config).eval()


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    folder = tmp_path / "outputs" / "model"
    model().save_pretrained(folder)
    transformers.BertTokenizer(vocab={word: i for i, word in enumerate(WORDS)}).save_pretrained(folder)
    return folder


def logits(module: Any) -> Any:
    with torch.no_grad():
        return module(input_ids=torch.tensor([[2, 5, 7, 3]])).logits


def test_the_same_model_lies_once_on_a_disk(tmp_path: Path) -> None:
    """However often it was trained: `cache=false` alone let the store grow by its size every time."""

    def stored(number: int, content: bytes) -> tuple[Path, Path]:
        folder = tmp_path / f"run-{number}"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(content)
        (folder / "config.json").write_text("{}")
        store = tmp_path / "store" / "model" / str(number)
        store.mkdir(parents=True)
        materializer = ModelFolderMaterializer(str(store))
        materializer.write(store, ModelFolder(folder))
        return folder / "model.safetensors", store / "model.safetensors"

    one, other = b"x" * 100_000, b"x" * 99_999 + b"y"
    files = [*stored(1, one), *stored(2, one), *stored(3, one)]
    assert len({file.stat().st_ino for file in files}) == 1
    different = stored(4, other)
    assert different[0].samefile(different[1]) and not different[0].samefile(files[0])
    assert different[1].read_bytes() == other and files[0].read_bytes() == one
    assert not any(path.name.endswith(".link") for path in tmp_path.rglob("*"))


def test_a_folder_comes_back_and_serves(
    round_trip: Callable[..., Any], names_in_store: Callable[[], list[str]], trained: Path
) -> None:
    loaded = round_trip(ModelFolderMaterializer, ModelFolder(trained))
    assert {path.name for path in loaded.path.iterdir()} == {path.name for path in trained.iterdir()}
    assert set(names_in_store()) == {path.name for path in trained.iterdir()}
    assert torch.equal(logits(loaded.load()), logits(model()))
    (answer,) = loaded.pipeline()("good film")
    assert answer["label"] in {"negative", "positive"}


@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_large_files_are_linked_small_ones_copied_and_nothing_is_a_symbolic_link(
    place: tuple[Any, str], round_trip: Callable[..., Any], trained: Path
) -> None:
    elsewhere = trained.parent / "elsewhere"
    elsewhere.mkdir()
    (trained / "model.safetensors").rename(elsewhere / "weights")
    (trained / "model.safetensors").symlink_to(elsewhere / "weights")
    (trained / "extra").symlink_to(elsewhere)
    (elsewhere / "loop").symlink_to(elsewhere)
    loaded = round_trip(ModelFolderMaterializer, ModelFolder(trained))
    assert loaded.path == Path(place[1])  # where it lies: no copy
    stored = loaded.path / "model.safetensors"
    assert stored.samefile(elsewhere / "weights") and (loaded.path / "extra" / "weights").is_file()
    assert not (loaded.path / "config.json").samefile(trained / "config.json")
    assert not any(path.is_symlink() for path in loaded.path.rglob("*"))


@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_on_another_disk_files_are_copied(
    round_trip: Callable[..., Any], trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_disk(*args: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", other_disk)
    loaded = round_trip(ModelFolderMaterializer, ModelFolder(trained))
    stored = loaded.path / "model.safetensors"
    assert not stored.samefile(trained / "model.safetensors")
    assert stored.read_bytes() == (trained / "model.safetensors").read_bytes()


def test_metadata(place: tuple[Any, str], trained: Path) -> None:
    store, uri = place
    count = sum(parameter.numel() for parameter in model().parameters())
    expected = {
        "parameters": count,
        "architecture": "BertForSequenceClassification",
        "model_type": "bert",
        "labels": ["negative", "positive"],
    }
    folder = ModelFolderMaterializer(uri, store).extract_metadata(ModelFolder(trained))
    assert {key: folder[key] for key in expected} == expected and folder["dtypes"] == ["F32"]
    assert folder["bytes"] == sum(path.stat().st_size for path in trained.iterdir()) > 4 * count


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("training_args.bin", b"x"),
        ("pytorch_model.pt", b"x"),
        ("state.pkl", b"x"),
        ("innocent.json", pickle.dumps({"a": 1})),
    ],
)
def test_a_pickle_in_the_folder_is_refused_and_nothing_stays(
    name: str, content: bytes, place: tuple[Any, str], names_in_store: Callable[[], list[str]], trained: Path
) -> None:
    (trained / name).write_bytes(content)
    store, uri = place
    with pytest.raises(UserError, match=name):
        ModelFolderMaterializer(uri, store).save(ModelFolder(trained))
    assert names_in_store() == []


def test_what_looks_like_a_pickle_only_at_its_start_is_none(tmp_path: Path) -> None:
    weights = tmp_path / "w.safetensors"
    weights.write_bytes((0x0280).to_bytes(8, "little") + b"{}.")
    other = tmp_path / "x.arrow"
    other.write_bytes(b"\x80\x04 and so on")
    assert not is_pickle(weights) and not is_pickle(other)
    for protocol in range(2, 6):
        other.write_bytes(pickle.dumps([1, "a"], protocol=protocol))
        assert is_pickle(other)


@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_a_missing_empty_or_broken_folder_is_named(place: tuple[Any, str], tmp_path: Path) -> None:
    store, uri = place
    for folder in (tmp_path / "missing", tmp_path / "empty"):
        if folder.name == "empty":
            folder.mkdir()
        with pytest.raises(UserError, match=str(folder)):
            ModelFolderMaterializer(uri, store).save(ModelFolder(folder))
    (tmp_path / "empty" / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="dangling"):
        ModelFolderMaterializer(uri, store).save(ModelFolder(tmp_path / "empty"))
    assert not Path(uri).exists()
