"""What files may look like, and what is said when they are wrong: always one line that names file and row."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from skytune.config import BadRows, ConfigError, DataConfig, UserError
from skytune.data.files import read_files

TEXTS = ['a "b', "plain", 'crème brûlée, "quoted" and\u2028more', " ' ", "NA", "null", "1"]
LABELS = [0, 1, 0, 1, 0, 1, 1]


def read(files, path, **more):
    rows, skipped = read_files(path, files(path, **more), "data.train", "train")
    return rows, skipped


def content(rows):
    return rows.text.to_pylist(), [int(label) for label in rows.label.to_pylist()]


def as_bytes(kind):
    pairs = list(zip(TEXTS, LABELS, strict=True))
    if kind == "tsv":
        return "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in pairs)
    if kind == "csv":
        quoted = ['"' + text.replace('"', '""') + '"' for text in TEXTS]
        return "text,label\n" + "".join(f"{text},{label}\n" for text, label in zip(quoted, LABELS, strict=True))
    if kind == "json":
        return json.dumps([{"text": text, "label": label} for text, label in pairs])
    return "".join(json.dumps({"text": text, "label": label}, ensure_ascii=False) + "\n" for text, label in pairs)


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl", "json"])
@pytest.mark.parametrize("packed", [False, True])
def test_byte_order_mark_line_ends_and_gzip_change_nothing(files, write, kind, mark, ending, packed):
    data = mark + as_bytes(kind).replace("\n", ending).encode()
    path = write(f"a.{kind}.gz", gzip.compress(data)) if packed else write(f"a.{kind}", data)
    rows, skipped = read(files, path)
    assert content(rows) == (TEXTS, LABELS)
    assert skipped == 0


def test_a_last_line_without_line_end_counts(files, write):
    assert len(read(files, write("a.tsv", "text\tlabel\na\t0\nb\t1"))[0]) == 2


def test_a_stray_quotation_mark_in_tsv_swallows_no_rows(files, write):
    body = "".join(f'"film {n}\t{n % 2}\n' for n in range(100))
    rows, _ = read(files, write("a.tsv", "text\tlabel\n" + body))
    assert len(rows) == 100
    assert rows.text[0].as_py() == '"film 0'


def test_a_quoted_csv_text_may_span_lines(files, write):
    rows, _ = read(files, write("a.csv", 'text,label\n"two\nlines, one text",1\nb,0\n'))
    assert rows.text.to_pylist() == ["two\nlines, one text", "b"]


def test_an_open_quotation_mark_in_csv_is_an_error(files, write):
    with pytest.raises(UserError, match=r"a\.csv, line 3: a quotation mark is never closed"):
        read(files, write("a.csv", 'text,label\na,1\n"b,0\nc,1\n'))


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
def test_parquet(files, tmp_path, kind):
    types = {
        "string": pa.string(),
        "large_string": pa.large_string(),
        "dictionary": pa.dictionary(pa.int32(), pa.string()),
    }
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": pa.array(TEXTS).cast(types[kind]), "label": LABELS, "more": LABELS}), path)
    assert content(read(files, str(path))[0]) == (TEXTS, LABELS)


def test_a_glob_reads_all_files_in_order_and_rows_keep_their_file(files, table, rows, tmp_path):
    for name, start in (("b.tsv", 10), ("a.tsv", 0), ("c.tsv", 20)):
        table(name, rows(10, start))
    found, _ = read(files, str(tmp_path / "*.tsv"))
    assert found.text.to_pylist() == [text for text, _ in rows(30)]
    assert found.where(14).endswith("b.tsv, line 6")


def test_files_of_different_kinds_become_one_split(files, table, rows, tmp_path):
    table("a.csv", rows(4))
    table("b.jsonl", [(text, int(label)) for text, label in rows(4, 4)])
    found, _ = read(files, str(tmp_path / "[ab].*"))
    assert content(found) == ([text for text, _ in rows(8)], [0, 1] * 4)


def test_a_name_with_a_bracket_is_a_file_before_it_is_a_glob(files, table, rows):
    assert len(read(files, table("a[1].tsv", rows(4)))[0]) == 4


def test_any_fsspec_url(files):
    import fsspec

    with fsspec.open("memory://reviews/a.tsv", "wb") as file:
        file.write(b"text\tlabel\na\t0\n")
    assert content(read(files, "memory://reviews/*.tsv")[0]) == (["a"], [0])
    with pytest.raises(UserError, match=r"data.train=memory://reviews/b.tsv: no such file"):
        read(files, "memory://reviews/b.tsv")


def test_s3(files, monkeypatch):
    moto = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("s3fs")
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_ENDPOINT_URL", f"http://{host}:{port}"),
    ):
        monkeypatch.setenv(name, value)
    try:
        client = boto3.client("s3")
        client.create_bucket(Bucket="reviews")
        client.put_object(Bucket="reviews", Key="a/train.tsv", Body=b"text\tlabel\na\t0\n")
        assert content(read(files, "s3://reviews/a/*.tsv")[0]) == (["a"], [0])
        from skytune.data import Source

        before = Source(files("s3://reviews/a/train.tsv")).fingerprint({})
        assert Source(files("s3://reviews/a/train.tsv")).fingerprint({}) == before
        client.put_object(Bucket="reviews", Key="a/train.tsv", Body=b"text\tlabel\na\t1\n")
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()
        assert Source(files("s3://reviews/a/train.tsv")).fingerprint({}) != before
        with pytest.raises(UserError, match=r"s3://reviews/b.tsv: no such file"):
            read(files, "s3://reviews/b.tsv")
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("a.tsv", "", r"a.tsv: the file is empty"),
        ("a.tsv", "\n \n", r"a.tsv: the file is empty"),
        ("a.tsv", "text\tclass\na\t0\n", None),
        ("a.tsv", "sentence\tlabel\na\t0\n", r"data.text=text: no such column in .*a.tsv; it has: 'sentence', 'label'"),
        ("a.jsonl", '{"sentence": "a"}\n', r"data.text=text: no such column in .*a.jsonl; it has: 'sentence'"),
        ("a.tsv", "text\ttext\tlabel\na\tb\t0\n", r"the column 'text' stands there 2 times"),
        ("a.tsv", "text\tlabel\na\t0\nb\tc\t1\n", r"a.tsv, line 3: has 3 columns, the header 2; data.bad_rows=drop"),
        ("a.tsv", b"text\tlabel\na\t0\nb\xff\t1\n", r"a.tsv, line 3: broken UTF-8 \(byte 0xff\)"),
        ("a.csv", b"\xef\xbb\xbftext,label\na,0\nb\xe9,1\n", r"a.csv, line 3: broken UTF-8 \(byte 0xe9\)"),
        ("a.jsonl", b'{"text": "\xff"}', r"a.jsonl, line 1: broken UTF-8"),
        ("a.txt", "text\tlabel\na\t0\n", r"cannot tell what kind of file .*a.txt is; known endings: .csv"),
        ("noending", "text\tlabel\na\t0\n", r"cannot tell what kind of file"),
        ("a.jsonl", '{"text": "a"}\n{"text": \n', r"a.jsonl, line 2: is not valid JSON"),
        ("a.json", '[{"text": "a"},]', r"a.json: is not valid JSON"),
        ("a.jsonl", '{"text": "a"}\n["a", 0]\n', r"a.jsonl, line 2: is no JSON object"),
        ("a.jsonl", '{"text": "a", "label": {"x": 1}}\n', r"a.jsonl, line 1: 'label' is .*not one class"),
        ("a.parquet", b"PAR1 not really PAR1", r"a.parquet: is no readable Parquet file"),
        ("a.tsv.gz", gzip.compress(b"text\tlabel\n" * 50, mtime=0)[:-12], r"a.tsv.gz: is not a whole gzip file"),
    ],
)
def test_a_broken_file_is_one_line(files, write, name, body, message):
    path = write(name, body)
    if message is None:  # a label column may be absent: that is an unlabelled test split
        assert read(files, path)[0].label is None
        return
    with pytest.raises(UserError, match=message) as caught:
        read(files, path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_a_folder_and_a_glob_without_match(files, tmp_path):
    with pytest.raises(UserError, match=r"data.train=.*no.tsv: no such file"):
        read(files, str(tmp_path / "no.tsv"))
    with pytest.raises(UserError, match=r"no file matches"):
        read(files, str(tmp_path / "*.tsv"))
    (tmp_path / "folder.tsv").mkdir()
    with pytest.raises(UserError, match=r"folder.tsv: is a folder without a table in it"):
        read(files, str(tmp_path / "folder.tsv"))
    with pytest.raises(UserError, match=r"nowhere://a.tsv"):
        read(files, "nowhere://a.tsv")


def test_parquet_with_broken_utf8_or_without_text(files, tmp_path):
    path = tmp_path / "a.parquet"
    broken = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff"))
    pq.write_table(pa.table({"text": broken, "label": [1]}), path)
    with pytest.raises(UserError, match=r"a.parquet: is no readable Parquet file: .*UTF"):
        read(files, str(path))
    pq.write_table(pa.table({"text": [5], "label": [1]}), path)
    with pytest.raises(ConfigError, match=r"column 'text' holds int64, not text"):
        read(files, str(path))


def test_malformed_rows_can_be_left_out(files, write):
    path = write("a.tsv", "text\tlabel\na\t0\nb\tc\t1\nd\nd\t1\n")
    rows, skipped = read(files, path, bad_rows=BadRows.drop)
    assert (rows.text.to_pylist(), skipped) == (["a", "d"], 2)


@pytest.mark.parametrize(
    "spec",
    ["zip://a.csv::/nope.zip", "ftp://127.0.0.1:9/x.csv", "reference://x.csv", "foo://x.csv", "https://[::1/x.csv"],
)
def test_whatever_a_file_system_raises_is_one_line(spec):
    with pytest.raises(UserError, match=r"^data.train=") as refused:
        read_files(spec, DataConfig(name="x"), "data.train", "train")
    assert "\n" not in str(refused.value)
