"""A split on its way to a worker: linked where it lies, written once where it was changed, the same rows either way."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from skytune.config import UserError
from skytune.data.batches import Padding, TokenTable
from skytune.data.tables import content_hash, read_split, write_split

ROWS = {"input_ids": [[2, 5, 3], [2, 3], [2, 7, 8, 9, 3], [2, 6, 3]], "labels": [0, 1, 1, 0]}
MANY = {"input_ids": [list(range(40))] * 2000, "labels": [0, 1] * 1000}


@pytest.fixture
def on_disk(tmp_path: Path) -> Dataset:
    Dataset.from_dict(ROWS).save_to_disk(tmp_path / "stored")
    return Dataset.load_from_disk(tmp_path / "stored")


def test_file_on_disk_is_linked(tmp_path: Path) -> None:
    Dataset.from_dict(MANY).save_to_disk(tmp_path / "stored")
    stored = Dataset.load_from_disk(tmp_path / "stored")
    write_split(stored, tmp_path / "split")
    (file,) = (tmp_path / "split").iterdir()
    assert os.path.samefile(file, stored.cache_files[0]["filename"])
    assert read_split(tmp_path / "split").to_pydict() == MANY


CHANGES = {
    "slice": lambda d: d.select(range(1, 3)),
    "selection": lambda d: d.select([3, 0]),
    "shuffle": lambda d: d.shuffle(seed=1),
    "filter": lambda d: d.filter(lambda row: row["labels"] == 1),
    "column removed": lambda d: d.remove_columns("labels"),
    "column renamed": lambda d: d.rename_column("labels", "label"),
    "mapped": lambda d: d.map(lambda row: {"labels": row["labels"] + 1}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_changed_rows_arrive_changed(on_disk: Dataset, tmp_path: Path, change: Any) -> None:
    changed = change(on_disk)
    write_split(changed, tmp_path / "split")
    assert read_split(tmp_path / "split").to_pydict() == changed.with_format(None)[:]


def test_a_second_writing_replaces_the_first(on_disk: Dataset, tmp_path: Path) -> None:
    write_split(on_disk, tmp_path / "split")
    write_split(on_disk.select([0]), tmp_path / "split")
    assert read_split(tmp_path / "split").num_rows == 1
    assert on_disk[:] == ROWS, "the linked file must not be written into"


def test_nothing_half_written_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pa, "OSFile", full)
    with pytest.raises(UserError, match=r"cannot write the split 'split' .* No space left on device"):
        write_split(Dataset.from_dict(ROWS), tmp_path / "split")
    assert list(tmp_path.iterdir()) == []


def test_missing_and_damaged_splits_are_named(on_disk: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no rows"):
        read_split(tmp_path / "nothing")
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "data-00000.arrow").write_bytes(b"no arrow")
    with pytest.raises(UserError, match="damaged Arrow file"):
        read_split(folder)


@given(
    rows=st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=6), st.integers(0, 3)), min_size=1, max_size=30),
    cut=st.integers(0, 30),
)
def test_hash_is_of_content_not_of_chunks(rows: list[tuple[list[int], int]], cut: int) -> None:
    table = pa.table({"input_ids": [r[0] for r in rows], "labels": [r[1] for r in rows]})
    table = table.cast(pa.schema({"input_ids": pa.list_(pa.int32()), "labels": pa.int64()}))
    cut = min(cut, len(rows))
    chunked = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
    assert content_hash(chunked) == content_hash(table)
    changed = [*rows[:-1], (rows[-1][0], rows[-1][1] + 1)]
    other = pa.table({"input_ids": [r[0] for r in changed], "labels": [r[1] for r in changed]}).cast(table.schema)
    assert content_hash(other) != content_hash(table)


@settings(deadline=None)  # the first one imports torch
@given(
    rows=st.lists(st.lists(st.integers(1, 99), max_size=7), min_size=1, max_size=20),
    picks=st.lists(st.integers(0, 19), min_size=1, max_size=8),
    multiple=st.sampled_from([1, 4, 8]),
)
def test_batches_are_the_rows_padded_on_the_right(rows: list[list[int]], picks: list[int], multiple: int) -> None:
    kind = pa.list_(pa.int32())
    table = pa.table(
        {"input_ids": pa.array(rows, kind), "attention_mask": pa.array([[1] * len(r) for r in rows], kind)}
    )
    tokens = TokenTable(table)
    chosen = np.array([pick % len(rows) for pick in picks])
    batch = tokens.batch(chosen, multiple)
    for row, ids, mask in zip(chosen, batch["input_ids"].tolist(), batch["attention_mask"].tolist(), strict=True):
        assert ids[: len(rows[row])] == rows[row] and not any(ids[len(rows[row]) :])
        assert mask == [1] * len(rows[row]) + [0] * (len(ids) - len(rows[row]))
    longest = max(1, *(len(rows[row]) for row in chosen))
    assert longest <= batch["input_ids"].shape[1] <= -(-longest // multiple) * multiple
    assert tokens.lengths.tolist() == [len(row) for row in rows]
    left = TokenTable(table, Padding(7, left=True, types=True))
    same = left.batch(chosen, multiple)
    width = same["input_ids"].shape[1]
    for row, ids, mask in zip(chosen, same["input_ids"].tolist(), same["attention_mask"].tolist(), strict=True):
        empty = width - len(rows[row])
        assert ids == [7] * empty + rows[row] and mask == [0] * empty + [1] * len(rows[row])
    assert not same["token_type_ids"].any() and same["token_type_ids"].shape == same["input_ids"].shape


def test_other_columns_become_tensors() -> None:
    table = pa.table({"pixels": [[[0.5, 1.0]], [[1.5, 2.0]]], "size": [1.25, 2.5], "labels": [1, 0]})
    tokens = TokenTable(table)
    batch = tokens.batch(np.array([1, 0]))
    assert batch["pixels"].shape == (2, 1, 2) and batch["pixels"][0, 0].tolist() == [1.5, 2.0]
    assert batch["size"].tolist() == [2.5, 1.25]
    assert batch["labels"].tolist() == [0, 1]
    assert tokens.largest() == -1
