import errno
import json
import logging
import re
import subprocess
import sys

import pytest
import torch

from skytune.config import ModelConfig, UserError
from skytune.models import build_model, load_saved, save_model, saved_model

LABELS = ["bad", "fine", "great"]
ROWS = {
    "input_ids": torch.tensor([[2, 8, 11, 3], [2, 16, 17, 3]]),
    "attention_mask": torch.ones(2, 4, dtype=torch.long),
}


@pytest.mark.parametrize("family", ["bert", "distilbert", "bart"])
def test_a_saved_model_gives_the_same_logits_and_loads_in_a_pipeline(families, family, tmp_path):
    from transformers import pipeline

    model = build_model(ModelConfig(name=families[family]), None, LABELS, 1, families[family]).eval()
    save_model(model, tmp_path / "model", families[family])
    again = load_saved(tmp_path / "model")
    with torch.no_grad():
        assert torch.equal(model(**ROWS).logits, again(**ROWS).logits)
    info = saved_model(tmp_path / "model")
    assert (info.labels, info.target, info.tokenizer) == (LABELS, None, True)
    logging.disable(logging.WARNING)
    answer = pipeline("text-classification", model=str(tmp_path / "model"))("this film was charming")
    logging.disable(logging.NOTSET)
    assert answer[0]["label"] in LABELS


def test_no_file_of_a_saved_model_is_a_pickle(families, tmp_path):
    save_model(build_model(ModelConfig(name=families["bert"]), None, LABELS, 1), tmp_path / "model", families["bert"])
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= names
    assert all(name.endswith((".safetensors", ".json", ".txt", ".jinja")) for name in names)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".model")] == []


OWN = """
import torch

class Tied(torch.nn.Module):
    def __init__(self, num_labels, width=4):
        super().__init__()
        self.one = torch.nn.Linear(width, width)
        self.two = torch.nn.Linear(width, width)
        self.two.weight = self.one.weight
        self.head = torch.nn.Linear(width, num_labels)

    def forward(self, x, labels=None):
        return {"logits": self.head(self.two(self.one(x)))}
"""


SAVE = """
import sys
import transformers
from accelerate.utils import is_deepspeed_available
from skytune.models import save_model
config = transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
save_model(transformers.BertForSequenceClassification(config), sys.argv[1])
print("deepspeed" in sys.modules, is_deepspeed_available() == (importlib.util.find_spec("deepspeed") is not None))
"""


def test_saving_imports_no_wrapper_of_models(tmp_path):
    """Accelerate would import DeepSpeed to look whether a model is in its engine."""
    words = [sys.executable, "-c", "import importlib.util\n" + SAVE, str(tmp_path / "model")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert (done.stdout, (tmp_path / "model/model.safetensors").is_file()) == ("False True\n", True)


def test_a_module_of_ones_own_is_rebuilt_with_shared_weights(tmp_path, monkeypatch):
    (tmp_path / "own_saved.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    model = build_model(ModelConfig(_target_="own_saved.Tied", args={"width": 6}), None, LABELS, 1)
    save_model(model, tmp_path / "model")
    assert json.loads((tmp_path / "model" / "skytune_model.json").read_text())["labels"] == LABELS
    again = load_saved(tmp_path / "model", "own_saved.Tied")
    x = torch.randn(2, 6)
    assert torch.equal(model(x)["logits"], again(x)["logits"])
    assert again.two.weight is again.one.weight
    info = saved_model(tmp_path / "model")
    assert (info.labels, info.target, info.tokenizer) == (LABELS, "own_saved.Tied", False)
    # saved once more from what was loaded
    save_model(again, tmp_path / "model")
    assert torch.equal(load_saved(tmp_path / "model", "own_saved.Tied")(x)["logits"], again(x)["logits"])


def test_the_refusal_of_a_folder_alone_says_how_it_is_allowed(tmp_path, monkeypatch):
    (tmp_path / "own_asked.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    save_model(build_model(ModelConfig(_target_="own_asked.Tied"), None, LABELS, 1), tmp_path / "model")
    for target in (None, "own_asked.Other"):
        with pytest.raises(
            UserError, match=r"wants own_asked\.Tied called.*plugins=\[own_asked\] or trust=true"
        ) as refused:
            load_saved(tmp_path / "model", target)
        allowed = eval(f"dict({re.search(r'target=[^ ]+', str(refused.value))[0]})")
        assert type(load_saved(tmp_path / "model", **allowed)).__name__ == "Tied"


def test_weights_that_are_parts_of_one_buffer(tmp_path, monkeypatch):
    """As `ZeroRedundancyOptimizer` and cuDNN's recurrent layers leave them."""
    (tmp_path / "own_parts.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    model = build_model(ModelConfig(_target_="own_parts.Tied", args={"width": 6}), None, LABELS, 1)
    buffer, at = torch.empty(sum(weight.numel() for weight in model.parameters())), 0
    for weight in model.parameters():
        part = buffer[at : at + weight.numel()].view_as(weight).copy_(weight.data)
        weight.data, at = part, at + weight.numel()
    save_model(model, tmp_path / "model")
    again, x = load_saved(tmp_path / "model", "own_parts.Tied"), torch.randn(2, 6)
    assert torch.equal(model(x)["logits"], again(x)["logits"])
    assert again.two.weight is again.one.weight
    kept = (tmp_path / "model" / "model.safetensors").stat().st_size
    assert 4 * buffer.numel() < kept < 4 * buffer.numel() + 1000  # a tied weight once


def test_changed_code_of_ones_own_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "own_changed.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    save_model(build_model(ModelConfig(_target_="own_changed.Tied"), None, LABELS, 1), tmp_path / "model")
    spec = tmp_path / "model" / "skytune_model.json"
    spec.write_text(spec.read_text().replace('"args": {}', '"args": {"width": 9}'))
    with pytest.raises(UserError, match=r"do not fit own_changed\.Tied"):
        load_saved(tmp_path / "model", "own_changed.Tied")


@pytest.mark.parametrize(
    "spec",
    [
        {"target": "os.system", "args": {"command": "true"}, "labels": ["a", "b"]},
        {"target": "os.system", "args": [], "labels": ["a", "b"]},
        {"target": ["os.system"], "args": {}, "labels": ["a"]},
        {"target": "", "args": {}, "labels": ["a"]},
        {"args": {}},
        [],
        "[" * 100_000,
        "nonsense",
    ],
)
def test_a_folder_alone_has_nothing_called(tmp_path, spec):
    (tmp_path / "skytune_model.json").write_text(spec if isinstance(spec, str) else json.dumps(spec))
    with pytest.raises(UserError, match=r"skytune_model.json") as refused:
        load_saved(tmp_path)
    assert "\n" not in str(refused.value)


def test_no_secret_is_filled_into_a_folders_arguments(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "canary")
    spec = {"target": "own_saved.Tied", "args": {"width": "<env:HF_TOKEN>"}, "labels": LABELS}
    (tmp_path / "skytune_model.json").write_text(json.dumps(spec))
    with pytest.raises(UserError, match=r"args.width: wants the secret HF_TOKEN"):
        load_saved(tmp_path, "own_saved.Tied")


@pytest.mark.parametrize("values", ["[]", "{", '{"id2label": [1]}', '{"id2label": {"x": 1}}', "[" * 100_000])
def test_a_damaged_configuration_is_one_line(tmp_path, values):
    (tmp_path / "config.json").write_text(values)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UserError, match=r"^checkpoint=.*: its config.json") as refused:
        load_saved(tmp_path)
    assert "\n" not in str(refused.value)


def test_a_module_that_nobody_could_rebuild_is_refused(tmp_path):
    with pytest.raises(UserError, match="not made from"):
        save_model(torch.nn.Linear(2, 2), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_full_disk_is_one_line_and_leaves_the_old_model(families, tmp_path, monkeypatch):
    model = build_model(ModelConfig(name=families["bert"]), None, LABELS, 1)
    save_model(model, tmp_path / "model", families["bert"])
    before = (tmp_path / "model" / "model.safetensors").read_bytes()

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(type(model), "save_pretrained", full)
    with pytest.raises(UserError, match=r"cannot write the model to .*model: No space left on device"):
        save_model(model, tmp_path / "model", families["bert"])
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.name != "model"] == []


def test_a_backbone_is_no_trained_classifier(families):
    with pytest.raises(UserError, match=r"checkpoint=.*holds no trained classifier"):
        load_saved(families["bert"])


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(UserError, match=r"checkpoint=.*nowhere: no such folder"):
        load_saved(tmp_path / "nowhere")


def test_missing_weights_are_never_replaced_by_random_ones(families, tmp_path):
    from safetensors.torch import load_file, save_file

    save_model(build_model(ModelConfig(name=families["bert"]), None, LABELS, 1), tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    del tensors["classifier.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"incomplete: classifier.weight"):
        load_saved(tmp_path / "model")
