"""What is odd about rows that can be trained on is said, and the way out that a line names works."""

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skytune.config import BadRows, DataConfig, DataSource, UserError
from skytune.data import prepare
from skytune.data.quality import class_oddities, contradictions, small_test
from skytune.data.rows import Rows


def odd(names, train=None, test=None, **more):
    counts = {"train": np.array(train or [10] * len(names)), "test": np.array(test or [2] * len(names))}
    return class_oddities(names, counts, DataConfig(**more))


@pytest.fixture
def prepared(model, caplog, ways_out):
    """prepared(path, **more) prepares a file; returns the splits and the lines of warning."""

    def _prepared(path, **more):
        caplog.clear()
        config = DataConfig(source=DataSource.files, train=str(path), **more)
        with caplog.at_level(logging.INFO):
            found = prepare(config, model, 0, {})
        lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        return found, [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]

    return _prepared


def test_names_that_differ_in_case_or_blanks_alone():
    (line,) = odd(["neg", "pos", "POS", "Po s"], [10, 20, 2, 1])
    assert line.startswith("classes that differ in case or blanks alone: 'pos' and 'POS' and 'Po s'; ")
    assert 'data.label_map={POS:pos,"Po s":pos}' in line
    assert not odd(["neg", "pos", "POS"], labels=["neg", "pos", "POS"])  # a person has named them
    assert not odd(["neg", "pos", "neutral"])


@pytest.mark.parametrize("word", ["NaN", "None", "NA", "null", "n/a", "-", "Missing"])
def test_names_that_mean_none(word):
    (line,) = odd(["neg", "pos", word])
    assert line.startswith(f"{word!r} (12 rows) may stand for no label; ")
    assert not odd(["neg", "pos", word], labels=["neg", "pos", word])


def test_numbers_with_a_decimal_comma():
    (line,) = odd(["0,5", "1,5", "-2,0"])
    assert (
        line == "'0,5', '1,5', '-2,0' look like numbers with a decimal comma: with a point they are task=regression's"
    )
    assert not odd(["0,5", "1,5"], labels=["0,5", "1,5"]) and not odd(["0,5", "half"])


def test_classes_without_rows_enough():
    lines = odd(["a", "b", "c", "d"], [5, 1, 0, 1], [1, 0, 0, 1])
    assert lines == [
        "1 of 4 classes has a single row: 'b'",
        "1 of 4 classes has no row in test: 'b'",
        "1 of 4 classes has no row at all: 'c'",
    ]


def test_a_test_split_that_is_too_small():
    (line,) = small_test(24, cut=True)
    assert line.startswith(
        "the test split has 24 rows: an accuracy on it is known to 20 points up or down; data.test_fr"
    )
    assert small_test(96, cut=True) and not small_test(97, cut=True)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a", "A ", "b", "c"]), st.integers(0, 2)), max_size=12))
def test_contradictions_are_those_that_a_dictionary_finds(pairs):
    import pyarrow as pa

    rows = Rows(name="x", text=pa.chunked_array([pa.array([text for text, _ in pairs], pa.large_string())]))
    numbers = np.array([number for _, number in pairs], dtype=np.int64)
    wanted: dict[str, list[int]] = {}
    for place, (text, _) in enumerate(pairs):
        wanted.setdefault(text.strip().casefold(), []).append(place)
    wanted_groups = [group for group in wanted.values() if len({pairs[place][1] for place in group}) > 1]
    assert sorted(contradictions(rows, numbers)) == sorted(wanted_groups)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("mixed-case.csv", ["differ in case"]),
        ("missing-words.csv", ["may stand for no label"]),
        ("dupes.csv", ["stand in train with several labels; the first: "]),
        ("one-row-class.csv", ["a single row"]),
        ("imb40.csv", ["17 of 40 classes have no row in test"]),
        ("emoji-labels.csv", []),
        ("plain.csv", []),
    ],
)
def test_the_faults_that_were_seen(faults, prepared, name, parts):
    _, lines = prepared(faults / name)
    assert all("\n" not in line for line in lines)
    for part in parts:
        assert any(part in line for line in lines), lines
    rest = [line for line in lines if not any(part in line for part in parts)]
    assert all(line.startswith("the test split has") or "class" in line for line in rest), rest


def test_a_partly_labelled_file_trains_on_its_labelled_rows(faults, model, prepared, ways_out):
    with pytest.raises(UserError, match=r"has no label .*; data.bad_rows=drop leaves such rows out") as caught:
        prepared(faults / "partly.csv")
    clause = str(caught.value).replace(" (a -1 that is a class: name it in data.labels)", "")
    (way,) = ways_out(clause, faults / "partly.csv")
    found = prepare(way, model, 0, {})
    lines = (faults / "partly.csv").read_text().splitlines()[1:]
    labelled = [line for line in lines if line.rpartition(",")[2]]
    assert 0 < found.notes["rows_read"] == len(labelled) < len(lines)
    assert found.notes["dropped_bad_rows"] == len(lines) - len(labelled)


@pytest.mark.parametrize("name", ["mixed-case.csv", "missing-words.csv"])
def test_the_way_out_of_a_warning_works(faults, prepared, ways_out, name):
    _, lines = prepared(faults / name)
    (line,) = [line for line in lines if "data." in line and "test split" not in line]
    more, count = [], 0
    for way in ways_out(line, faults / name):
        count += 1
        more = prepared(faults / name, missing=way.missing, label_map=way.label_map, bad_rows=way.bad_rows)[1]
        assert line not in more and not any("differ in case" in m or "may stand" in m for m in more), more
    assert count == 1


def test_what_stands_for_no_label(table, prepared, rows):
    lines = [*rows(20, names=("pos", "neg")), ("without one", "Unknown"), ("nor here", " n/a ")]
    path = table("a.csv", lines)
    with pytest.raises(UserError, match="has no label"):
        prepared(path, missing=["unknown", "N/A"])
    found, _ = prepared(path, missing=["unknown", "N/A"], bad_rows=BadRows.drop)
    assert (found.notes["rows_read"], found.labels) == (20, ["neg", "pos"])
    numbers = table("b.csv", [(text, {"pos": 1, "neg": 0}.get(label, 9)) for text, label in lines])
    assert prepared(numbers, missing=["9"], bad_rows=BadRows.drop)[0].labels == ["0", "1"]


def test_the_line_says_how_many_rows_each_class_has(table, rows, model, caplog):
    with caplog.at_level(logging.INFO):
        prepare(
            DataConfig(source=DataSource.files, train=table("a.csv", rows(120, names=("neg", "pos")))), model, 0, {}
        )
    assert "2 classes: neg (60), pos (60)" in caplog.text
