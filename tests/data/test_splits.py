import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from skytune.data import normalize
from skytune.data.rows import Rows
from skytune.data.splits import Purpose, collapse, cut, fold_of, shrink, stratified_order, text_keys

labels_of = st.lists(st.integers(0, 3), min_size=1, max_size=200).map(np.array)
seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=60, deadline=None)
@given(labels_of, seeds)
def test_every_beginning_has_the_classes_in_the_shares_of_the_whole(labels, seed):
    order = stratified_order(labels, seed, Purpose.test)
    assert sorted(order) == list(range(len(labels)))
    shares = np.bincount(labels, minlength=4) / len(labels)
    for size in range(1, len(labels) + 1):
        counts = np.bincount(labels[order[:size]], minlength=4)
        assert np.abs(counts - size * shares).max() <= 2


@settings(max_examples=60, deadline=None)
@given(labels_of, seeds, st.floats(0.01, 1), st.integers(1, 200), st.integers(1, 200))
def test_a_smaller_part_lies_in_a_bigger_one_and_keeps_the_order(labels, seed, fraction, one, two):
    small, big = (shrink(labels, 1.0, size, seed) for size in sorted((one, two)))
    assert set(small) <= set(big)
    assert (np.diff(big) > 0).all()
    part = shrink(labels, fraction, None, seed)
    assert len(part) == max(1, round(len(labels) * fraction))
    assert set(shrink(labels, fraction, one, seed)) <= set(part)


@settings(max_examples=60, deadline=None)
@given(labels_of, seeds, st.integers(1, 100))
def test_a_cut_takes_each_row_once(labels, seed, size):
    stay, off = cut(labels, min(size, len(labels)), seed, Purpose.validation)
    assert sorted([*stay, *off]) == list(range(len(labels)))
    assert (np.diff(stay) > 0).all()
    assert len(off) == min(size, len(labels))


def test_a_class_with_one_row_stays_in_train():
    labels = np.array([0] * 50 + [1] * 49 + [2])
    stay, off = cut(labels, 10, 42, Purpose.test)
    assert 99 in stay
    assert len(off) == 10


EXPECTED = [8, 3, 0, 4, 9, 5, 2, 6, 1, 7]


def test_the_order_is_this_one_for_ever():
    labels = np.array([0, 1, 0, 1, 0, 1, 0, 0, 0, 2])
    assert stratified_order(labels, 42, Purpose.test).tolist() == EXPECTED
    assert stratified_order(labels, 43, Purpose.test).tolist() != EXPECTED
    assert stratified_order(labels, 42, Purpose.shrink).tolist() != EXPECTED


def split(texts, pairs=None):
    column = pa.chunked_array([pa.array(texts, pa.large_string())])
    pair = None if pairs is None else pa.chunked_array([pa.array(pairs, pa.large_string())])
    return Rows(name="train", text=column, pair=pair)


def test_which_texts_count_as_the_same():
    assert normalize("  A  Good\tFilm ! \n") == normalize("a good film") == "agoodfilm"
    assert normalize("it 's `` fine ''") == normalize('It\'s "fine"')
    assert normalize("STRASSE") == normalize("straße")
    assert normalize("क्या") != normalize("कया")  # vowel signs are no punctuation
    assert normalize("good \U0001f44d") != normalize("good \U0001f44e")
    assert normalize(" :) ") == ":)" != normalize(":(")
    keys = text_keys(split(["A good film", " a GOOD\u00a0 film.", "crème", "creme"]))
    assert keys[0] == keys[1]
    assert len(set(keys.tolist())) == 3
    assert len(set(text_keys(split(["A  film", "a film", "a film."]), collapse).tolist())) == 2


def test_pairs_are_the_same_only_together():
    keys = text_keys(split(["a", "a", "ab"], ["b", "c", ""]))
    assert len(set(keys.tolist())) == 3


@settings(deadline=None)
@given(st.lists(st.text(max_size=8), max_size=40))
def test_keys_are_equal_exactly_where_normalized_texts_are(texts):
    keys = text_keys(split(texts)).tolist()
    forms = [normalize(text) for text in texts]
    assert [keys.index(key) for key in keys] == [forms.index(form) for form in forms]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=5, max_size=80), seeds, st.integers(2, 5))
def test_folds_take_each_row_once_and_are_alike(labels, seed, folds):
    numbers = np.array(labels)
    parts = [fold_of(numbers, fold, folds, seed) for fold in range(folds)]
    assert sorted(np.concatenate([part for _, part in parts])) == list(range(len(labels)))
    sizes = [len(part) for _, part in parts]
    assert max(sizes) - min(sizes) <= 1
    for stay, part in parts:
        assert sorted([*stay, *part]) == list(range(len(labels))) and list(stay) == sorted(stay)
        for label in set(labels):
            assert abs((numbers[part] == label).sum() - (numbers == label).sum() / folds) <= 1
