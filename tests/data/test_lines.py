"""A row is named by the line at which an editor shows it, whatever stands before it in the file."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skytune.config import BadRows, DataConfig, UserError
from skytune.data.columns import text_columns
from skytune.data.files import read_files
from skytune.data.stream import read_shards

TEXTS = st.text(st.sampled_from('ab,;"\t \n\r\u2028é'), min_size=1, max_size=12).map(lambda text: f"x{text}x")
KINDS = st.sampled_from(["row", "row", "row", "blank", "malformed"])


@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(KINDS, TEXTS), min_size=1, max_size=12),
    kind=st.sampled_from(["csv", "semicolons", "tsv", "jsonl", "excel"]),
    named=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_every_row_has_its_line(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], kind: str, named: bool, end: str
) -> None:
    path = tmp_path_factory.mktemp("lines") / ("a.jsonl" if kind == "jsonl" else "a.tsv" if kind == "tsv" else "a.csv")
    named, between = named or kind == "excel", {"csv": ",", "tsv": "\t"}.get(kind, ";")
    parts, lines = [], []
    if kind != "jsonl":
        parts = [*(["sep=;"] if kind == "excel" else []), *([between.join(["text", "label"])] if named else [])]
    for what, text in [("row", "first"), *rows]:
        if kind == "jsonl":
            cells = [json.dumps({"text": text, "label": 1}, ensure_ascii=False)]
        elif kind == "tsv":
            cells = [" ".join(text.split()), "1"]
        else:
            cells = ['"' + text.replace('"', '""') + '"', "1"]
        if what == "malformed" and kind != "jsonl":
            cells.append("more")
        if what == "row" or (what == "malformed" and kind == "jsonl"):
            so_far = end.join([*parts, ""]).replace("\r\n", "\n").replace("\r", "\n")
            lines.append(so_far.count("\n") + 1)
        parts.append("" if what == "blank" else between.join(cells))
    path.write_bytes(end.join([*parts, ""]).encode())
    config = DataConfig(bad_rows=BadRows.drop, columns=None if named or kind == "jsonl" else ["text", "label"])
    found, _ = read_files(str(path), config, "data.train", "train")
    assert [found.where(row) for row in range(len(found))] == [f"{path}, line {line}" for line in lines]
    columns = tuple(column for column in text_columns(config) if column.needed)
    shards = list(read_shards(str(path), config, columns, 3))
    assert [shard.rows.where(row) for shard in shards for row in range(len(shard))] == [
        f"{path}, line {line}" for line in lines
    ]


@pytest.mark.parametrize("read", ["whole", "shards"])
def test_a_malformed_row_is_named_by_its_line(tmp_path: Path, read: str) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b'text,label\n"one\ntwo",1\n\nthree,2\nfour,5,6\n'))
    with pytest.raises(UserError, match=r"a\.csv\.gz, line 6: has 3 columns, the header 2"):
        if read == "whole":
            read_files(str(path), DataConfig(), "data.train", "train")
        else:
            list(read_shards(str(path), DataConfig(), text_columns(DataConfig())[:1], 3))


def test_a_long_text_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f'text,label\n"{"long " * 60_000}\nend",1\nshort,2\n')
    found, _ = read_files(str(path), DataConfig(), "data.train", "train")
    assert found.where(1) == f"{path}, line 4"


def test_a_table_without_lines_has_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"text": "a", "label": 1}, {"text": "b", "label": 2}], indent=1))
    found, _ = read_files(str(path), DataConfig(), "data.train", "train")
    assert found.where(1) == f"{path}, row 2"


@pytest.mark.parametrize("read", ["whole", "shards"])
@pytest.mark.parametrize("last", ["", ",pos"])
@pytest.mark.parametrize("policy", BadRows)
def test_a_quotation_mark_that_is_never_closed_swallows_no_rows(
    tmp_path: Path, policy: BadRows, last: str, read: str
) -> None:
    """Also not where malformed rows are left out, nor where what it swallows has as many columns as any row."""
    path = tmp_path / "a.csv"
    lines = [f"a film {number},{('neg', 'pos')[number % 2]}\n" for number in range(20)]
    lines.insert(8, 'good,"pos\n' if last else '"good,pos\n')
    path.write_text("text,label\n" + "".join(lines))
    config, seen = DataConfig(bad_rows=policy), 0
    with pytest.raises(UserError, match=r"a\.csv, line 10: a quotation mark is never closed.* 13 lines"):
        if read == "whole":
            read_files(str(path), config, "data.train", "train")
        else:
            for shard in read_shards(str(path), config, text_columns(config)[:1], 3):
                seen += len(shard)
    assert seen <= 8  # nobody was given what it swallows


@pytest.mark.parametrize("row", ['"two\nlines",1\n', 'a 5" disk,1\n"one\n",2\n', '"one\nmore",1,3\n'])
def test_a_last_row_of_several_lines_is_no_open_mark(tmp_path: Path, row: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"text,label\nfirst,0\n{row}")
    config = DataConfig(bad_rows=BadRows.drop)
    whole, _ = read_files(str(path), config, "data.train", "train")
    shards = list(read_shards(str(path), config, text_columns(config)[:1], 3))
    assert [text for shard in shards for text in shard.rows.text.to_pylist()] == whole.text.to_pylist()


def test_a_mark_inside_a_text_is_no_open_one(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,label\n\n"two\nlines",1\na 5" disk,2\n')
    found, _ = read_files(str(path), DataConfig(), "data.train", "train")
    assert found.text.to_pylist() == ["two\nlines", 'a 5" disk'] and found.where(1) == f"{path}, line 5"
