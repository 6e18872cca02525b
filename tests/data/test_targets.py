"""Data by a function of the user's own: every shape that is allowed, and what is said about the others."""

import sys

import pytest
import torch

from skytune.config import ConfigError, DataConfig, UserError
from skytune.data import Source, prepare

MODULE = """
import datasets
import torch

TEXTS = [f"film {'good ' * (n % 5)}{'bad ' * (n // 5 % 5)}{'plot ' * (n // 25)}." for n in range(100)]


def one(count=100, label="label"):
    return datasets.Dataset.from_dict({"text": TEXTS[:count], label: [n % 2 for n in range(count)]})


def splits(kind="dict"):
    parts = {"train": one().select(range(80)), "validation": one().select(range(80, 90)),
             "test": one().select(range(90, 100))}
    return datasets.DatasetDict(parts) if kind == "DatasetDict" else parts


class Map(torch.utils.data.Dataset):
    def __init__(self, numbers=False, count=100):
        self.numbers, self.count = numbers, count

    def __len__(self):
        return self.count

    def __getitem__(self, n):
        if self.numbers:
            ids = torch.tensor([2, 4 + n % 10, 4 + n // 10, 3])
            return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor(n % 3)}
        return {"text": TEXTS[n], "label": torch.tensor(n % 2)}


class Pixels(Map):
    def __getitem__(self, n):
        return {"pixels": torch.full((3, 2, 2), n / 100), "label": n % 2}


def tokenized():
    return datasets.Dataset.from_dict({"input_ids": [[2, 4 + n % 10, 4 + n // 10, 3] for n in range(60)],
                                       "label": datasets.Dataset.from_dict({"x": [n % 2 for n in range(60)]})["x"]})


def tuples():
    return [("a", 0), ("b", 1)]


def uneven():
    return [{"text": "a", "label": 0}, {"text": "b"}]


def transformed():
    data = one()
    data.set_transform(lambda batch: {**batch, "text": [text.upper() for text in batch["text"]]})
    return data


def stream():
    return one().to_iterable_dataset()


def empty():
    return []
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_data.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("own_data", None)
    yield lambda function, **more: DataConfig(_target_=f"own_data.{function}", **more)
    sys.modules.pop("own_data", None)


@pytest.mark.parametrize("function", ["one", "Map"])
def test_one_data_set_is_cut(own, model, function):
    found = prepare(own(function), model, 1, {})
    assert (len(found.train), len(found.validation), len(found.test)) == (80, 10, 10)
    assert found.train.column_names == ["input_ids", "attention_mask", "labels"]
    assert found.labels == ["0", "1"]


@pytest.mark.parametrize("kind", ["dict", "DatasetDict"])
def test_splits_that_are_brought_are_used(own, model, kind):
    found = prepare(own("splits", args={"kind": kind}), model, 1, {"again": "test"})
    assert (len(found.train), len(found.validation), len(found.test)) == (80, 10, 10)
    assert found.notes["test_from"] == "test"
    assert len(found.sets["again"]) == 10
    with pytest.raises(UserError, match=r"data.test=tests: .* returned no such split, only train, validation, test"):
        prepare(own("splits", test="tests"), model, 1, {})


def test_numbers_pass_through_as_they_are(own, model):
    found = prepare(own("Map", args={"numbers": True}), model, 1, {})
    assert found.tokenizer is None
    assert set(found.train.column_names) == {"input_ids", "attention_mask", "labels"}
    assert found.labels == ["0", "1", "2"]
    rows = [tuple(row.tolist()) for split in (found.train, found.validation, found.test) for row in split["input_ids"]]
    assert sorted(rows) == sorted((2, 4 + n % 10, 4 + n // 10, 3) for n in range(100))
    for row in found.train:
        n = (int(row["input_ids"][1]) - 4) + 10 * (int(row["input_ids"][2]) - 4)
        assert int(row["labels"]) == n % 3


def test_token_ids_that_stand_in_two_splits_are_leaks(own, model):
    found = prepare(own("tokenized", test_fraction=0.2), model, 1, {"same": "train"})
    assert found.notes["dropped_leaks_train"] == 0
    assert len(found.train) == 42


def test_other_tensors_keep_their_shape(own, model):
    found = prepare(own("Pixels"), model, 1, {})
    assert set(found.train.column_names) == {"pixels", "labels"}
    assert found.train[0]["pixels"].shape == (3, 2, 2)
    assert found.train[0]["pixels"].dtype == torch.float32
    assert found.notes["leaks"].startswith("not looked for")


@pytest.mark.parametrize(
    ("function", "more", "message"),
    [
        # Case 27: a stream cannot be shared out so that each row is seen once and all processes take as many steps.
        ("stream", {}, r"a split is a IterableDataset, which has no length"),
        ("empty", {}, r"a split has 0 rows"),
        ("transformed", {}, r"the split 'train' has a transform .*: apply it with .map\(\)"),
        ("tuples", {}, r"row 1: is a tuple; every row must be a dictionary"),
        ("uneven", {}, r"row 2: is columns text; every row must be a dictionary of the same columns"),
        (
            "one",
            {"text": "sentence"},
            r"data.text=sentence: no such column in the split 'train'; it has: 'text', 'label'",
        ),
        ("one", {"label": "class"}, r"data.label=class: no such column in train; it has: 'text', 'label'"),
        ("one", {"args": {"cuont": 3}}, r"data._target_=own_data.one: .*cuont"),
        ("nothing", {}, r"data._target_=own_data.nothing: module 'own_data' has no 'nothing'"),
    ],
)
def test_what_is_wrong_is_one_line(own, model, function, more, message):
    with pytest.raises(UserError, match=message) as caught:
        prepare(own(function, **more), model, 1, {})
    assert "\n" not in str(caught.value)


def test_the_fingerprint_knows_code_arguments_and_version(own, tmp_path):
    before = Source(own("one")).fingerprint({})
    assert Source(own("one")).fingerprint({}) == before
    assert Source(own("one", args={"count": 50})).fingerprint({}) != before
    assert Source(own("one", version="2")).fingerprint({}) != before
    (tmp_path / "own_data.py").write_text(MODULE + "\n# edited\n")
    assert Source(own("one")).fingerprint({}) == before
    (tmp_path / "own_data.py").write_text(MODULE + "\nEDITED = 1\n")
    assert Source(own("one")).fingerprint({}) != before
    with pytest.raises(ConfigError, match="has no 'gone'"):
        Source(own("gone")).fingerprint({})
