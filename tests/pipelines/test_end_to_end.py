"""The real pipeline, the real ZenML store, real worker processes."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]

ARTIFACTS = {
    "load_data": {"train_dataset", "validation_dataset", "test_dataset", "tokenizer", "texts"},
    "train_model": {"model", "predictions", "training_report"},
    "evaluate_model": {"metrics", "report"},
}


@pytest.fixture(scope="module")
def three_classes(new_checkout: Callable[[], Any], small: list[str]) -> Any:
    """A run on two processes over a three-class file with string labels and columns of its own."""
    checkout = new_checkout(first=True)
    checkout.done = checkout.run(
        *small,
        "launch.num_processes=2",
        "launch.threads=1",
        "name=three",
        "epochs=6",
        "compute.usd_per_hour=0.5",
        "schedule.warmup_ratio=0",  # it is short
    )
    assert checkout.done.code == 0, checkout.done.err
    checkout.recorded = checkout.last_run()
    (checkout.folder,) = [path for path in (checkout.home / "skytune" / "runs").iterdir() if path.is_dir()]
    return checkout


def artifact_files(checkout: Any) -> Iterator[Path]:
    for step in checkout.recorded["steps"].values():
        for output in step["outputs"].values():
            yield from (path for path in Path(output["uri"]).rglob("*") if path.is_file())


def test_dag_and_artifacts_have_exactly_these_names(three_classes: Any) -> None:
    steps = three_classes.recorded["steps"]
    assert {name: set(step["outputs"]) for name, step in steps.items()} == ARTIFACTS
    assert steps["load_data"]["upstream"] == []
    assert steps["train_model"]["upstream"] == ["load_data"]
    assert steps["evaluate_model"]["upstream"] == ["load_data", "train_model"]


def test_two_processes_really_trained(three_classes: Any) -> None:
    result = json.loads((three_classes.folder / "outputs" / "result.json").read_text())
    assert result["world_size"] == 2
    assert (three_classes.folder / "outputs" / "logs" / "rank-1.log").is_file()
    assert "2 processes on cpu" in three_classes.done.out


def test_what_it_cost_is_in_summary_report_and_metadata(three_classes: Any) -> None:
    import contextlib
    import sqlite3

    result = json.loads((three_classes.folder / "outputs" / "result.json").read_text())
    usd = sum(result["phases"].values()) / 3600 * 0.5
    assert "on this machine at $0.50 an hour (compute.usd_per_hour)" in " ".join(three_classes.done.out.split())
    page = (three_classes.folder / "outputs" / "report.html").read_text(encoding="utf-8")
    assert "on this machine at $0.50 an hour (compute.usd_per_hour)" in page
    store = three_classes.home / "zenml/local_stores/default_zen_store/zenml.db"
    with contextlib.closing(sqlite3.connect(store)) as database:
        found = dict(database.execute("select key, value from run_metadata where key like 'cost%'").fetchall())
    assert float(json.loads(found["cost/usd"])) == pytest.approx(usd, abs=1e-5)
    assert "$0.50 an hour" in found["cost"]


def test_labels_survive_into_the_model_and_the_pipeline_loads_it(three_classes: Any) -> None:
    from transformers import pipeline

    model = three_classes.folder / "outputs" / "model"
    config = json.loads((model / "config.json").read_text())
    assert config["id2label"] == {"0": "gut", "1": "mittel", "2": "schlecht"}
    classify = pipeline("text-classification", model=str(model), device="cpu")
    assert classify("the film is good fine nice")[0]["label"] == "gut"
    assert classify("the film is dull poor bad")[0]["label"] == "schlecht"


def test_results_beside_the_model_are_those_of_the_predictions(three_classes: Any) -> None:
    from skytune.tasks.metrics import compute
    from skytune.training.outputs import read_predictions

    for split in ("validation", "test"):
        stored = json.loads((three_classes.folder / "outputs" / "model" / f"{split}_results.json").read_text())
        rows, labels, logits = read_predictions(three_classes.folder / "outputs" / "predictions" / f"{split}.arrow")
        assert stored["n_rows"] == len(rows) == 24
        assert rows.tolist() == list(range(24))
        computed = compute(["accuracy", "f1"], {}, logits, labels)
        assert stored["metrics"]["accuracy"] == pytest.approx(computed["accuracy"], abs=1e-12)
        assert stored["metrics"]["accuracy"] > 0.6  # a third by chance


def test_no_pickle_under_any_artifact(three_classes: Any) -> None:
    files = list(artifact_files(three_classes))
    assert len(files) > 10
    for path in files:
        assert path.suffix not in (".pkl", ".pickle", ".pt", ".bin"), path
        start = path.open("rb").read(4)
        assert start[:1] != b"\x80" and start[:2] != b"PK", path  # pickles, and torch's zipped ones


def test_split_artifacts_are_what_a_trainer_takes(three_classes: Any) -> None:
    script = (
        "from zenml.client import Client\n"
        "from skytune import materializers; materializers.register()\n"
        "c = Client()\n"
        "for name in ('train_dataset', 'validation_dataset', 'test_dataset'):\n"
        "    d = c.get_artifact_version(name).load()\n"
        "    assert d.column_names == ['input_ids', 'attention_mask', 'labels'], d.column_names\n"
        "    assert d.format['type'] == 'torch'\n"
        "    assert d[0]['input_ids'].dtype.is_floating_point is False\n"
        "    assert d.features['labels'].names == ['gut', 'mittel', 'schlecht']\n"
        "m = c.get_artifact_version('model').load()\n"
        "print(type(m.load()).__name__)\n"
    )
    env = {"ZENML_CUSTOM_SOURCE_ROOT": str(three_classes.source / "src"), "ZENML_LOGGING_VERBOSITY": "ERROR"}
    done = three_classes.python("-c", script, **env)
    assert done.code == 0, done.err
    assert done.out.split()[-1] == "BertForSequenceClassification"


def test_recorded_sources_import_in_a_fresh_process_elsewhere(three_classes: Any, tmp_path: Path) -> None:
    """Case 5 (zenml #2584)."""
    sources = [step["source"] for step in three_classes.recorded["steps"].values()]
    materializers = {o["materializer"] for s in three_classes.recorded["steps"].values() for o in s["outputs"].values()}
    assert all(source.startswith("skytune.steps.") for source in sources)
    script = tmp_path / "fresh.py"
    script.write_text(
        "import sys\nfrom zenml.utils import source_utils\n"
        f"sys.path.append({str(three_classes.source / 'src')!r})\n"
        f"for source in {sorted([*sources, *materializers])!r}:\n    print(source_utils.load(source))\n"
    )
    done = three_classes.python(str(script), cwd=tmp_path)
    assert done.code == 0, done.err


def test_report_is_a_page_of_its_own(three_classes: Any) -> None:
    folder = Path(three_classes.recorded["steps"]["evaluate_model"]["outputs"]["report"]["uri"])
    (page,) = folder.glob("*.html")
    text = page.read_text(encoding="utf-8")
    assert "schlecht" in text and "<svg" in text
    assert "<script" not in text


def test_evaluate_pipeline_gives_the_same_scores(three_classes: Any, small: list[str]) -> None:
    model = three_classes.folder / "outputs" / "model"
    before = json.loads((model / "test_results.json").read_text())
    done = three_classes.run(*small, "pipeline=evaluate", f"checkpoint={model}", "launch.num_processes=1")
    assert done.code == 0, done.err
    after = json.loads((model / "test_results.json").read_text())
    assert after["created"] >= before["created"]
    assert after["n_rows"] == before["n_rows"]
    for name, value in before["metrics"].items():
        assert after["metrics"][name] == pytest.approx(value, abs=1e-6), name
    assert three_classes.last_run()["name"] == "evaluate"
    assert not [path for path in model.parent.iterdir() if path.name.startswith(".")]


def test_several_evaluation_sets(three_classes: Any, small: list[str], reviews: Path, tmp_path: Path) -> None:
    """Named sets are scored beside validation and test; the run starts from a folder outside the checkout."""
    extra = tmp_path / "extra set.csv"
    extra.write_text(
        "Satz,Urteil\nthe good good film,gut\na bad poor cast,schlecht\nit was it,mittel\n", encoding="utf-8"
    )
    words = [*small, f"+eval.sets.extra='{extra}'", "max_steps=3", "eval.every_steps=1", "cache=false", "name=sets"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = three_classes.run(*words, cwd=elsewhere)
    assert done.code == 0, done.err
    (folder,) = (three_classes.home / "skytune" / "runs").glob("sets-*")
    assert json.loads((folder / "outputs" / "model" / "extra_results.json").read_text())["n_rows"] == 3
    records = [json.loads(line) for line in (folder / "outputs" / "history.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records if r["kind"] == "validation"] == [1, 2, 3]


@pytest.mark.soak
@pytest.mark.slow
def test_default_command(new_checkout: Callable[[], Any]) -> None:
    """`python src/run.py` alone: no account, no hub; learns; leaves the checkout as it was; names everything."""
    checkout = new_checkout()
    before = {
        path
        for path in checkout.source.rglob("*")
        if checkout.home not in path.parents and "__pycache__" not in path.parts
    }
    done = checkout.run(timeout=560)
    assert done.code == 0, done.err
    after = {
        path
        for path in checkout.source.rglob("*")
        if checkout.home not in path.parents and "__pycache__" not in path.parts
    }
    assert {path.relative_to(checkout.source).as_posix() for path in after - before} <= {".zen/config.yaml"}
    (folder,) = [path for path in (checkout.home / "skytune" / "runs").iterdir() if path.is_dir()]
    scores = json.loads((folder / "outputs" / "model" / "test_results.json").read_text())
    assert scores["n_rows"] == 853
    assert scores["metrics"]["accuracy"] >= 0.77
    for words in (
        "accuracy 0.",
        "853 held-out rows",
        "samples/s",
        str(folder / "outputs" / "model"),
        "zenml login --local",
    ):
        assert words in done.out, words
    history = [json.loads(line) for line in (folder / "outputs" / "history.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in history if record["kind"] == "step"]
    assert np.mean(losses[-3:]) < np.mean(losses[:3])


def test_a_run_leaves_the_repository_clean() -> None:
    """What ZenML writes into `.zen` is ignored by git."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    for name in (".zen/config.yaml", ".env"):
        done = subprocess.run(["git", "check-ignore", "-q", name], cwd=ROOT, check=False, env=os.environ)
        assert done.returncode == 0, name
