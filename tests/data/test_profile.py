"""What `pipeline=data` finds in a file: counted by hand here, and nothing is trained."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from skytune.config import DataConfig, DataSource, UserError
from skytune.data.profile import profile
from skytune.report.data_check import check_summary, data_page, write_check

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def odd_file(table):
    """40 rows: a text twice with one label, one twice with two, one that is long, and one without a text."""
    rows = [(f"the film number {n} is good", ("neg", "pos")[n % 2]) for n in range(36)]
    rows += [("The  film number 3 is good", "pos"), ("the film number 4 is GOOD", "pos")]
    rows += [("good " * 40, "neg"), ("", "pos")]
    return table("odd.csv", rows)


def found_in(path, model, **more):
    config = DataConfig(source=DataSource.files, train=path, **more)
    return config, profile(config, model, 0, {})


def test_it_counts_what_a_person_would_count(odd_file, model):
    config, found = found_in(odd_file, model)
    assert re.search(r"odd.csv, line 41: the text is empty; data.bad_rows=drop", found["refused"])
    splits = found["splits"]
    assert {name: split["rows"] for name, split in splits.items()} == {"train": 31, "validation": 4, "test": 4}
    assert sum(sum(split["classes"]) for split in splits.values()) == 39 and found["names"] == ["neg", "pos"]
    assert sum(split["cut"] for split in splits.values()) == 1 and found["limit"] == 16
    assert max(split["lengths"]["max"] for split in splits.values()) == 42
    for split in splits.values():
        assert sum(count for _, count in split["histogram"]) == split["rows"]
    assert found["notes"]["duplicate_texts"] == 2 and found["notes"]["conflicting_texts"] == 1
    assert found["notes"]["dropped_bad_rows"] == 1
    assert any("several labels" in line for line in found["oddities"])
    page = write_check(config, found)
    text = page.read_text()
    assert "Training on this would end with" in text and "odd.csv, line" in text and "<script" not in text
    lines = check_summary(found, page)
    assert "2 classes: neg (19), pos (20)" in lines and str(page) in lines and "1 cut off at 16" in lines


def test_leaks_between_splits_are_shown_and_kept(table, rows, model):
    train, test = table("train.csv", rows(30)), table("test.csv", [*rows(3), *rows(5, 100)])
    _, found = found_in(train, model, test=test)
    (leak,) = [leak for leak in found["leaks"] if (leak["of"], leak["in"]) == ("train", "test")]
    kept = {place for place, _, _ in leak["examples"]}
    assert leak["count"] == len(kept) <= 3 and all(place.startswith("train.csv, line ") for place in kept)
    assert found["refused"] == ""


def test_whatever_stands_in_the_file_is_text_on_the_page(table, model):
    bad = "<script>alert(1)</script>"
    _, found = found_in(table("a.csv", [(f"{bad} {n}", f"{bad}{n % 2}") for n in range(30)]), model)
    page = data_page(bad, found)
    assert "<script" not in page and "&lt;script&gt;" in page


def test_what_cannot_be_read_at_all_is_one_line(table, model):
    with pytest.raises(UserError, match="needs at least two classes"):
        found_in(table("a.csv", [(f"film {n}", "same") for n in range(9)]), model)


def test_a_data_set_of_numbers_has_no_lengths(model, monkeypatch, tmp_path):
    (tmp_path / "own_numbers.py").write_text(
        "import datasets\ndef make():\n"
        "    rows = range(60)\n"
        "    return datasets.Dataset.from_dict({'x': [[float(n)] for n in rows], 'label': [n % 2 for n in rows]})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = DataConfig(_target_="own_numbers.make")
    found = profile(config, model, 0, {})
    assert "lengths" not in found["splits"]["train"] and found["leaks"] == []
    assert "<h2>First rows</h2>" in data_page("numbers", found)


def test_the_command_looks_and_trains_nothing(odd_file, tiny, tmp_path):
    home = tmp_path / "home"
    words = ["pipeline=data", "data=files", f"data.train={odd_file}", f"model.name={tiny}"]
    command = [sys.executable, str(REPOSITORY / "src" / "run.py"), *words]
    env = {**os.environ, "SKYTUNE_HOME": str(home)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 1 and done.stderr.startswith("error: ") and "line 41: the text is empty" in done.stderr
    assert done.stderr.count("\n") == 1
    (page,) = re.findall(r"page: (\S+)", done.stdout)
    assert Path(page).is_file() and not (home / "runs").exists() and not (home / "zenml").exists()
    done = subprocess.run([*command, "data.bad_rows=drop"], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
