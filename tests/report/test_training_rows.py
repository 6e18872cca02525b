import logging

import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from skytune.config import DataConfig, RunConfig
from skytune.data.tables import write_split
from skytune.job import Job, JobDir
from skytune.report.training_rows import _keys, rows_trained_on, warn

TRAIN = [[2, 5, 3], [2, 6, 7, 3], [2, 3], [2, 9, 3]]
TEST = [[2, 8, 3], [2, 3], [2, 4, 4, 3]]


def split(rows):
    return Dataset.from_dict({"input_ids": rows, "labels": [0] * len(rows)}).with_format("torch")


@pytest.fixture
def run(tmp_path):
    """The folder of a run that trained on TRAIN and scored TEST."""
    job = JobDir(tmp_path / "run")
    for name, rows in (("train", TRAIN), ("validation", [[1]]), ("test", TEST)):
        write_split(split(rows), job.inputs / name)
    config = RunConfig(seed=7, data=DataConfig(train="a b.csv", validation_fraction=0.2))
    job.write_job(Job(kind="train", run_key="k", config=config, labels=["a", "b"]))
    job.model.mkdir(parents=True)
    return job


def test_rows_of_the_training_are_counted_and_its_splits_are_named(run, caplog):
    splits = {"test": split([[2, 5, 3], [2, 3], [1, 1], [2, 9, 3]]), "more": split([[5, 2, 3]]), "none": split([])}
    found = rows_trained_on(str(run.model), splits, RunConfig(data=DataConfig()))
    assert found["rows"] == {"test": 2}, "[2, 3] stood in the training's test split too, and was scored there"
    assert found["same_splits"] == "seed=7 'data.train=a b.csv' data.validation_fraction=0.2"
    warn(found, {"test": 4})
    assert "2 of 4 rows of 'test' are rows that this model was trained on" in caplog.text
    assert "(the splits of its training: seed=7 'data.train=a b.csv' data.validation_fraction=0.2)" in caplog.text


def test_nothing_is_said_of_rows_that_are_new(run, caplog):
    assert rows_trained_on(str(run.model), {"test": split(TEST)}, RunConfig()) == {}
    warn({}, {})
    assert not caplog.records


@pytest.mark.parametrize("left", ["nothing", "no train", "damaged"])
def test_a_model_without_a_record_is_said(run, left, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    place = run.model
    if left == "nothing":
        place = tmp_path / "model"
        place.mkdir()
    else:
        (file,) = (run.inputs / "train").glob("*.arrow")
        file.unlink() if left == "no train" else file.write_bytes(b"no arrow")
    assert rows_trained_on(str(place), {"test": split(TRAIN)}, RunConfig()) == {}
    assert "no record of the rows that it was trained on" in caplog.text


@settings(deadline=None)
@given(rows=st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=1, max_size=40))
def test_keys_are_equal_where_rows_are(rows):
    keys = _keys(split(rows).select_columns(["input_ids"]).with_format("arrow")[:]).tolist()
    assert len(set(keys)) == len({tuple(row) for row in rows})
    assert all((a == b) == (x == y) for a, x in zip(keys, rows, strict=True) for b, y in zip(keys, rows, strict=True))


class Bomb:
    def __reduce__(self):
        return (print, ("RAN",))


def arrow(file, column, metadata=None):
    """Write a table whose one column, with such metadata of its field, is called input_ids."""
    import pyarrow as pa

    schema = pa.schema([pa.field("input_ids", column.type, metadata=metadata)], metadata={"huggingface": "[" * 50_000})
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, schema) as stream:
        stream.write_table(pa.table([column], schema=schema))


@pytest.mark.parametrize("kind", ["texts", "numbers", "lists of texts", "no list", "code", "cut", "other columns"])
def test_a_record_of_somebody_else_is_data(run, kind, caplog, capsys):
    import pickle

    import pyarrow as pa

    columns = {
        "texts": pa.array(["a", "b"]),
        "numbers": pa.array([1, 2]),
        "lists of texts": pa.array([["a"], ["b"]]),
        "no list": pa.array([None, [1]], pa.list_(pa.int64())),
    }
    (file,) = (run.inputs / "train").glob("*.arrow")
    codes = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": pickle.dumps(Bomb())}
    if kind == "cut":
        file.write_bytes(file.read_bytes()[:-40])
    elif kind == "other columns":
        file.write_bytes(file.read_bytes().replace(b"input_ids", b"inputs_id"))
    else:
        arrow(file, columns.get(kind, pa.array([b"x"], pa.binary())), codes if kind == "code" else None)
    caplog.set_level(logging.INFO)
    assert rows_trained_on(str(run.model), {"test": split(TRAIN)}, RunConfig()) == {}
    assert "no record of the rows that it was trained on" in caplog.text
    assert "RAN" not in capsys.readouterr().out


@pytest.mark.parametrize("text", ["[" * 50_000, "{}", '{"schema": 1}', "[]", "\x00"])
def test_a_job_of_somebody_else_is_data(run, text):
    (run.root / "job.json").write_text(text)
    found = rows_trained_on(str(run.model), {"test": split(TRAIN)}, RunConfig())
    assert found == {"rows": {"test": 3}, "same_splits": ""}


def test_words_of_somebody_else_move_no_cursor(run):
    job = run.job
    job.config.data.train = "a\x1b[2Jb.csv"
    run.write_job(job)
    assert rows_trained_on(str(run.model), {"test": split(TRAIN)}, RunConfig())["same_splits"] == ""
