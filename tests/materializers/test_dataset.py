import errno
import gc
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skytune.config import UserError
from skytune.materializers import DatasetMaterializer
from skytune.materializers.arrow import hash_dataset, read_dataset, whole_files, write_dataset

datasets = pytest.importorskip("datasets")
pytest.importorskip("torch")

FEATURES = datasets.Features(
    {
        "text": datasets.Value("string"),
        "prénom": datasets.Value("int64"),
        "input_ids": datasets.List(datasets.Value("int32")),
        "labels": datasets.ClassLabel(names=["negative", "positive"]),
    }
)


def rows(count: int) -> dict[str, list[Any]]:
    return {
        "text": [f"row {i} – é" for i in range(count)],
        "prénom": list(range(count)),
        "input_ids": [list(range(i % 17)) for i in range(count)],
        "labels": [i % 2 for i in range(count)],
    }


def on_disk(folder: Path, count: int = 20_000) -> Any:
    """A data set that is one Arrow file in `folder`, as `load_dataset` makes it."""
    made = datasets.Dataset.from_generator(
        lambda: (dict(zip(FEATURES, row, strict=True)) for row in zip(*rows(count).values(), strict=True)),
        features=FEATURES,
        cache_dir=str(folder),
        split="train",
    )
    assert len(made.cache_files) == 1
    return made


def in_memory(count: int) -> Any:
    return datasets.Dataset.from_dict(rows(count), features=FEATURES)


def form(data: Any) -> dict[str, Any]:
    # The order of the format's columns means nothing: `datasets` sorts them at will, rows come in the table's order.
    return {**data.format, "columns": set(data.format["columns"])}


def equal(one: Any, other: Any) -> bool:
    return (
        one.features == other.features
        and one.column_names == other.column_names
        and form(one) == form(other)
        and one.split == other.split
        and one.with_format(None)[:] == other.with_format(None)[:]
    )


def case_4(folder: Path) -> Any:
    source = on_disk(folder, 2000)
    return datasets.DatasetDict(
        {
            "validation": in_memory(20),
            "train": source.with_format("torch", columns=["input_ids", "labels"]),
            "filtered": source.filter(lambda row: row["prénom"] % 3 == 0),
            "empty": in_memory(0),
            "selected none": source.select([]),
        }
    )


def test_splits_with_format_filter_and_none_at_all_come_back_identical(
    round_trip: Callable[..., Any], names_in_store: Callable[[], list[str]], tmp_path: Path
) -> None:
    original = case_4(tmp_path / "cache")
    before = {name: (split.features, form(split), split.with_format(None)[:]) for name, split in original.items()}
    loaded = round_trip(DatasetMaterializer, original)
    assert isinstance(loaded, datasets.DatasetDict)
    assert list(loaded) == list(original)
    assert all(equal(loaded[name], original[name]) for name in original)

    # The source goes away, with the folder in which it lay.
    del original
    gc.collect()
    shutil.rmtree(tmp_path / "cache")
    for name, (features, kind, content) in before.items():
        assert (loaded[name].features, form(loaded[name])) == (features, kind)
        assert loaded[name].with_format(None)[:] == content
    assert loaded["train"].features["labels"].names == ["negative", "positive"]
    assert loaded["train"][3]["input_ids"].tolist() == [0, 1, 2]
    assert loaded["validation"][3]["input_ids"] == [0, 1, 2]

    files = names_in_store()
    assert files == sorted(set(files)) and len(files) == 1 + 3 * 5
    assert {Path(name).suffix for name in files} == {".arrow", ".json"}


def test_what_is_derived_from_a_stored_set_works_and_writes_nothing_into_the_artifact(
    round_trip: Callable[..., Any], names_in_store: Callable[[], list[str]]
) -> None:
    loaded = round_trip(DatasetMaterializer, in_memory(100).with_format("torch", columns=["labels"]))
    before = names_in_store()
    folder = Path(loaded.cache_files[0]["filename"]).parent
    local = sorted(folder.iterdir())
    mapped = loaded.shuffle(seed=1).map(lambda row: {"twice": 2 * row["labels"]})
    again = mapped.filter(lambda row: row["twice"] == 0).select([2, 1, 0]).map(lambda row: {"one": 1}).sort("twice")
    parts = loaded.select(range(50)).train_test_split(0.2, seed=1)
    other = loaded.map(lambda row: {"more": 1})
    assert sorted(mapped.with_format(None)["twice"]) == [0] * 50 + [2] * 50
    assert len(again) == 3 and len(parts["test"]) == 10 and len(other) == 100
    assert names_in_store() == before
    assert sorted(folder.iterdir()) == local
    for made in (mapped, again, other):
        assert all(Path(file["filename"]).parent != folder for file in made.cache_files)


def test_caches_of_other_data_sets_stay_where_datasets_puts_them(tmp_path: Path) -> None:
    write_dataset(in_memory(3), tmp_path / "stored")
    read_dataset(tmp_path / "stored")
    source = on_disk(tmp_path / "cache", 100)
    mapped = source.map(lambda row: {"twice": 2 * row["prénom"]})
    assert Path(mapped.cache_files[0]["filename"]).parent == Path(source.cache_files[0]["filename"]).parent


@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_a_local_artifact_is_linked_and_mapped_where_it_lies(
    place: tuple[Any, str], round_trip: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    original = on_disk(tmp_path / "cache")
    source = Path(original.cache_files[0]["filename"])
    loaded = round_trip(DatasetMaterializer, original)
    stored = Path(loaded.cache_files[0]["filename"])
    assert stored.parent == Path(place[1])
    assert stored.samefile(source)  # a hard link: no second copy of the rows
    assert not stored.is_symlink()
    assert list(temporary.iterdir()) == []
    assert equal(loaded, original)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.rename_column("prénom", "name"),
        lambda d: d.remove_columns(["text"]),
        lambda d: d.cast_column("labels", datasets.ClassLabel(names=["no", "yes"])),
        lambda d: d.cast_column("prénom", datasets.Value("int32")),
        lambda d: d.add_column("new", list(range(len(d)))),
        lambda d: d.select(range(10, 40)),
        lambda d: d.select([3, 1]),
        lambda d: datasets.concatenate_datasets([d, in_memory(2)]),
        lambda d: d.flatten(),
    ],
)
def test_a_changed_data_set_is_stored_with_the_change(change: Callable[[Any], Any], tmp_path: Path) -> None:
    changed = change(on_disk(tmp_path / "cache", 100))
    write_dataset(changed, tmp_path / "stored")
    assert equal(read_dataset(tmp_path / "stored"), changed)


def test_a_data_set_of_several_whole_files_keeps_their_order(tmp_path: Path) -> None:
    parts = [on_disk(tmp_path / "one", 30), on_disk(tmp_path / "two", 10)]
    both = datasets.concatenate_datasets(parts)
    assert whole_files(both) == [Path(part.cache_files[0]["filename"]) for part in parts]
    write_dataset(both, tmp_path / "stored")
    assert equal(read_dataset(tmp_path / "stored"), both)
    assert len(list((tmp_path / "stored").glob("*.arrow"))) == 2


def test_rows_are_split_into_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skytune.materializers.arrow.SHARD_BYTES", 20_000)
    original = in_memory(1000)
    write_dataset(original, tmp_path / "stored")
    shards = sorted((tmp_path / "stored").glob("*.arrow"))
    assert len(shards) > 2
    assert equal(read_dataset(tmp_path / "stored"), original)


def test_datasets_itself_reads_what_was_stored(tmp_path: Path) -> None:
    write_dataset(datasets.DatasetDict(train=in_memory(5), test=in_memory(2)), tmp_path / "stored")
    loaded = datasets.load_from_disk(str(tmp_path / "stored"))
    assert list(loaded) == ["train", "test"] and equal(loaded["test"], in_memory(2))


def test_a_set_in_torch_format_is_read_without_torch(tmp_path: Path) -> None:
    write_dataset(in_memory(5).with_format("torch", columns=["input_ids"], dtype=None), tmp_path / "stored")
    code = f"""
import sys
from pathlib import Path
from skytune.materializers.arrow import read_dataset
found = read_dataset(Path({str(tmp_path / "stored")!r}))
assert found.with_format(None)[3]["text"].startswith("row 3")
print("torch" in sys.modules, found.format)
"""
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    expected = datasets.load_from_disk(str(tmp_path / "stored")).format
    assert done.stdout == f"False {expected}\n"


@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: datasets.DatasetDict(train=in_memory(2), test=d)])
def test_a_transform_is_refused_in_one_line_and_nothing_stays(
    wrap: Callable[[Any], Any], place: tuple[Any, str], names_in_store: Callable[[], list[str]]
) -> None:
    store, uri = place
    with pytest.raises(UserError, match="transform") as caught:
        DatasetMaterializer(uri, store).save(wrap(in_memory(3).with_transform(lambda batch: batch)))
    assert "\n" not in str(caught.value) and "reset_format" in str(caught.value)
    assert names_in_store() == []


@pytest.mark.parametrize("place", ["local"], indirect=True)
@pytest.mark.parametrize("already", [False, True])
def test_a_full_disk_leaves_nothing_and_says_so(
    already: bool, place: tuple[Any, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, uri = place
    data = datasets.DatasetDict(test=in_memory(3), train=on_disk(tmp_path / "cache") if already else in_memory(20_000))

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if already:
        monkeypatch.setattr("os.link", full)
    else:
        write = datasets.arrow_writer.ArrowWriter.write_table
        monkeypatch.setattr(
            datasets.arrow_writer.ArrowWriter,
            "write_table",
            lambda self, table, *rest, **more: full() if table.num_rows > 3 else write(self, table, *rest, **more),
        )
    with pytest.raises(UserError, match="no space left") as caught:
        DatasetMaterializer(uri, store).save(data)
    assert "\n" not in str(caught.value)
    assert not Path(uri).exists()


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_an_upload_that_fails_leaves_no_object(
    place: tuple[Any, str], names_in_store: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, uri = place
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    real, opened = store.open, []

    def breaks(path: Any, mode: str = "r") -> Any:
        opened.append(path)
        if len(opened) == 3:
            raise ConnectionError("the network is gone")
        return real(path, mode)

    monkeypatch.setattr(store, "open", breaks)
    with pytest.raises(ConnectionError):
        DatasetMaterializer(uri, store).save(datasets.DatasetDict(train=in_memory(3)))
    assert len(opened) == 3
    assert names_in_store() == []
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_gone_are_named(place: tuple[Any, str]) -> None:
    store, uri = place
    with pytest.raises(UserError, match=f"{uri} are gone"):
        DatasetMaterializer(uri, store).load(datasets.Dataset)


@pytest.mark.parametrize("damage", ["rows", "description", "cut off", "gone"])
def test_files_that_are_not_those_that_were_stored_are_named(damage: str, place: tuple[Any, str]) -> None:
    store, uri = place
    stored = DatasetMaterializer(uri, store)
    stored.save(in_memory(10))
    again = DatasetMaterializer(uri, store)
    again.expected_content_hash = stored.compute_content_hash(None)
    assert equal(again.load(datasets.Dataset), in_memory(10))
    name = f"{uri}/{'dataset_info.json' if damage == 'description' else 'data-00000-of-00001.arrow'}"
    with store.open(name, "rb") as file:
        content = bytearray(file.read())
    content[len(content) // 2] ^= 4
    if damage == "gone":
        store.remove(name)
    else:
        with store.open(name, "wb") as file:
            file.write(bytes(content[:100] if damage == "cut off" else content))
    with pytest.raises(UserError, match=f"{uri} are damaged"):
        again.load(datasets.Dataset)


def test_metadata_and_preview(place: tuple[Any, str]) -> None:
    store, uri = place
    data = datasets.DatasetDict(train=in_memory(100), test=in_memory(7))
    materializer = DatasetMaterializer(uri, store)
    materializer.save(data)
    metadata = materializer.extract_full_metadata(data)
    assert metadata["rows"] == 107
    assert metadata["train"]["label_counts"] == {"labels": {"negative": 50, "positive": 50}}
    assert metadata["bytes"] == metadata["storage_size"] > 1000
    json.dumps(metadata, allow_nan=False)
    (address,) = materializer.save_visualizations(data)
    with store.open(address, "r") as file:
        page = file.read()
    assert page.count("<section") == 2 and address.startswith(uri)
    assert equal(DatasetMaterializer(uri, store).load(datasets.DatasetDict)["test"], data["test"])


def test_the_hash_is_of_the_content(tmp_path: Path) -> None:
    made = 0

    def of(data: Any) -> str:
        nonlocal made
        made += 1
        write_dataset(data, tmp_path / str(made))
        return hash_dataset(tmp_path / str(made))

    base = of(in_memory(10))
    assert of(in_memory(10)) == base
    different = [
        in_memory(9),
        in_memory(10).with_format("torch"),
        in_memory(10).cast_column("labels", datasets.ClassLabel(names=["a", "b"])),
        in_memory(10).map(lambda row: {"text": row["text"] + "!"}),
        datasets.DatasetDict(train=in_memory(10)),
    ]
    hashes = {of(data) for data in different}
    assert base not in hashes and len(hashes) == len(different)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(0, 12),
    picked=st.lists(st.integers(0, 11), max_size=8),
    kind=st.sampled_from([None, "torch", "numpy"]),
    name=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8),
)
def test_any_selection_comes_back(count: int, picked: list[int], kind: str | None, name: str) -> None:
    data = in_memory(count).select([i for i in picked if i < count]).with_format(kind, columns=["labels"])
    with tempfile.TemporaryDirectory() as folder:
        if name in {".", ".."}:
            return
        write_dataset(datasets.DatasetDict({name: data}), Path(folder))
        loaded = read_dataset(Path(folder))
        assert list(loaded) == [name] and equal(loaded[name], data)
        del loaded


def test_the_dashboard_shows_images_with_their_classes() -> None:
    from datasets import ClassLabel, Dataset, Features, Value
    from pictures import encoded, pixels

    from skytune.materializers.preview import preview

    features = Features({"image": Value("large_binary"), "labels": ClassLabel(names=["cat", "<dog>"])})
    rows = {"image": [encoded(pixels(row)) for row in range(30)], "labels": [row % 2 for row in range(30)]}
    page = preview(Dataset.from_dict(rows, features=features))
    assert page.count('<img src="data:image/jpeg;base64,') == 20 and "1 &lt;dog&gt;" in page and "b&#x27;" not in page
