"""Which task it is: by name, import path, what the data hold, a split that was prepared, a trained model."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from skytune.config import ConfigError, DataConfig, ModelConfig, RunConfig, TaskConfig, UserError, from_dict
from skytune.config.trust import approve
from skytune.models import SavedModel
from skytune.tasks import TASKS, Task, choosing, find_task, of_saved, resolved

FEATURES: dict[str, Any] = {
    "text-classification": datasets.ClassLabel(names=["a", "b"]),
    "multi-label": {"a": datasets.Value("bool"), "b": datasets.Value("bool")},
    "regression": {"x": datasets.Value("float32")},
    "token-classification": datasets.List(datasets.ClassLabel(names=["O", "B-a"])),
}


def own_task(name: str = "own_task") -> Task:
    """A task of one's own, as a function."""
    from dataclasses import replace

    return replace(TASKS["text-classification"], name=name)


OWN_TASK = own_task()


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> str:
    import sys

    monkeypatch.setitem(sys.modules, "my_task", sys.modules[__name__])
    return "my_task"


CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "whole numbers": ("a.csv", "text,label\na,1\nb,0\n", {}),
    "names": ("a.tsv", "text\tlabel\na\tgood\nb\tbad\n", {}),
    "named fractions": ("a.csv", "text,label\na,1.5\nb,0\n", {"labels": ["1.5", "0"]}),
    "semicolons in few of many": ("a.csv", "text,label\na,x;y\nb,z\n", {"labels": ["x;y", "z"]}),
    "an object as label": ("a.jsonl", '{"text": "a", "label": {"x": 1}}\n', {}),
    "semicolons, commas in texts": ("a.csv", "text;label\na, b;x\nb, c, d;y\n", {}),
    "semicolons -> regression": ("a.csv", "text;label\na, b;1.5\nb, c, d;2\n", {}),
    "no label": ("a.csv", "text\na\nb\n", {}),
    "fractions -> regression": ("a.csv", "text,label\na,1.5\nb,\n", {}),
    "list of numbers -> regression": ("a.jsonl", '{"text": "a", "label": [0.5, 1]}\n', {}),
    "columns of numbers -> regression": ("a.csv", "text,p,q\na,1.5,0\nb,0,0\n", {"label_columns": ["p", "q"]}),
    "a;b -> multi-label": ("a.csv", "text,label\na,x;y\nb,y\nc,\nd,x\n", {}),
    "lists -> multi-label": ("a.jsonl", '{"text": "a", "label": ["p", "q"]}\n{"text": "b", "label": []}\n', {}),
    "columns of 0 and 1 -> multi-label": ("a.csv", "text,p,q\na,1,0\nb,0,0\n", {"label_columns": ["p", "q"]}),
    "words -> token-classification": ("a.jsonl", '{"text": ["a", "b"], "label": ["O", "B-x"]}\n', {}),
}


@pytest.mark.parametrize("what", CASES)
def test_auto_goes_by_the_first_rows(what: str, tmp_path: Path) -> None:
    name, content, data = CASES[what]
    (tmp_path / name).write_text(content)
    config = from_dict(DataConfig, {"source": "files", "train": str(tmp_path / name), **data})
    found, why = choosing.choose(config, ModelConfig())
    assert found == (what.partition(" -> ")[2] or "text-classification"), why


def test_auto_reads_only_the_beginning_of_a_file(tmp_path: Path) -> None:
    lines = ["text,label", *(f"a {n},1" for n in range(1500)), 'b,"not closed']
    (tmp_path / "a.csv").write_text("\n".join(lines))
    config = from_dict(DataConfig, {"source": "files", "train": str(tmp_path / "a.csv")})
    assert choosing.choose(config, ModelConfig())[0] == "text-classification"


def test_a_model_that_gives_numbers_is_for_numbers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "problem_type": "regression"}))
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "a.csv").write_text("text,label\na,1\nb,5\n")
    config = from_dict(DataConfig, {"source": "files", "train": str(tmp_path / "a.csv")})
    assert choosing.choose(config, ModelConfig(name=str(tmp_path)))[0] == "regression"


@pytest.mark.parametrize("name", FEATURES)
def test_a_prepared_split_says_which_task_it_is_for(name: str) -> None:
    found = resolved(RunConfig(), {"labels": FEATURES[name]})
    task = TASKS[name]
    assert found.task.name == name and found.eval.metrics == list(task.metrics)
    assert found.checkpoint.metric == task.metrics[0]
    assert resolved(found, {"labels": FEATURES[name]}) == found
    assert [other.name for other in TASKS.values() if other.fits({"labels": FEATURES[name]})] == [name]


def test_what_does_not_fit_is_told_in_one_line() -> None:
    numbers = {"labels": FEATURES["regression"]}
    for values, message in (
        ({"task": {"name": "multi-label"}}, "task=multi-label does not learn .* they are regression's"),
        ({"eval": {"metrics": ["accuracy"]}}, "eval.metrics: task=regression has no accuracy; it has: rmse"),
        ({"loss": {"focal_gamma": 2.0}}, "loss.*: task=regression has a loss of its own"),
        ({"eval": {"threshold": 0.5}}, "eval.threshold=0.5: task=regression has no thresholds"),
    ):
        with pytest.raises(ConfigError, match=message):
            resolved(from_dict(RunConfig, values), numbers)
    with pytest.raises(ConfigError, match="task=auto: no task learns from labels of the type"):
        resolved(RunConfig(), {"labels": datasets.Value("string")})
    with pytest.raises(ConfigError, match=r"task.name=ner: no such task; there are: auto, text-classification"):
        find_task(TaskConfig(name="ner"))


def test_the_first_metric_that_is_asked_for_decides_where_the_main_one_is_not() -> None:
    config = from_dict(RunConfig, {"eval": {"metrics": ["f1", "recall"]}})
    assert resolved(config, {"labels": FEATURES["text-classification"]}).checkpoint.metric == "f1"


def test_a_task_of_ones_own(own: str) -> None:
    assert find_task(TaskConfig(_target_=f"{own}.OWN_TASK")) is OWN_TASK
    assert find_task(TaskConfig(_target_=f"{own}.own_task", args={"name": "other"})).name == "other"
    with pytest.raises(ConfigError, match=r"task._target_=my_task.FEATURES: is not callable"):
        find_task(TaskConfig(_target_=f"{own}.FEATURES"))
    config = resolved(
        from_dict(RunConfig, {"task": {"_target_": f"{own}.OWN_TASK"}}), {"labels": FEATURES["text-classification"]}
    )
    assert find_task(config.task) is OWN_TASK


def test_a_file_alone_has_no_task_called(own: str) -> None:
    with pytest.raises(UserError, match=r"wants task._target_=my_task.OWN_TASK"):
        approve({"task._target_": f"{own}.OWN_TASK"}, [], False, "run.json")
    approve({"task._target_": f"{own}.OWN_TASK"}, [own], True, "run.json")


@pytest.mark.parametrize(
    ("auto", "values", "wanted"),
    [
        ("AutoModelForSequenceClassification", {"problem_type": "single_label_classification"}, "text-classification"),
        ("AutoModelForSequenceClassification", {}, "text-classification"),
        ("AutoModelForSequenceClassification", {"problem_type": "regression"}, "regression"),
        ("AutoModelForSequenceClassification", {"problem_type": "multi_label_classification"}, "multi-label"),
        ("AutoModelForTokenClassification", {}, "token-classification"),
    ],
)
def test_a_trained_model_says_what_it_was_trained_for(auto: str, values: dict[str, Any], wanted: str) -> None:
    assert of_saved(SavedModel("x", ["a", "b"], None, True, auto, values), "checkpoint=x") == wanted


def test_of_an_evaluation_without_a_train_split_the_test_split_tells(tmp_path: Path) -> None:
    from pictures import class_folder

    config = from_dict(DataConfig, {"source": "files", "train": "", "test": str(class_folder(tmp_path / "mine"))})
    assert choosing.choose(config, ModelConfig(_target_="torch.nn.Identity"))[0] == "image-classification"
