"""`src/runs.py` on real runs: what ZenML knows of them, compared, reproduced, and taken away whole."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LOOK = """
import json
from zenml.client import Client
runs = Client().list_pipeline_runs(sort_by="asc:created", hydrate=True).items
versions = Client().list_artifact_versions(size=500).items
print(json.dumps({
    "runs": [{"name": r.name, "tags": sorted(t.name for t in r.tags), "metadata": r.run_metadata} for r in runs],
    "artifacts": [v.uri for v in versions],
}))
"""


@pytest.fixture(scope="module")
def three(new_checkout: Callable[..., Any], small: list[str]) -> Any:
    """Two trainings of the same rows that differ in one key, and a score of the first one's model."""
    checkout = new_checkout(warm=True)
    words = [*small, "launch.num_processes=1", "launch.threads=1", "epochs=1", "log.every_steps=1"]
    for decay in (0.0, 0.5):
        done = checkout.run(*words, f"optimizer.weight_decay={decay}")
        assert done.code == 0, done.err
    checkout.folders = sorted(
        (path for path in (checkout.home / "skytune/runs").iterdir() if path.is_dir()),
        key=lambda path: (path / "job.json").stat().st_mtime,
    )
    done = checkout.run(*words, "pipeline=evaluate", f"checkpoint={checkout.folders[0]}/outputs/model")
    assert done.code == 0, done.err
    return checkout


def runs(checkout: Any, *words: str) -> Any:
    return checkout.python(str(checkout.source / "src" / "runs.py"), *words)


def look(checkout: Any) -> Any:
    done = checkout.python(
        "-c", LOOK, ZENML_CUSTOM_SOURCE_ROOT=str(checkout.source / "src"), ZENML_LOGGING_VERBOSITY="ERROR"
    )
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_zenml_knows_name_tags_run_key_and_report(three: Any) -> None:
    found = look(three)["runs"]
    for folder, run in zip(three.folders, found, strict=False):
        score = json.loads((folder / "outputs/model/test_results.json").read_text())["metrics"]["accuracy"]
        assert run["name"].startswith("tiny-bert-files-2")
        assert run["tags"] == sorted([f"accuracy:{score:.3f}", "data:files", "model:tiny-bert"])
        assert run["metadata"]["run_key"] == folder.name
        assert run["metadata"]["report"] == (folder / "outputs/report.html").as_uri()
        assert run["metadata"]["host"] and "optimizer.weight_decay=" in run["metadata"]["command"]
        assert json.loads((folder / "job.json").read_text())["origin"]["command"] == run["metadata"]["command"]
    assert found[2]["name"].startswith(f"evaluate-{three.folders[0].name}-2")
    assert f"model:{three.folders[0].name}" in found[2]["tags"]


def test_runs_are_listed_and_shown(three: Any) -> None:
    done = runs(three, "ls", "--json", "--sort", "date")
    assert done.code == 0, done.err
    listed = json.loads(done.out)
    assert [run["name"] for run in listed[:2]] == [folder.name for folder in three.folders]
    assert [run["kind"] for run in listed] == ["train", "train", "predict"]
    assert all(run["interval"][0] < run["score"] < run["interval"][1] and run["bytes"] > 50_000 for run in listed)
    done = runs(three, "show", three.folders[0].name[-6:])
    assert done.code == 0 and three.folders[0].name in done.out and "command" in done.out


def test_two_runs_are_compared(three: Any, tmp_path: Path) -> None:
    page = tmp_path / "compare.html"
    done = runs(three, "compare", *(folder.name for folder in three.folders), "--html", str(page))
    assert done.code == 0, done.err
    assert re.search(r"optimizer.weight_decay +0.0 +0.5\n", done.out)
    assert re.search(r"test +24 +24 +the same rows, in order\n", done.out)
    assert re.search(r"losses: differ first at step [23] ", done.out)
    assert "McNemar's exact test" in done.out and "on the 24 rows that both have" in done.out
    html = page.read_text()
    assert html.count("<svg") >= 5 and "McNemar" in html and "http" not in html.replace("http://www.w3.org", "")
    for key in (folder.name for folder in three.folders):
        assert key.rpartition("-")[2] in html
    alone = runs(three, "compare", three.folders[0].name)
    assert alone.code == 1 and alone.err.startswith("error: compare: 1 runs; give two")


def test_a_run_is_reproduced_to_the_bit_and_changed_data_is_what_differs_first(three: Any, reviews: Path) -> None:
    key = three.folders[0].name
    before = (three.folders[0] / "outputs/result.json").read_bytes()
    done = runs(three, "reproduce", key)
    assert done.code == 0, done.err + done.out
    assert f"the same result as {key}, to the bit" in done.out
    assert (three.folders[0] / "outputs/result.json").read_bytes() == before
    assert not list((three.home / "skytune/reproductions/runs").glob("tiny*"))
    done = runs(three, "reproduce", key, "optimizer.lr=1e-3")
    assert done.code == 1 and "optimizer.lr: 0.005 there, 0.001 here: that decides the result" in done.err
    text = reviews.read_bytes()
    try:
        reviews.write_bytes(text.replace(b"gut", b"mittel", 1))
        done = runs(three, "reproduce", key)
    finally:
        reviews.write_bytes(text)
    assert done.code == 1 and "what differs first: the data's rows are not what they were" in done.out


def test_a_run_goes_whole_and_a_model_that_is_referred_to_stays(three: Any) -> None:
    first, second = (folder.name for folder in three.folders)
    before = look(three)
    done = runs(three, "rm", first, "--yes")
    assert done.code == 1 and "refers to it" in done.out and three.folders[0].is_dir()
    done = runs(three, "rm", second)
    assert done.code == 1 and "--yes deletes" in done.err and three.folders[1].is_dir()
    done = runs(three, "rm", second, "--dry-run")
    assert done.code == 0 and "ZenML: 1 run, 5 artifacts" in done.out and three.folders[1].is_dir()
    done = runs(three, "rm", second, "--yes")
    assert done.code == 0, done.err
    assert not three.folders[1].exists()
    after = look(three)
    assert [run["metadata"]["run_key"] for run in after["runs"]].count(second) == 0
    assert len(after["runs"]) == len(before["runs"]) - 1
    gone = set(before["artifacts"]) - set(after["artifacts"])
    assert len(gone) == 5 and not any(Path(uri).exists() for uri in gone)  # the data is the other run's, too
    assert all(Path(uri).exists() for uri in after["artifacts"])
    done = runs(three, "prune", "--keep", "0", "--yes")
    assert done.code == 0, done.err
    left = look(three)
    assert left == {"runs": [], "artifacts": []}
    assert json.loads(runs(three, "ls", "--json").out) == []
