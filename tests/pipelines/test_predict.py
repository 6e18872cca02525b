"""`pipeline=predict` and the score of one file, as people type them."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def checkout(new_checkout: Callable[..., Any], sentences: Callable[..., list[tuple[str, int]]]) -> Any:
    """A source tree, and a file with labels beside it."""
    made = new_checkout(warm=True)
    with (made.home / "one.csv").open("w", newline="") as file:
        rows = [[text, ["negative", "positive"][label]] for text, label in sentences(40)]
        csv.writer(file).writerows([["text", "label"], *rows])
    return made


def test_one_file_is_scored_without_a_train_file(checkout: Any, tiny_classifier: Path) -> None:
    words = ["pipeline=evaluate", f"checkpoint={tiny_classifier}", "compute=cpu", "launch.num_processes=1"]
    for more in ([], ["data=files"]):
        done = checkout.run(*words, *more, "data.test=one.csv")
        assert done.code == 0, done.err
        assert "on 40 held-out rows" in done.out and "validation" not in done.out.partition("evaluate_model")[0]
    with (checkout.home / "unlabelled.csv").open("w") as file:
        file.write("text,label\nthe film was good,\n")
    done = checkout.run(*words, "data.test=unlabelled.csv")
    assert done.code == 1
    assert "data.test=unlabelled.csv: has no labels to score by; pipeline=predict needs none" in done.err


def test_files_are_predicted_on_and_zenml_knows_it(checkout: Any, tiny_classifier: Path) -> None:
    words = ["pipeline=predict", f"checkpoint={tiny_classifier}", "compute=cpu", "launch.num_processes=1"]
    done = checkout.run(*words, "predict.input=one.csv", "predict.output=out/new.csv")
    assert done.code == 0, done.err
    with (checkout.home / "out" / "new.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert (
        list(rows[0])
        == [*(["text", "label", "prediction", "probability", "probability_negative", "probability_positive"])]
        and len(rows) == 40
    )
    assert {row["prediction"] for row in rows} <= {"negative", "positive"}
    assert "40 rows" in done.out and "out/new.csv" in done.out
    assert checkout.statuses() == {"predict_files": "completed"}
    again = checkout.run(*words, "predict.input=one.csv", "predict.output=out/new.csv")
    assert again.code == 0 and "the output was there already" in again.out
    listed = json.loads(checkout.python(str(checkout.source / "src/runs.py"), "ls", "predict", "--json").out)
    assert [run["kind"] for run in listed] == ["predict_files"]


def test_a_way_out_that_an_error_names_works(checkout: Any, tiny_classifier: Path) -> None:
    words = ["pipeline=predict", f"checkpoint={tiny_classifier}", "compute=cpu", "launch.num_processes=1"]
    with (checkout.home / "odd.csv").open("w") as file:
        file.write("text,prediction\nthe film was good,1\n,2\na dull plot,3\n")
    output = "predict.output=odd.jsonl"
    way_out = []
    for _ in range(3):  # each error's own words are typed with the same command
        done = checkout.run(*words, "predict.input=odd.csv", output, *way_out)
        if done.code == 0:
            break
        way_out += [
            word.rstrip(";:,") for word in done.err.split() if word.startswith(("predict.prefix=", "data.bad_rows="))
        ]
    assert way_out == ["predict.prefix=model_", "data.bad_rows=drop"], done.err
    lines = [json.loads(line) for line in (checkout.home / "odd.jsonl").read_text().splitlines()]
    assert [line["prediction"] for line in lines] == ["1", "2", "3"]
    assert [line["model_prediction"] is None for line in lines] == [False, True, False]
