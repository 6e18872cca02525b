"""The cache tells the truth: the second run is reused, and whatever the result depends on makes a step run again.

The tests of this file share one source tree and one store and build on each other, in order: a run takes seconds.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ALL = ("load_data", "train_model", "evaluate_model")
FRESH = dict.fromkeys(ALL, "completed")
REUSED = dict.fromkeys(ALL, "cached")


@pytest.fixture(scope="module")
def scene(new_checkout: Callable[[], Any], small: list[str], reviews: Path) -> Any:
    """A source tree after its first run, on a data file of its own."""
    checkout = new_checkout(warm=True)
    own = checkout.home / "own.csv"
    shutil.copyfile(reviews, own)
    checkout.data = own
    checkout.words = [word if not word.startswith("data.train=") else f"data.train={own}" for word in small]
    checkout.first = checkout.run(*checkout.words)
    assert checkout.first.code == 0, checkout.first.err
    return checkout


def statuses(scene: Any, *more: str, **env: str) -> dict[str, str]:
    done = scene.run(*scene.words, *more, **env)
    assert done.code == 0, done.err + done.out
    scene.last = done
    return scene.statuses()


def edit(scene: Any, file: str, old: str, new: str) -> None:
    path = scene.source / "src" / "skytune" / file
    text = path.read_text()
    assert text.count(old) >= 1, f"{old!r} is not in {file}: mend the test"
    path.write_text(text.replace(old, new, 1))


def summary(text: str) -> str:
    """The words between the two rules, without those that say that it was reused."""
    words = " ".join(text.split("-" * 100)[1].split())
    return words.replace(" - reused from the cache, nothing was computed again", "")


def test_first_run_computes_everything(scene: Any) -> None:
    assert scene.statuses() == FRESH
    assert "F1 " in scene.first.out


def test_second_run_is_reused_with_the_same_summary(scene: Any) -> None:
    assert statuses(scene) == REUSED
    assert "steps (" not in scene.last.out, "nothing was trained"
    assert "reused from the cache" in " ".join(scene.last.out.split())
    assert summary(scene.last.out) == summary(scene.first.out)


def test_machine_launcher_and_logging_do_not_count(scene: Any) -> None:
    words = [
        "launch.num_processes=2",
        "launch.threads=1",
        "log.every_seconds=1",
        "loader.num_workers=1",
        "compute=auto",
    ]
    assert statuses(scene, *words) == REUSED


def test_message_elsewhere_does_not_count(scene: Any) -> None:
    edit(scene, "stacks/environment.py", "does not answer", "is silent")
    assert statuses(scene) == REUSED


def test_comments_and_docstrings_do_not_count(scene: Any) -> None:
    edit(scene, "data/splits.py", "\nimport ", "\n# a remark\nimport ")
    for step in ALL:
        edit(scene, f"steps/{step}.py", '    """', '    """In other words: ')
    assert statuses(scene) == REUSED


def test_other_metrics_and_notes_score_anew_and_train_nothing(scene: Any) -> None:
    found = statuses(scene, "eval.metrics=[accuracy]", "+extra.note=mine")
    assert found == {**REUSED, "evaluate_model": "completed"}
    assert "accuracy " in scene.last.out and "F1 " not in scene.last.out


def test_helper_of_load_data(scene: Any) -> None:
    """It runs again; its rows come out the same, so that training on them is reused."""
    edit(scene, "data/prepare.py", "\nimport ", "\nADDED = 1\nimport ")
    found = statuses(scene)
    assert found["load_data"] == "completed"
    assert found["train_model"] == "cached"


def test_helper_of_train_model(scene: Any) -> None:
    """The command itself imports nothing then that takes seconds; only the workers do. (It scores, and draws.)"""
    edit(scene, "data/order.py", "\nimport numpy", "\nADDED = 1\nimport numpy")
    found = statuses(scene, PYTHONPROFILEIMPORTTIME="1")
    assert (found["load_data"], found["train_model"]) == ("cached", "completed")
    lines = [line.rpartition("|")[2].strip() for line in scene.last.err.splitlines() if "import time:" in line]
    packages = {line.partition(".")[0] for line in lines}
    assert "datasets" in packages and not packages & {"torch", "transformers"}


def test_artifact_of_a_cached_step_is_gone(scene: Any) -> None:
    """Its producer runs again, also when what comes after it was edited (zenml #3975)."""
    run = scene.last_run()
    shutil.rmtree(run["steps"]["load_data"]["outputs"]["train_dataset"]["uri"])
    edit(scene, "common/text.py", "\ndef number", "\nADDED = 1\n\n\ndef number")
    found = statuses(scene)
    assert (found["load_data"], found["evaluate_model"]) == ("completed", "completed")
    assert Path(scene.last_run()["steps"]["load_data"]["outputs"]["train_dataset"]["uri"]).is_dir()


def test_a_flipped_bit_in_an_artifact_of_a_cached_step(scene: Any) -> None:
    """Its producer runs again, and what it makes is what was there."""
    outputs = scene.last_run()["steps"]["load_data"]["outputs"]
    files = [
        next(Path(outputs["test_dataset"]["uri"]).rglob("*.arrow")),
        Path(outputs["tokenizer"]["uri"], "class.json"),
    ]
    for file in files:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(bytes(content))
    edit(scene, "report/page.py", "\ndef _subtitle", "\nADDED = 2\n\n\ndef _subtitle")
    found = statuses(scene)
    message = " ".join((scene.last.err + scene.last.out).split())
    assert f"the files at {outputs['test_dataset']['uri']} are damaged: the step that made them runs again" in message
    assert found == {"load_data": "completed", "train_model": "cached", "evaluate_model": "completed"}


def test_other_version_of_a_library(scene: Any, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib import metadata\nreal = metadata.version\n"
        "metadata.version = lambda *a, **k: '99.0.0' if 'pyarrow' in (*a, *k.values()) else real(*a, **k)\n"
    )
    assert statuses(scene, PYTHONPATH=str(tmp_path))["load_data"] == "completed"


def test_changed_data_file(scene: Any) -> None:
    with scene.data.open("a", encoding="utf-8") as file:
        file.write("the very last word is good,gut\n")
    assert statuses(scene) == FRESH


def test_cache_false(scene: Any) -> None:
    assert statuses(scene) == REUSED
    assert statuses(scene, "cache=false") == FRESH
