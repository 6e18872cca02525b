"""The card of a run: read as huggingface_hub reads it, and every number in it computed anew from the predictions."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import ModelCard

from skytune.config import UploadConfig, UserError
from skytune.job import JobDir
from skytune.models import hash_file
from skytune.release.card import write_card
from skytune.release.command import command_again
from skytune.release.publish import publish
from skytune.release.results import run_of
from skytune.runs.catalog import RunRecord
from skytune.training.outputs import read_predictions

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def tables(card: ModelCard) -> dict[str, list[str]]:
    """Return the cells of all tables by their first."""
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in card.text.splitlines() if line.startswith("| ")]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}


def numbers(cell: str) -> list[float]:
    return [float(found) for found in NUMBER.findall(cell)]


def test_every_number_is_that_of_the_predictions(scored: Any) -> None:
    from scipy.special import log_softmax
    from scipy.stats import binomtest
    from sklearn import metrics as sk

    run = scored(epochs=3, optimizer={"lr": 5e-3})
    upload = UploadConfig(url="hf://me/mine", license="mit", language=["en"])
    card = ModelCard(write_card(run, JobDir(run.folder).model, upload))
    assert (card.data.license, card.data.language, card.data.library_name) == ("mit", ["en"], "transformers")
    assert (card.data.pipeline_tag, card.data.model_name) == ("text-classification", "mine")
    told = {(r.dataset_split, r.metric_type): r.metric_value for r in card.data.eval_results}
    shown, checked = tables(card), 0
    for place, split in enumerate(("test", "validation")):
        _, labels, logits = read_predictions(JobDir(run.folder).predictions(split))
        found, odds = logits.argmax(1), logits[:, 1].astype(float) - logits[:, 0]
        own = {
            "loss": -log_softmax(logits.astype(float), axis=1)[np.arange(len(labels)), labels].mean(),
            "accuracy": (found == labels).mean(),
            "f1": sk.f1_score(labels, found, zero_division=0),
            "precision": sk.precision_score(labels, found, zero_division=0),
            "recall": sk.recall_score(labels, found, zero_division=0),
            "matthews": sk.matthews_corrcoef(labels, found),
            "roc_auc": sk.roc_auc_score(labels, odds),
        }
        titles = {"f1": "F1", "roc_auc": "ROC-AUC"}
        for name, value in own.items():
            assert told.pop((split, name)) == pytest.approx(value, abs=1e-6), name
            assert numbers(shown[titles.get(name, name)][place])[0] == pytest.approx(value, rel=1e-3, abs=6e-5), name
            checked += 1
        interval = binomtest(int((found == labels).sum()), len(labels)).proportion_ci(method="wilson")
        assert numbers(shown["accuracy"][place])[1:] == pytest.approx([interval.low, interval.high], abs=6e-4)
        if split == "test":
            columns = sk.precision_recall_fscore_support(labels, found, labels=[0, 1], zero_division=0)
            for at, name in enumerate(("negative", "positive")):
                precision, recall, f1, rows = (numbers(cell) for cell in shown[name])
                assert [precision[0], recall[0], f1[0]] == pytest.approx([c[at] for c in columns[:3]], abs=6e-5)
                assert rows == [columns[3][at]]
                right = int(((found == labels) & (labels == at)).sum())
                interval = binomtest(right, int(rows[0])).proportion_ci(method="wilson")
                assert recall[1:] == pytest.approx([interval.low, interval.high], abs=6e-4)
            sure = np.exp(log_softmax(logits.astype(float), axis=1)).max(1)
            bins = np.ceil(sure * 15)
            error = sum(
                abs((found == labels)[bins == b].mean() - sure[bins == b].mean()) * (bins == b).mean()
                for b in np.unique(bins)
            )
            assert f"calibration error on test: {error:.4f}" in card.text
    assert not told and checked == 14, "and there are no others"
    weights = JobDir(run.folder).model / "model.safetensors"
    assert f"model.safetensors: SHA-256 `{hash_file(weights)}`" in card.text
    assert shown["Hash of the tokenized rows"] == [run.values["fingerprints"]["data"]]
    assert shown["Rows"] == ["64 train, 16 validation, 16 test"] and shown["Optimizer steps"] == ["24"]


def test_names_of_anybody_stay_names(scored: Any) -> None:
    """Class names, files and columns that look like Markdown or YAML."""
    run = scored()
    model = JobDir(run.folder).model
    file, evil = model / "test_results.json", "a|b`c`\n---\nlicense: mit\n# <img src=x> [x](http://x) www.x.org"
    values = json.loads(file.read_text())
    values["classes"][0]["name"] = evil
    values["metrics"]["x | y\n---\n"] = 0.5
    file.write_text(json.dumps(values))
    run.values["config"]["data"].update(source="files", train=f"/data/{evil}.csv", label=evil)
    card = ModelCard(write_card(run, model, UploadConfig()))
    assert card.data.license is None and card.data.to_dict()["tags"] == ["skytune", "text-classification"]
    told = {r.metric_type: r.metric_value for r in card.data.eval_results}
    assert told["x | y ---"] == 0.5
    lines = card.text.splitlines()
    assert "---" not in lines and not any(line.startswith(("# <", "license")) for line in lines)
    row = next(line for line in lines if line.startswith("| a\\|b"))
    assert len(re.split(r"(?<!\\)\|", row)) == 7 and "\\<img" in row and "\\[x\\](http\\://x)" in row


def test_a_run_without_scores_and_what_is_no_run(run_job: Any, here: None, tiny_classifier: Path) -> None:
    done = run_job(max_steps=1)
    with pytest.raises(UserError, match=r"its test split was never scored: `python src/run\.py pipeline=evaluate"):
        publish(str(done.job.model), UploadConfig(url="/nowhere"))
    with pytest.raises(UserError, match=r"^checkpoint=.*tiny-classifier: does not lie in the folder of a run"):
        run_of(str(tiny_classifier))


def test_a_template_of_ones_own(scored: Any, tmp_path: Path) -> None:
    run, file = scored(max_steps=1), tmp_path / "card.md"
    model = JobDir(run.folder).model
    file.write_text("---\n{{ card_data }}\n---\n{% for name, values in scores %}{{ name }} {% endfor %}")
    card = ModelCard(write_card(run, model, UploadConfig(template=str(file))))
    assert card.text.startswith("accuracy F1") and card.data.eval_results
    for text, told in (("{% for %}", "cannot be used"), ("---\n- a\n---\n", "must begin with ---")):
        file.write_text(text)
        with pytest.raises(UserError, match=rf"^upload\.template=.*: {told}"):
            write_card(run, model, UploadConfig(template=str(file)))


@pytest.mark.parametrize(
    ("words", "again"),
    [
        ("", ""),
        ("epochs=3 'data.text={a} b' upload.url=hf://me/x upload.tag=v1 +tracker=wandb", "epochs=3 'data.text={a} b'"),
        ("pipeline=training resume=never", "pipeline=training resume=never"),
        ("pipeline=evaluate checkpoint=x", None),
        ("resume=s3://bucket/run", None),
        ("search.take=mine", None),
        ("model.args.api_key=<env:KEY>", None),
    ],
)
def test_the_command_without_what_leaves_this_machine(tmp_path: Path, words: str, again: str | None) -> None:
    run = RunRecord(tmp_path, {"origin": {"command": f"python /home/me/src/run.py {words}"}}, {})
    assert command_again(run) == ("" if again is None else f"python src/run.py {again}".strip())
    assert command_again(RunRecord(tmp_path, {"origin": {"command": "python own.py"}}, {})) == ""


def test_publishing(scored: Any, hub: Any) -> None:
    run = scored(max_steps=2)
    model = JobDir(run.folder).model
    done = publish(str(model), UploadConfig(url="hf://me/mine", tag="v1"))
    files = {name: data for name, data in hub.files("me/mine").items() if name != ".gitattributes"}
    assert files == {file.name: file.read_bytes() for file in model.iterdir()}
    assert {"README.md", "model.safetensors", "test_results.json", "tokenizer.json"} <= files.keys()
    assert ModelCard(files["README.md"].decode()).data.model_name == "mine"
    kept = json.loads((run.folder / "outputs" / "published.json").read_text())
    assert kept == {"url": "hf://me/mine", "commit": hub.repos["me/mine"][-1][0], "tag": "v1"}
    assert publish(str(model), UploadConfig(url="hf://me/mine", tag="v1"))["commit"] == done["commit"]
