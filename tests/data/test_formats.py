"""Tables as people have them: between semicolons, compressed, from Excel, nested, misnamed; and the ways out."""

import bz2
import datetime
import gzip
import io
import json
import logging
import lzma
import shutil
import zipfile

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skytune.config import BadRows, ConfigError, DataConfig, DataSource, FileFormat, UserError
from skytune.data.columns import missing
from skytune.data.files import read_files

ROWS = [("a fine film", "pos"), ("dull, and long", "neg"), ('so "so"', "pos"), ("crème", "neg")]
CSV = 'text,label\na fine film,pos\n"dull, and long",neg\n"so ""so""",pos\ncrème,neg\n'


def read(path, **more):
    return read_files(str(path), DataConfig(source=DataSource.files, train=str(path), **more), "data.train", "train")[0]


def content(rows):
    return list(zip(rows.text.to_pylist(), rows.label.to_pylist(), strict=True))


def zipped(**members):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in members.items():
            archive.writestr(name.replace("__", "."), body)
    return data.getvalue()


def zstd(data):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(data)
    return sink.getvalue().to_pybytes()


def workbook(*sheets):
    import openpyxl

    book = openpyxl.Workbook()
    book.remove(book.active)
    for number, lines in enumerate(sheets):
        sheet = book.create_sheet(f"Sheet{number + 1}")
        for line in lines:
            sheet.append(line)
    data = io.BytesIO()
    book.save(data)
    return data.getvalue()


def told(caplog):
    return [record.getMessage() for record in caplog.records if record.name.startswith("skytune.data")]


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a"])
@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zstd, lambda data: zipped(a__csv=data)])
def test_a_compressed_file_is_known_by_how_it_begins(write, name, pack):
    more = {} if "." in name else {"format": FileFormat.csv}
    assert content(read(write(name, pack(CSV.encode())), **more)) == ROWS


@pytest.mark.parametrize("name", ["a.csv.gz", "a.csv.xz", "a.csv.zip"])
def test_a_plain_file_that_is_called_compressed_is_read(write, name):
    assert content(read(write(name, CSV))) == ROWS


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zstd, lambda data: zipped(a__csv=data)])
def test_half_a_compressed_file_is_one_line(write, pack):
    whole = pack(CSV.encode() * 50)
    with pytest.raises(UserError, match=r"a.csv: is not a whole (gzip|bz2|xz|zstd|zip) file") as caught:
        read(write("a.csv", whole[: len(whole) // 2]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("pack", [gzip.compress, lambda data: zipped(a__csv=data)])
def test_what_is_packed_again_and_again_is_refused(write, pack):
    """There are archives that hold themselves, and would be unpacked for ever."""
    data = CSV.encode()
    for _ in range(3):
        data = pack(data)
    assert content(read(write("three.csv", data))) == ROWS
    with pytest.raises(UserError, match=r"a\.csv: is packed more than 3 times over: unpack it$"):
        read(write("a.csv", pack(data)))


def test_a_zip_of_several_tables_says_how_to_name_one(write, ways_out):
    path = write("a.zip", zipped(train__csv=CSV, test__csv=CSV, README__md="x", __MACOSX__x="y"))
    with pytest.raises(UserError, match=r"holds 2 files \(train.csv, test.csv\)") as caught:
        read(path)
    (way,) = ways_out(caught.value, path)
    assert content(read(way.train)) == ROWS


@pytest.mark.parametrize("mark", [";", "\t", "|"])
@pytest.mark.parametrize("text", ["plain", "one; two, three", 'said "no"'])
def test_other_delimiters_are_recognised_and_said(write, caplog, mark, text):
    quoted = '"' + text.replace('"', '""') + '"'
    with caplog.at_level(logging.INFO):
        found = read(write("a.csv", f"text{mark}label\n{quoted}{mark}pos\nb{mark}neg\n"))
    assert content(found) == [(text, "pos"), ("b", "neg")]
    (line,) = told(caplog)
    assert line.endswith({";": "has semicolons", "\t": "has tabs", "|": "has bars"}[mark] + " between its columns")


@pytest.mark.parametrize("mark", ["^", ";", ":", " ", "~", "tab"])
def test_a_delimiter_that_is_given_holds(write, mark):
    letter = {"tab": "\t"}.get(mark, mark)
    path = write("a.txt", f'text{letter}label\n"a{letter}b"{letter}1\n')
    assert content(read(path, delimiter=mark, format=FileFormat.csv)) == [(f"a{letter}b", "1")]


@pytest.mark.parametrize("word", [";;", "", "é", "a", '"', "\n"])
def test_what_cannot_be_a_delimiter_is_refused(word):
    with pytest.raises(ConfigError, match=r"data.delimiter=.*must be one character"):
        DataConfig(delimiter=word)


def test_excels_own_word_for_the_delimiter_is_no_header(write):
    assert content(read(write("a.csv", "sep=;\r\ntext;label\r\na;1\r\n"))) == [("a", "1")]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252", "latin-1", "shift_jis"])
def test_encodings(write, encoding):
    body = CSV if encoding != "shift_jis" else CSV.replace("crème", "映画")
    rows = read(write("a.csv", body.encode(encoding)), encoding=encoding)
    assert [text for text, _ in content(rows)][:2] == [text for text, _ in ROWS][:2]
    assert content(rows)[3][0] == ("映画" if encoding == "shift_jis" else "crème")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_a_byte_order_mark_is_enough(write, encoding):
    assert content(read(write("a.csv", CSV.encode(encoding)))) == ROWS


def test_an_unknown_encoding_is_refused():
    for name in ("no-such", "base64", "rot13", "a\0b"):
        with pytest.raises(ConfigError, match=r"data.encoding=.*no such encoding"):
            DataConfig(encoding=name)


def test_excel(write, caplog):
    lines = [
        ("text", "label", "n"),
        (1984, "pos", 1),
        (2.0, "neg", 2),
        (datetime.date(2020, 1, 2), "pos"),
        (None, "neg"),
    ]
    with caplog.at_level(logging.INFO):
        found = read(write("a.xlsx", workbook([("notes",)], [*lines, (None, None)], [("text",), ("no",)])))
    assert content(found) == [("1984", "pos"), ("2", "neg"), ("2020-01-02 00:00:00", "pos"), (None, "neg")]
    assert "of the sheets of" in told(caplog)[0] and "'Sheet2' is read" in told(caplog)[0]
    numbers = read(write("b.xlsx", workbook([("text", "label"), ("a", 0), ("b", 1.0)])))
    assert numbers.label.to_pylist() == [0, 1]


def test_a_workbook_called_otherwise_or_without_the_column_or_broken(write):
    data = workbook([("text", "label"), ("a", "x")])
    assert content(read(write("a.zip", data))) == [("a", "x")]
    with pytest.raises(ConfigError, match=r"data.text=body: no such column in .*; it has: 'text', 'label'"):
        read(write("a.xlsx", data), text="body")
    for body in (data[:500], zipped(**{"[Content_Types]__xml": "<x"}), workbook([])):
        with pytest.raises(UserError, match=r"b.xlsx: ") as caught:
            read(write("b.xlsx", body))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["csv", "tsv", "xlsx"])
def test_files_without_a_line_of_names(write, kind):
    lines = [("good, really", "pos"), ("bad", "neg")]
    body = {
        "csv": '"good, really",pos\nbad,neg\n',
        "tsv": "good, really\tpos\nbad\tneg\n",
        "xlsx": workbook(lines),
    }[kind]
    assert content(read(write(f"a.{kind}", body), columns=["text", "label"])) == lines
    if kind != "xlsx":
        bad = body + {"csv": "a,b,c\n", "tsv": "a\tb\tc\n"}[kind]
        with pytest.raises(UserError, match=r", line 3: has 3 columns, the header 2"):
            read(write(f"b.{kind}", bad), columns=["text", "label"])


RECORDS = [
    {"doc": {"title": "A", "body": {"text": "one"}}, "meta": {"label": "x"}, "n": 1},
    {"doc": {"title": None, "body": {"text": "two"}}, "meta": {"label": "y"}, "n": 2},
    {"doc": {"title": "", "body": {"text": " "}}, "meta": {"label": "x"}, "n": 3},
]


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "arrow", "feather"])
def test_nested_columns_and_templates(write, tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    table = pa.Table.from_pylist(RECORDS)
    if kind == "parquet":
        pq.write_table(table, path)
    elif kind == "feather":
        pyarrow.feather.write_feather(table, str(path))
    elif kind == "arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as out:
            out.write_table(table)
    else:
        path.write_text(json.dumps(RECORDS) if kind == "json" else "".join(json.dumps(r) + "\n" for r in RECORDS))
    found = read(path, text="doc.body.text", label="meta.label")
    assert content(found) == [("one", "x"), ("two", "y"), (" ", "x")]
    joined = read(path, text=r"{doc.title}\n{doc.body.text} \\ {{", label="meta.label")
    assert joined.text.to_pylist() == ["A\none \\ {", "\ntwo \\ {", None]
    assert read(path, text="No. {n}", label="meta.label").text.to_pylist() == ["No. 1", "No. 2", "No. 3"]
    pairs = read(path, text="doc.title", text_pair="{n}: {doc.body.text}", label="meta.label")
    assert pairs.pair.to_pylist() == ["1: one", "2: two", "3:  "]
    with pytest.raises(
        ConfigError, match=r"no such column 'doc.tilte' in .*; '?data.text=\{n\} \{doc.title\}'? may be"
    ):
        read(path, text="{n} {doc.tilte}", label="meta.label")


def test_a_column_with_a_dot_in_its_name_goes_before_a_nested_one(write):
    path = write("a.jsonl", json.dumps({"a.b": "flat", "a": {"b": "deep"}, "label": 1}) + "\n")
    assert read(path, text="a.b").text.to_pylist() == ["flat"]
    assert content(read(write("a.csv", "a.b,label\nx,1\n"), text="a.b")) == [("x", "1")]


@settings(deadline=None)
@given(st.lists(st.tuples(*[st.text(st.characters(blacklist_categories=["Cs", "Cc"])) | st.none()] * 2), min_size=1))
def test_a_template_puts_every_text_in_its_place(tmp_path_factory, pairs):
    path = tmp_path_factory.mktemp("t") / "a.jsonl"
    path.write_text("".join(json.dumps({"a": a, "b": b, "label": 1}) + "\n" for a, b in pairs), encoding="utf-8")
    blank = [not (a or "").strip() and not (b or "").strip() for a, b in pairs]
    expected = [None if none else f"<{a or ''}|{b or ''}>" for none, (a, b) in zip(blank, pairs, strict=True)]
    assert read(path, text="<{a}|{b}>").text.to_pylist() == expected


@pytest.mark.parametrize("spec", ["{", "}", "{}", "{a:>3}", "{a!r}", "a}", "{a} {"])
def test_braces_that_hold_no_column(spec):
    with pytest.raises(ConfigError, match=r"data.text=.*: braces hold the names of columns"):
        DataConfig(text=spec)


def test_a_saved_data_set(tmp_path, ways_out):
    import datasets

    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    )
    made = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [0, 1, -1]}, features=features)
    made.save_to_disk(str(tmp_path / "one"), num_shards=2)
    found = read(tmp_path / "one")
    assert content(found) == [("a", "bad"), ("b", "good"), ("c", None)]
    assert found.names == ["bad", "good"]
    datasets.DatasetDict(train=made, test=made).save_to_disk(str(tmp_path / "all"))
    with pytest.raises(UserError, match=r"holds the splits train, test; give data.train=") as caught:
        read(tmp_path / "all")
    (way,) = ways_out(caught.value, tmp_path / "all")
    assert [len(read(place)) for place in (way.train, way.test)] == [3, 3]
    state = json.loads((tmp_path / "one/state.json").read_text())
    for name in ("../secret.arrow", "/etc/passwd", 7):
        (tmp_path / "one/state.json").write_text(json.dumps({**state, "_data_files": [{"filename": name}]}))
        with pytest.raises(UserError, match=r"one: .*(not trusted|not the name)"):
            read(tmp_path / "one")


def test_a_folder_of_tables_says_what_to_give(tmp_path, write, ways_out):
    write("few/a.parquet.txt", "x")
    write("few/deep/a.jsonl", '{"text": "a", "label": 1}\n')
    write("many/a.csv.gz", gzip.compress(CSV.encode()))
    write("many/b.csv.gz", gzip.compress(CSV.encode()))
    write("many/c.tsv", "text\tlabel\n")
    (tmp_path / "empty").mkdir()
    for name, rows in (("few", 1), ("many", 8)):
        with pytest.raises(UserError, match=r"is a folder; give files in it, such as") as caught:
            read(tmp_path / name)
        (way,) = ways_out(caught.value, tmp_path / name)
        assert len(read(way.train)) == rows
    with pytest.raises(UserError, match=r"empty: is a folder without a table in it"):
        read(tmp_path / "empty")


@pytest.mark.parametrize(
    ("name", "body", "more"),
    [
        ("pandas.tsv", 'text\tlabel\n"she said ""no""\tand left"\tneg\nb\tpos\n', {}),
        ("quoted.tsv", '"text"\t"label"\n"a"\t"neg"\n"b"\t"pos"\n', {}),
        ("glue.csv", 'text\tlabel\n"a" b\t0\n"c\t1\nd\t0\n', {}),
        ("old.csv", CSV.encode("cp1252"), {}),
        ("odd.csv", CSV.encode("latin-1") + b"\x81,pos\n", {}),
        ("wide.csv", CSV.encode("utf-16-le"), {}),
        ("wide.tsv", "text\tlabel\na\t1\n".encode("utf-16-be"), {}),
        ("a.txt", CSV, {}),
        ("b.txt", "text\tlabel\na\t1\n", {}),
        ("c.data", '{"text": "a", "label": 1}\n', {}),
        ("noending", '[{"text": "a", "label": 1}]', {}),
        ("other.csv", "sentence;label\na;1\n", {}),
        ("case.csv", "Text,label\na,1\n", {}),
        ("blank.csv", "id, text,label\n1,a,1\n", {}),
        ("odd name.csv", 'id,"my: text, it\'s",label\n1,a,1\n', {"text": "my:text,its"}),
        ("stars.parquet", pa.table({"text": [1, 2], "label": ["a", "b"]}), {}),
        ("far.csv", "text,label\na,b,c\nd,1\n", {}),
    ],
)
def test_the_way_out_that_a_message_names_works(write, tmp_path, ways_out, name, body, more):
    if isinstance(body, pa.Table):
        pq.write_table(body, tmp_path / name)
        path = str(tmp_path / name)
    else:
        path = write(name, body)
    with pytest.raises(UserError) as caught:
        read(path, **more)
    assert "\n" not in str(caught.value)
    ways = list(ways_out(caught.value, path))
    assert ways, str(caught.value)
    for way in ways:
        rows, lost = read_files(path, way, "data.train", "train")
        assert len(rows) and rows.label is not None, str(caught.value)
        assert None not in rows.text.to_pylist()
        assert lost == 0 or way.bad_rows is BadRows.drop


def test_texts_in_quotes_that_stay_are_said(write, caplog):
    body = "text\tlabel\n" + "".join(f'"film {n}"\tpos\n' for n in range(10))
    with caplog.at_level(logging.WARNING):
        assert read(write("a.tsv", body)).text[0].as_py() == '"film 0"'
    assert "data.format=csv data.delimiter=tab" in told(caplog)[0]
    caplog.clear()
    read(write("a.tsv", body + 'a "film"\tneg\n'))
    assert not told(caplog)


@pytest.mark.parametrize(
    ("name", "body", "what"),
    [
        ("a.csv", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "old Excel workbook"),
        ("a.csv", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        ("a.csv", b"\n<!DOCTYPE html>\n<html></html>", "web page"),
        ("a.parquet", b"SQLite format 3\0" + bytes(100), "SQLite"),
        ("a.pkl", b"\x80\x04\x95", "pickle"),
        ("a.csv", zipped(mimetype="application/vnd.oasis.opendocument.spreadsheet", content__xml="x"), "OpenDocument"),
        ("a.7z", b"7z\xbc\xaf\x27\x1c", "archive"),
        ("a.zip", zipped(), "empty"),
    ],
)
def test_what_is_no_table_is_named(write, name, body, what):
    with pytest.raises(UserError, match=what) as caught:
        read(write(name, body))
    assert "\n" not in str(caught.value)


def test_a_format_that_does_not_fit_is_one_line(write):
    for kind in FileFormat:
        for body in (b"\x00\x01\x02\xff", b"{", b"PAR1", b"", b"a"):
            with pytest.raises(UserError) as caught:
                read(write("a.bin", body), format=kind)
            assert "\n" not in str(caught.value), (kind, body)


def test_the_faults_that_were_seen(faults, tmp_path):
    for name in ("semi.csv", "semicolon.csv"):
        assert len(read(faults / name)) > 50
    assert read(faults / "flat.jsonl", text="{text} {meta.a}").text[1].as_py().endswith(" 1")
    assert read(faults / "saved_to_disk").names == ["bad", "good"]
    shutil.copy(faults / "pandas_quoted.tsv", tmp_path / "a.tsv")
    with pytest.raises(UserError, match=r"data\.format=csv data\.delimiter=tab"):
        read(tmp_path / "a.tsv")
    found = read(tmp_path / "a.tsv", format=FileFormat.csv, delimiter="tab")
    assert found.text[2].as_py() == 'she said "never again"\tand left'


PAIRS = [(f"row {number} is a good one, really", ("neg", "pos")[number % 2]) for number in range(6)]
DOCUMENTS = {
    "list inside": {"version": 1, "data": [dict(zip(("text", "label"), pair, strict=True)) for pair in PAIRS]},
    "columns": {"text": [text for text, _ in PAIRS], "label": [label for _, label in PAIRS]},
    "pandas": {
        "text": {str(n): text for n, (text, _) in enumerate(PAIRS)},
        "label": {str(n): label for n, (_, label) in enumerate(PAIRS)},
    },
}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_json_documents_that_are_no_array_are_read(write, caplog, kind, indent):
    caplog.set_level(logging.INFO)
    found = read(write("a.json", json.dumps(DOCUMENTS[kind], indent=indent)))
    assert content(found) == PAIRS and found.where(2).endswith("a.json, row 3")
    assert "a.json is an object" in told(caplog)[0]


def test_one_object_is_one_row(write):
    assert content(read(write("a.json", '{"text": "a", "label": "x"}'))) == [("a", "x")]


def test_a_sheet_may_have_a_title(write):
    data = workbook([("Report", None), (None, None), ("text", "label"), *PAIRS])
    assert content(read(write("a.xlsx", data))) == PAIRS


def csv_of(header, between=","):
    return "".join(f'"{a}"{between}{b}\n' if a != header[0] else f"{a}{between}{b}\n" for a, b in [header, *PAIRS])


NAMED = {
    "called otherwise": csv_of(("sentence", "sentiment")),
    "capitals": csv_of(("Text", "Label")),
    "blanks": csv_of(("text ", " label")),
    "colons": csv_of(("text", "label"), ":"),
    "no line of names": csv_of(("", ""))[2:],
    "inside": "".join(json.dumps({"doc": {"text": a}, "meta": {"label": b}}) + "\n" for a, b in PAIRS),
}


@pytest.mark.parametrize("kind", NAMED)
def test_the_ways_out_lead_there(write, ways_out, kind):
    """Each hint typed as it stands, one after the other, and the table is read whole."""
    path, more = write("a.jsonl" if kind == "inside" else "a.csv", NAMED[kind]), {}
    for _ in range(3):
        try:
            found = read(path, **more)
            if found.label is not None:
                break
            raise ConfigError(missing("data.label", "label", "label", found.columns, path, [more.get("text", "text")]))
        except ConfigError as error:
            (made,) = ways_out(
                error, path, **{key: f"'{value}'" if key == "text" else value for key, value in more.items()}
            )
            keys = ("text", "label", "delimiter", "columns")
            more = {key: getattr(made, key) for key in keys if getattr(made, key) != getattr(DataConfig(), key)}
    assert content(found) == PAIRS
