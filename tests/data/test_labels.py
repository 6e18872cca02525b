import json
import re
import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from skytune.config import ConfigError, DataConfig, DataSource, UserError
from skytune.config.cli_grammar import translate
from skytune.data.labels import encode, find_classes, labelled
from skytune.data.rows import Rows, named_labels
from skytune.data.sources import Source

CONFIGS = Path(__file__).parents[2] / "configs"


def rows(values, names=None, name="train", kind=None):
    label = pa.chunked_array([pa.array(values, kind)])
    label = named_labels(label, names) if names else label
    text = pa.chunked_array([pa.array([f"text {n}" for n in range(len(values))], pa.large_string())])
    return Rows(name=name, text=text, label=label, names=names, parts=[(f"{name}.tsv", len(values))])


def config(labels=None, label_map=None):
    return DataConfig(labels=labels, label_map=label_map)


def named(split, labels=None, label_map=None, known=None):
    """The class name of every row."""
    classes = find_classes(split, config(labels, label_map), known)
    return [classes.names[number] for number in encode(split, classes)]


def typed(word):
    """What a person types into a shell, as the configuration has it."""
    (word,) = shlex.split(word)
    key, _, value = translate(word).partition("=")
    return key, value


@pytest.mark.parametrize(
    ("values", "given", "names", "numbers"),
    [
        ([0, 1, 2, 0], None, ["0", "1", "2"], [0, 1, 2, 0]),
        (["0", "1", "1"], None, ["0", "1"], [0, 1, 1]),
        (["1", "0"], ["negative", "positive"], ["negative", "positive"], [1, 0]),
        ([1.0, 0.0], None, ["0", "1"], [1, 0]),
        (["1.0", "0", "1"], None, ["0", "1"], [1, 0, 1]),
        (["1.0", "2.0"], None, ["1.0", "2.0"], [0, 1]),
        (["pos", "neg", " pos "], None, ["neg", "pos"], [1, 0, 1]),
        (["pos", "neg"], ["pos", "neg"], ["pos", "neg"], [0, 1]),
        (["1", "5", "3"], ["1", "3", "5"], ["1", "3", "5"], [0, 2, 1]),
        ([5, 1], ["5", "1"], ["5", "1"], [0, 1]),
        ([True, False], None, ["False", "True"], [1, 0]),
        (["b", "a"], ["a", "b", "c"], ["a", "b", "c"], [1, 0]),
        ([0, 2], ["a", "b", "c"], ["a", "b", "c"], [0, 2]),
        # Numbers that do not count from 0 are the classes' names, in their own order.
        ([0, 1, 7], None, ["0", "1", "7"], [0, 1, 2]),
        (["1", "10", "2"], None, ["1", "2", "10"], [0, 2, 1]),
        (["-2", "2", "0"], None, ["-2", "0", "2"], [0, 2, 1]),
        # With leading zeros they are names.
        (["02", "01", "10"], None, ["01", "02", "10"], [1, 0, 2]),
        (["02", "01"], ["01", "02", "03"], ["01", "02", "03"], [1, 0]),
        (["1.0", "2.0"], ["1", "2", "3"], ["1", "2", "3"], [0, 1]),
        (["0.5", "1.5"], ["1.5", "0.5"], ["1.5", "0.5"], [1, 0]),
        (["-1", "1", "0"], ["-1", "0", "1"], ["-1", "0", "1"], [0, 2, 1]),
        (["+1", "-1"], None, ["-1", "+1"], [1, 0]),
        (["0", "1", "pos"], None, ["0", "1", "pos"], [0, 1, 2]),
        (["pos", "NaN", "NA"], None, ["NA", "NaN", "pos"], [2, 1, 0]),
        (["pos", "POS"], None, ["POS", "pos"], [1, 0]),
    ],
)
def test_which_classes_there_are(values, given, names, numbers):
    split = rows(values)
    classes = find_classes(split, config(given))
    assert classes.names == names
    assert encode(split, classes).tolist() == numbers


@pytest.mark.parametrize(
    ("values", "labels", "label_map", "names"),
    [
        (["1", "2", "1"], None, {"1": "bad", "2": "good"}, ["bad", "good", "bad"]),
        ([1.0, 2.0], None, {"1": "bad", "2": "good"}, ["bad", "good"]),
        (["1.0", "2.0"], ["bad", "good", "best"], {"1": "bad", "2": "good"}, ["bad", "good"]),
        (["01", "02"], None, {"01": "bad"}, ["bad", "02"]),
        (["pos", "POS", "Neg", "neg"], None, {"POS": "pos", "Neg": "neg"}, ["pos", "pos", "neg", "neg"]),
        (["-1", "1"], None, {"-1": "neg", "1": "pos"}, ["neg", "pos"]),
        (["0", "1", "7"], ["neg", "pos"], {"7": "pos"}, ["neg", "pos", "pos"]),
        (["0", "1"], ["neg", "pos"], {"neg": "N", "pos": "P"}, ["N", "P"]),
        (["n/a", "a:b", "c,d"], None, {"a:b": "x"}, ["n/a", "x", "c,d"]),
    ],
)
def test_a_label_map_says_what_counts_as_what(values, labels, label_map, names):
    assert named(rows(values), labels, label_map) == names


@pytest.mark.parametrize(
    "text", ["{1:bad,2:good}", "{ 1 : bad , 2:good }", '{"1":"bad",2:good}', {1: "bad", 2.0: "good"}]
)
def test_a_label_map_is_read_from_a_command_line_or_a_file(text):
    assert named(rows([1, 2]), None, text) == ["bad", "good"]


def test_odd_texts_are_quoted_and_nothing_else_is_read():
    assert config(None, '{"a, b":x,"\\"q\\"":"y:z",\U0001f600:w}').label_map == {
        "a, b": "x",
        '"q"': "y:z",
        "\U0001f600": "w",
    }
    for text in ("{a}", "{a:}", "{:a}", "{a:b,c}", "{a:b:c}", "pos", ["a"], {"a": None}):
        with pytest.raises(ConfigError, match=r"data.label_map=.*must be pairs like"):
            config(None, text)


def test_names_that_the_data_declares_survive_and_can_be_renamed():
    split = rows([1, 0, 1], names=["neg", "pos", "mixed"])
    assert find_classes(split, config()).names == ["neg", "pos", "mixed"]
    assert named(split) == ["pos", "neg", "pos"]
    assert named(split, ["bad", "good", "so so"]) == ["good", "bad", "good"]
    assert named(split, ["mixed", "pos", "neg"]) == ["pos", "neg", "pos"], "by name, whatever the order"
    assert named(split, ["Mixed", "POS", "Neg"]) == ["POS", "Neg", "POS"]
    assert named(split, None, {"neg": "bad", "mixed": "bad"}) == ["pos", "bad", "pos"]
    with pytest.raises(ConfigError, match=r"the data set has 3 classes: neg, pos, mixed"):
        find_classes(split, config(["a", "b"]))
    with pytest.raises(ConfigError, match=r"'data.label_map={mixed:bad,neg:good}' says which is which"):
        find_classes(split, config(["pos", "bad", "good"]))


def test_another_split_may_have_the_numbers_of_declared_names_or_declare_them_in_another_order():
    classes = find_classes(rows([1, 0], names=["neg", "pos"]), config())
    assert encode(rows([0, 1, 1], name="test"), classes).tolist() == [0, 1, 1]
    assert encode(rows([0, 1, 1, -1], names=["pos", "neg"], name="test"), classes).tolist() == [1, 0, 0, -1]
    classes = find_classes(rows([0, 1]), config(["neg", "pos"]))
    assert encode(rows(["pos", "neg"], name="test"), classes).tolist() == [1, 0]
    numbers = find_classes(rows([1, 0], names=["3", "1"]), config())
    assert encode(rows([3, 1], name="test"), numbers).tolist() == [0, 1]
    with pytest.raises(UserError, match="label 0 is not one of the 2 classes"):
        encode(rows([0, 1], name="test"), numbers)


def test_arrow_dictionaries_are_labels_too_and_what_no_row_has_is_none():
    split = rows(pa.array(["x", "y", "z", "x"]).dictionary_encode())
    classes = find_classes(split.take(np.array([0, 1, 3])), config())
    assert classes.names == ["x", "y"]
    assert encode(split.take(np.array([3, 1])), classes).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("values", "given", "message"),
    [
        ([1, 2], ["a", "b", "c"], r"but the labels are 1, 2: 'data.label_map={1:a,2:b}' says which is which"),
        (["1.0", "2.0"], ["a", "b"], r"data.labels=\[a, b\] names the numbers from 0"),
        ([1, 1, 1], ["a", "b"], r"names the numbers from 0, but the labels are 1"),
        ([0, 1, 7], ["a", "b"], r"train.tsv, row 3: label 7 is not one of the 2 classes \(0=a, 1=b\)"),
        (["01", "02"], ["1", "2"], r"train.tsv, row 1: label 01 is not one of the 2 classes \(1, 2\)"),
        ([0, 1, 2], ["3", "5", "7"], r"label 0 is not one of the 3 classes .* 'data.label_map={0:3,1:5,2:7}'"),
        (["a", "b", "c"], ["a", "b"], r"train.tsv, row 3: label 'c' is not one of the 2 classes \(a, b\)"),
        (["pos", "NEG"], ["neg", "pos"], r"row 2: label 'NEG' .* 'data.label_map={NEG:neg}' counts it as 'neg'"),
        (["0", "pos"], ["neg", "pos"], r"train.tsv, row 1: label 0 is not one of the 2 classes \(neg, pos\)"),
        ([0, 1, -2], ["a", "b"], r"train.tsv, row 3: label -2 is not one"),
        ([0.0, 1.0, 0.5], None, r"train.tsv, row 3: label 0.5 is not a whole number; .*data.labels="),
        (["0", "1", "0.5"], None, r"train.tsv, row 3: label 0.5 is not a whole number"),
        ([0, 1, -1], None, r"train.tsv, row 3: has no label \(empty or -1\), and so have 1 of 3 rows of train"),
        ([-1, -1], None, r"train.tsv, row 1: has no label"),
        ([0, None, 1], None, r"train.tsv, row 2: has no label .*data.bad_rows=drop leaves such rows out"),
        (["a", "", "b"], None, r"train.tsv, row 2: has no label"),
        ([0.0, float("nan"), 1.0], None, r"train.tsv, row 2: has no label"),
        ([1, 1, 1], None, r"train: all 3 rows have the label '1': a classifier needs at least two classes"),
        (["x", "x"], None, r"train: all 2 rows have the label 'x'"),
        ([], None, r"train: 0 rows are left"),
    ],
)
def test_a_wrong_label_names_itself_and_its_row(values, given, message):
    split = rows(values, kind=None if values else pa.int64())
    with pytest.raises(UserError, match=message) as caught:
        encode(split, find_classes(split, config(given)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "given"),
    [
        ([1, 2], ["a", "b", "c"]),
        (["01", "02"], ["a", "b"]),
        ([0, 1, 2, 7], ["a", "b", "c"]),
        (["pos", "Neg", "so so", "n/a"], ["neg", "pos"]),
        (["\U0001f600", 'it\'s "q", a:b'], ["a", "b"]),
        (["0.5", "1.5"], None),
        (["null", "NaN", "1.50"], ["x", "true"]),
    ],
)
def test_the_way_out_works_as_it_is_printed(values, given):
    """Each word that the message prints is typed as it stands, through Hydra; then the same data pass."""
    from skytune.config.compose import compose_run

    split = rows(values)
    with pytest.raises(UserError) as caught:
        find_classes(split, config(given))
    words = [
        word for word in shlex.split(str(caught.value))[1:] if word.startswith(("data.label_map=", "data.labels="))
    ]
    assert words
    for word in words:
        kept = [] if word.startswith("data.labels") or given is None else [f"data.labels={json.dumps(given)}"]
        made = compose_run(CONFIGS, ["data=files", *kept, word]).data
        classes = find_classes(split, made)
        assert None not in classes.numbers_of([str(value) for value in values])


def test_a_label_that_only_another_split_has():
    classes = find_classes(rows(["a", "b"]), config())
    with pytest.raises(UserError, match=r"validation.tsv, row 2: label 'c' is not one of the 2 classes \(a, b\)"):
        encode(rows(["a", "c"], name="validation"), classes)
    numbers = find_classes(rows([0, 1]), config())
    with pytest.raises(UserError, match=r"test.tsv, row 1: label 2 is not one of the 2 classes \(0, 1\)"):
        encode(rows([2, 1], name="test"), numbers)
    with pytest.raises(UserError, match=r"label 0 is not one of the 2 classes \(a, b\); 'data.label_map={0:a,1:b}'"):
        encode(rows([0, 1], name="test"), classes)


def test_unlabelled_is_all_or_nothing():
    classes = find_classes(rows([0, 1]), config())
    split = rows([-1, -1], name="test")
    assert labelled(split, encode(split, classes), whole=True) is False
    split = rows([1, 0], name="test")
    assert labelled(split, encode(split, classes), whole=True) is True
    split = rows([1, -1], name="test")
    with pytest.raises(UserError, match=r"test.tsv, row 2: has no label .* 1 of 2 rows of test"):
        labelled(split, encode(split, classes), whole=True)
    split.label = None
    assert (encode(split, classes) == -1).all()


@pytest.mark.parametrize(
    ("values", "given", "known", "names"),
    [
        (["neg", "pos"], None, ["pos", "neg"], ["neg", "pos"]),
        (["neg", "pos"], ["neg", "pos"], ["pos", "neg"], ["neg", "pos"]),
        (["neg", "neg"], None, ["pos", "neg"], ["neg", "neg"]),
        (["Neg", "Pos"], None, ["POS", "NEG"], ["NEG", "POS"]),
        ([0, 1], None, ["pos", "neg"], ["pos", "neg"]),
        ([0, 1], ["neg", "pos"], ["pos", "neg"], ["neg", "pos"]),
        ([0, 1], ["neg", "pos"], ["LABEL_0", "LABEL_1"], ["LABEL_0", "LABEL_1"]),
        (["1.0", "5"], None, ["1", "2", "3", "4", "5"], ["1", "5"]),
    ],
)
def test_a_trained_models_classes_are_found_by_name(values, given, known, names):
    assert named(rows(values), given, None, known) == names


def test_a_declared_class_without_rows_need_not_be_the_models():
    assert named(rows([1, 0], names=["neg", "pos", "mixed"]), known=["pos", "neg"]) == ["pos", "neg"]
    with pytest.raises(UserError, match=r"'data.label_map={mixed:pos}' says which is which"):
        named(rows([1, 0, 2], names=["neg", "pos", "mixed"]), known=["pos", "neg"])


@pytest.mark.parametrize(
    ("values", "given", "known"),
    [
        (["bad", "good"], None, ["neg", "pos"]),
        (["bad", "good"], ["good", "bad"], ["neg", "pos"]),
        (["bad", "neg"], None, ["pos", "neg"]),
        (["neg", "pos"], None, ["LABEL_0", "LABEL_1"]),
        ([1, 2], None, ["neg", "pos"]),
        ([0, 1, 2], None, ["neg", "pos"]),
        ([0, 1], None, ["neg", "so so", "pos"]),
    ],
)
def test_classes_that_a_model_does_not_know_are_mapped_as_the_message_says(values, given, known):
    split = rows(values)
    with pytest.raises(UserError, match=r"the model's classes \(.*\) are not the data's") as caught:
        find_classes(split, config(given), known)
    _, word = typed(re.search(r"'data\.label_map=.*?}'", str(caught.value))[0])
    assert set(named(split, given, word[1:-1], known)) <= set(known)


LABELS = st.one_of(
    st.integers(-3, 12).map(str),
    st.integers(0, 12).map(lambda number: f"{number:02}"),
    st.integers(0, 5).map(lambda number: f"{number}.0"),
    st.sampled_from(["neg", "pos", "Neg", "POS", "NaN", "nan", "NA", "None", "null", "True", "+1", "1e3", "0.5", "-0"]),
    st.text("aA1.- \u00e4\U0001f600", min_size=1, max_size=4),
)


@settings(deadline=None, max_examples=300)
@given(cells=st.lists(LABELS, min_size=2, max_size=12), data=st.data())
def test_every_row_keeps_the_class_that_its_cell_names(cells, data):
    """Whatever stands in the column, named by `data.labels` in any order or not: the cell's class, or a refusal."""
    different = list(dict.fromkeys(cell.strip() for cell in cells if cell.strip()))
    assume(different)
    more = data.draw(st.lists(LABELS.map(str.strip).filter(bool), max_size=2))
    labels = data.draw(st.none() | st.permutations(list(dict.fromkeys([*different, *more]))))
    try:
        found = named(rows(cells), labels if labels is None or len(labels) > 1 else None)
    except UserError as error:
        assert "\n" not in str(error)
        return
    for cell, name in zip(cells, found, strict=True):
        assert name == cell.strip() or float(name) == float(cell), (cells, labels, found)


@settings(deadline=None, max_examples=200)
@given(cells=st.lists(LABELS, min_size=2, max_size=8), names=st.lists(LABELS, min_size=2, max_size=4, unique=True))
def test_names_that_are_not_the_columns_never_stand_for_another_cell(cells, names):
    names = list(dict.fromkeys(name.strip() for name in names if name.strip()))
    assume(len(names) > 1)
    try:
        found = named(rows(cells), names)
    except UserError:
        return
    equal = [name == cell.strip() for cell, name in zip(cells, found, strict=True)]
    if not any(equal):  # positions
        assert all(
            names.index(name) == float(cell) or float(name) == float(cell)
            for cell, name in zip(cells, found, strict=True)
        )
    else:
        assert all(name == cell.strip() or float(name) == float(cell) for cell, name in zip(cells, found, strict=True))


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=60))
def test_numbers_come_back_whatever_their_type(values):
    known = ["a", "b", "c", "d", "e"]
    if len(set(values)) < 2 or 0 not in values:
        return
    for converted in (values, [str(v) for v in values], [float(v) for v in values], [known[v] for v in values]):
        split = rows(converted)
        assert np.array_equal(encode(split, find_classes(split, config(known))), values)


def test_a_parquet_file_keeps_the_classes_that_it_declares(tmp_path):
    import datasets

    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good", "so"])}
    )
    parts = {"a": ([1, 0], features), "b": ([0, 2], features.copy())}
    parts["b"][1]["label"] = datasets.ClassLabel(names=["good", "so", "bad"])
    for name, (labels, kind) in parts.items():
        datasets.Dataset.from_dict({"text": ["x", "y"], "label": labels}, kind).to_parquet(tmp_path / f"{name}.parquet")
    pa.csv.write_csv(pa.table({"text": ["x"], "label": ["so"]}), tmp_path / "c.csv")

    def read(name):
        made = DataConfig(source=DataSource.files, train=str(tmp_path / name))
        split = Source(made).split(made.train, "data.train", "train")
        classes = find_classes(split, made)
        return classes.names, [classes.names[number] for number in encode(split, classes)]

    assert read("a.parquet") == (["bad", "good", "so"], ["good", "bad"])
    assert read("*.parquet") == (["bad", "good", "so"], ["good", "bad", "good", "bad"])
    assert read("*.[cp]*") == (["bad", "good", "so"], ["good", "bad", "good", "bad", "so"])
    odd = pa.table({"text": ["x", "y"], "label": [0, 1]}).replace_schema_metadata({"huggingface": b'{"info": [[['})
    pa.parquet.write_table(odd, tmp_path / "odd.parquet")
    assert read("odd.parquet") == (["0", "1"], ["0", "1"])
