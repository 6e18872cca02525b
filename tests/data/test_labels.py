import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skytune.config import ConfigError, UserError
from skytune.data.labels import encode, find_classes, labelled
from skytune.data.rows import Rows


def rows(values, names=None, name="train", kind=None):
    label = pa.chunked_array([pa.array(values, kind)])
    text = pa.chunked_array([pa.array([f"text {n}" for n in range(len(values))], pa.large_string())])
    return Rows(name=name, text=text, label=label, names=names, parts=[(f"{name}.tsv", len(values))])


@pytest.mark.parametrize(
    ("values", "given", "names", "numbers"),
    [
        ([0, 1, 2, 0], None, ["0", "1", "2"], [0, 1, 2, 0]),
        (["0", "1", "1"], None, ["0", "1"], [0, 1, 1]),
        (["1", "0"], ["negative", "positive"], ["negative", "positive"], [1, 0]),
        ([1.0, 0.0], None, ["0", "1"], [1, 0]),
        (["1.0", "0", "1"], None, ["0", "1"], [1, 0, 1]),
        (["pos", "neg", " pos "], None, ["neg", "pos"], [1, 0, 1]),
        (["pos", "neg"], ["pos", "neg"], ["pos", "neg"], [0, 1]),
        (["1", "5", "3"], ["1", "3", "5"], ["1", "3", "5"], [0, 2, 1]),
        ([5, 1], ["5", "1"], ["5", "1"], [0, 1]),
        ([True, False], None, ["False", "True"], [1, 0]),
        (["b", "a"], ["a", "b", "c"], ["a", "b", "c"], [1, 0]),
        ([0, 2], ["a", "b", "c"], ["a", "b", "c"], [0, 2]),
        (["0.5", "1.5"], ["1.5", "0.5"], None, None),
    ],
)
def test_which_classes_there_are(values, given, names, numbers):
    split = rows(values)
    if names is None:
        with pytest.raises(UserError, match="not a whole number"):
            find_classes(split, given)
        return
    classes = find_classes(split, given)
    assert classes.names == names
    assert encode(split, classes).tolist() == numbers


def test_names_that_the_data_declares_survive_and_can_be_renamed():
    split = rows([1, 0, 1], names=["neg", "pos"])
    assert find_classes(split, None).names == ["neg", "pos"]
    assert find_classes(split, ["bad", "good"]).names == ["bad", "good"]
    with pytest.raises(ConfigError, match=r"the data set has 2 classes: neg, pos"):
        find_classes(split, ["a", "b", "c"])


def test_arrow_dictionaries_are_labels_too():
    split = rows(pa.array(["x", "y", "x"]).dictionary_encode())
    classes = find_classes(split, None)
    assert encode(split, classes).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("values", "given", "message"),
    [
        ([0, 1, 7], None, r"train.tsv, row 3: label 7, but no row has label 2: numbers run from 0"),
        ([1, 2], None, r"train.tsv, row 1: label 1, but no row has label 0"),
        ([0, 1, 7], ["a", "b"], r"train.tsv, row 3: label 7 is not one of the 2 classes \(0=a, 1=b\)"),
        (["a", "b", "c"], ["a", "b"], r"train.tsv, row 3: label 'c' is not one of the 2 classes \(a, b\)"),
        ([0, 1, -2], ["a", "b"], r"train.tsv, row 3: label -2 is not one"),
        ([0.0, 1.0, 0.5], None, r"train.tsv, row 3: label 0.5 is not a whole number"),
        (["0", "1", "0.5"], None, r"train.tsv, row 3: label 0.5 is not a whole number"),
        ([0, 1, -1], None, r"train.tsv, row 3: has no label \(empty or -1\), and so have 1 of 3 rows of train"),
        ([-1, -1], None, r"train.tsv, row 1: has no label"),
        ([0, None, 1], None, r"train.tsv, row 2: has no label"),
        (["a", "", "b"], None, r"train.tsv, row 2: has no label"),
        ([0.0, float("nan"), 1.0], None, r"train.tsv, row 2: has no label"),
        ([1, 1, 1], ["a", "b"], r"train: all 3 rows have the label 'b': a classifier needs at least two classes"),
        (["x", "x"], None, r"train: all 2 rows have the label 'x'"),
        ([], None, r"train: 0 rows are left"),
    ],
)
def test_a_wrong_label_names_itself_and_its_row(values, given, message):
    split = rows(values, kind=None if values else pa.int64())
    with pytest.raises(UserError, match=message) as caught:
        encode(split, find_classes(split, given))
    assert "\n" not in str(caught.value)


def test_a_label_that_only_another_split_has():
    classes = find_classes(rows(["a", "b"]), None)
    with pytest.raises(UserError, match=r"validation.tsv, row 2: label 'c' is not one of the 2 classes \(a, b\)"):
        encode(rows(["a", "c"], name="validation"), classes)
    numbers = find_classes(rows([0, 1]), None)
    with pytest.raises(UserError, match=r"test.tsv, row 1: label 2 is not one of the 2 classes \(0, 1\)"):
        encode(rows([2, 1], name="test"), numbers)
    with pytest.raises(UserError, match=r"label 0 is not one of the 2 classes \(a, b\)"):
        encode(rows([0, 1], name="test"), classes)


def test_unlabelled_is_all_or_nothing():
    classes = find_classes(rows([0, 1]), None)
    split = rows([-1, -1], name="test")
    assert labelled(split, encode(split, classes), whole=True) is False
    split = rows([1, 0], name="test")
    assert labelled(split, encode(split, classes), whole=True) is True
    split = rows([1, -1], name="test")
    with pytest.raises(UserError, match=r"test.tsv, row 2: has no label .* 1 of 2 rows of test"):
        labelled(split, encode(split, classes), whole=True)
    split.label = None
    assert (encode(split, classes) == -1).all()


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=60))
def test_numbers_come_back_whatever_their_type(values):
    known = ["a", "b", "c", "d", "e"]
    if len(set(values)) < 2:
        return
    for converted in (values, [str(v) for v in values], [float(v) for v in values], [known[v] for v in values]):
        split = rows(converted)
        assert np.array_equal(encode(split, find_classes(split, known)), values)
