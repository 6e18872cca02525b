"""Files read shard by shard: the same texts and columns as a whole, wherever shards end."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skytune.config import BadRows, DataConfig, UserError
from skytune.data import formats, stream
from skytune.data.columns import text_columns
from skytune.data.files import read_files
from skytune.data.stream import read_shards
from skytune.data.written import join_shards, write_shard

COLUMNS = tuple(column for column in text_columns(DataConfig()) if column.needed)
TEXTS = ["a film", 'it "was", good\nreally', "ü \u2028 ß", "tab\there", "last"]
ROWS = [{"id": f"{number:03d}", "text": text, "n": "1.50"} for number, text in enumerate(TEXTS * 5)]


def csv_of(rows: list[dict[str, str]], delimiter: str = ",") -> str:
    quoted = [['"' + value.replace('"', '""') + '"' for value in row.values()] for row in rows]
    return "\n".join(delimiter.join(cells) for cells in [list(rows[0]), *quoted]) + "\n"


def arrow_of(path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)


def xlsx_of(path: Path) -> None:
    import openpyxl

    book = openpyxl.Workbook()
    for cells in [list(ROWS[0]), *(list(row.values()) for row in ROWS)]:
        book.active.append(cells)
    book.save(path)


LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
WRITERS: dict[str, Callable[[Path], Any]] = {
    "a.csv": lambda path: path.write_text(csv_of(ROWS)),
    "semicolons.csv": lambda path: path.write_text(csv_of(ROWS, ";")),
    "wide.csv": lambda path: path.write_bytes(csv_of(ROWS).encode("utf-16")),
    "a.csv.gz": lambda path: path.write_bytes(gzip.compress(csv_of(ROWS).encode())),
    "a.csv.bz2": lambda path: path.write_bytes(bz2.compress(csv_of(ROWS).encode())),
    "a.jsonl.xz": lambda path: path.write_bytes(lzma.compress(LINES.encode())),
    "called.csv": lambda path: path.write_bytes(gzip.compress(csv_of(ROWS).encode())),
    "a.jsonl": lambda path: path.write_text(LINES),
    "a.json": lambda path: path.write_text(json.dumps(ROWS)),
    "a.parquet": lambda path: pa.parquet.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=4),
    "a.arrow": arrow_of,
    "a.xlsx": xlsx_of,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_of_file_gives_all_rows_and_columns_in_order(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name)
    shards = list(read_shards(str(tmp_path / name), DataConfig(), COLUMNS, 10))
    assert [len(shard) for shard in shards] == [10, 10, 5]
    assert [text for shard in shards for text in shard.rows.text.to_pylist()] == TEXTS * 5
    whole, _ = read_files(str(tmp_path / name), DataConfig(), "data.train", "train")
    assert whole.text.to_pylist() == TEXTS * 5
    values = [
        row
        for shard in shards
        for row in (shard.values if isinstance(shard.values, list) else shard.values.to_pylist())
    ]
    assert values == ROWS
    assert shards[1].rows.where(2) == whole.where(12)


@given(sizes=st.lists(st.integers(1, 7), max_size=9), rows=st.integers(1, 12), lists=st.booleans())
def test_shards_end_by_the_rows_alone_wherever_the_blocks_end(sizes: list[int], rows: int, lists: bool) -> None:
    records = [{"text": "x" * (number % 5)} for number in range(sum(sizes))]
    blocks, start = [], 0
    for size in sizes:
        part = records[start : start + size]
        blocks.append(part if lists else pa.Table.from_pylist(part))
        start += size
    found = list(stream._regrouped(iter(blocks), rows))
    assert [len(part) for part in found] == [rows] * (len(records) // rows) + [len(records) % rows] * (
        len(records) % rows > 0
    )
    assert [row for part in found for row in (part if lists else part.to_pylist())] == records


def test_long_texts_make_shards_of_fewer_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST_BYTES", 100)
    (tmp_path / "a.csv").write_text("text\n" + "x" * 60 + "\n" + "y" * 30 + "\n" + "z" * 300 + "\n" + "w\n")
    shards = list(read_shards(str(tmp_path / "a.csv"), DataConfig(), COLUMNS, 10))
    assert [shard.rows.text.to_pylist()[0][0] for shard in shards] == ["x", "z", "w"]


def test_malformed_rows_are_named_or_left_out_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n1,a\n2,b,c\n3,d\n")
    with pytest.raises(UserError, match=r"a.csv, line 3: has 3 columns, the header 2.*data.bad_rows=drop"):
        list(read_shards(str(tmp_path / "a.csv"), DataConfig(), COLUMNS, 10))
    (shard,) = read_shards(str(tmp_path / "a.csv"), DataConfig(bad_rows=BadRows.drop), COLUMNS, 10)
    assert shard.values["id"].to_pylist() == ["1", "3"] and shard.left_out == 1


def test_files_with_other_columns_are_not_put_behind_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n1,a\n")
    (tmp_path / "b.csv").write_text("text,id\na,1\n")
    with pytest.raises(UserError, match=r"b.csv: its columns \(text, id\) are not those of"):
        list(read_shards(str(tmp_path / "*.csv"), DataConfig(), COLUMNS, 10))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
def test_what_is_written_is_what_was_read_and_the_new_columns(name: str, kind: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name)
    parts = []
    for shard in read_shards(str(tmp_path / name), DataConfig(), COLUMNS, 10):
        parts.append(tmp_path / f"{shard.number}.part")
        write_shard(parts[-1], shard, {"prediction": ["yes"] * len(shard), "probability": [0.5] * len(shard)}, kind)
    target = tmp_path / f"out.{kind}"
    join_shards(parts, target, kind)
    if kind == "csv":
        options = pa.csv.ConvertOptions(column_types=dict.fromkeys(ROWS[0], pa.string()))
        table = pa.csv.read_csv(target, None, pa.csv.ParseOptions(newlines_in_values=True), options).to_pylist()
    elif kind == "jsonl":
        table = [json.loads(line) for line in target.read_text().split("\n") if line]
    else:
        table = pa.parquet.read_table(target).to_pylist()
    assert table == [{**row, "prediction": "yes", "probability": 0.5} for row in ROWS]


def test_values_of_json_stay_what_they_are(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"text": "a", "v": 1, "m": {"x": [1, None]}}, {"text": "b", "v": "one", "new": 1.0}]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (shard,) = read_shards(str(tmp_path / "a.jsonl"), DataConfig(), COLUMNS, 10)
    write_shard(tmp_path / "out", shard, {"prediction": ["x", "y"]}, "jsonl")
    written = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert written == [{**row, "prediction": answer} for row, answer in zip(rows, "xy", strict=True)]


def test_a_cell_that_tsv_cannot_hold_is_named(tmp_path: Path) -> None:
    WRITERS["a.csv"](tmp_path / "a.csv")
    (shard,) = read_shards(str(tmp_path / "a.csv"), DataConfig(), COLUMNS, 100)
    with pytest.raises(UserError, match=r"a.csv, line 3: a tab or a line break in a cell.*FILE.csv can"):
        write_shard(tmp_path / "out", shard, {"prediction": ["x"] * 25}, "tsv")


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    "document",
    [ROWS, {"version": 1, "data": ROWS}, {name: [row[name] for row in ROWS] for name in ROWS[0]}],
    ids=["array", "object with an array", "object of columns"],
)
def test_a_json_document_is_read_as_for_training(tmp_path: Path, document: Any, indent: int | None) -> None:
    (tmp_path / "a.json").write_text(json.dumps(document, indent=indent))
    shards = list(read_shards(str(tmp_path / "a.json"), DataConfig(), COLUMNS, 10))
    whole, _ = read_files(str(tmp_path / "a.json"), DataConfig(), "data.train", "train")
    assert [row for shard in shards for row in shard.values] == ROWS
    assert shards[1].rows.where(2) == whole.where(12) == f"{tmp_path}/a.json, row 13"


def test_a_json_file_of_an_object_a_line_is_read_as_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "LINES", 2)
    (tmp_path / "a.json").write_text(LINES + '{"text": \n')
    shards = read_shards(str(tmp_path / "a.json"), DataConfig(), COLUMNS, 3)
    assert next(shards).rows.where(2) == f"{tmp_path}/a.json, line 3"
    with pytest.raises(UserError, match=r"a.json, line 26: is not valid JSON"):
        list(shards)


@pytest.mark.parametrize("policy", BadRows)
def test_a_file_of_malformed_rows_alone_names_one(tmp_path: Path, policy: BadRows) -> None:
    (tmp_path / "a.csv").write_text("id,text\n1,a,b\n")
    words = {BadRows.error: "line 2: has 3 columns, the header 2", BadRows.drop: "the file has no rows"}
    with pytest.raises(UserError, match=words[policy]):
        list(read_shards(str(tmp_path / "a.csv"), DataConfig(bad_rows=policy), COLUMNS, 10))


def test_broken_text_in_a_parquet_file_is_one_line(tmp_path: Path) -> None:
    broken = pa.array([b"fine", b"\xff\xfe"], pa.binary()).view(pa.string())
    pa.parquet.write_table(pa.table({"text": broken}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"cannot read .*a.parquet: .*UTF8") as caught:
        list(read_shards(str(tmp_path / "a.parquet"), DataConfig(), COLUMNS, 10))
    assert "\n" not in str(caught.value) and "data.encoding" not in str(caught.value)
