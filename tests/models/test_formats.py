"""Folders as other tools save them: each is known by what lies in it, and the way out works."""

import json
import re
import shutil
from pathlib import Path

import pytest

from skytune.config import ModelConfig, UserError
from skytune.models import build_model, fetch, resolve, saved_model


@pytest.fixture
def bare(families, tmp_path) -> Path:
    """A model's folder without its weights."""
    folder = tmp_path / "model"
    shutil.copytree(families["bert"], folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("model-q4.gguf", "holds GGUF"),
        ("model.onnx", "holds ONNX"),
        ("onnx/model.onnx", "holds ONNX"),
        ("openvino_model.xml", "holds OpenVINO"),
        ("pytorch_model.bin", "holds pickled weights"),
        ("pytorch_model-00001-of-00002.bin", "holds pickled weights"),
        ("tf_model.h5", "holds TensorFlow weights"),
        ("flax_model.msgpack", "holds Flax weights"),
        ("saved_model.pb", "holds a TensorFlow SavedModel"),
        ("consolidated.00.pth", "as its makers saved it"),
        ("__0_0.distcp", "a sharded checkpoint of torch"),
        ("zero_to_fp32.py", "a checkpoint of DeepSpeed"),
        ("last.ckpt", "a checkpoint of Lightning"),
        ("model_index.json", "a pipeline of diffusers"),
        ("weights.npz", "MLX weights"),
        ("pytorch_model.safetensors", "its weights are in pytorch_model.safetensors"),
        (None, "holds no weights (model.safetensors)"),
    ],
)
@pytest.mark.parametrize("config", [True, False])
def test_other_weights_are_named_before_anything_else(bare, file, message, config):
    if file:
        (bare / file).parent.mkdir(exist_ok=True)
        (bare / file).write_bytes(b"x")
    if not config:
        (bare / "config.json").unlink()
        message = message if file and "safetensors" not in file else "this folder holds no config.json"
    for look in (lambda: resolve(ModelConfig(name=str(bare))), lambda: saved_model(bare)):
        with pytest.raises(UserError, match=re.escape(message)) as raised:
            look()
        assert str(raised.value).startswith(("model.name=", "checkpoint=")) and "\n" not in str(raised.value)
    if config:  # without weights the rest is enough
        assert fetch(str(bare), weights=False) == str(bare)
        resolve(ModelConfig(name=str(bare), pretrained=False))


def test_an_adapter_alone_and_beside_its_base(families, tmp_path):
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    alone.mkdir()
    shutil.copytree(families["bert"], beside)
    for folder in (alone, beside):
        (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "some/base"}))
    with pytest.raises(UserError, match=r"is an adapter \(PEFT\) of some/base, .*merge_and_unload.* model\.tokenizer="):
        resolve(ModelConfig(name=str(alone)))
    with pytest.raises(
        UserError, match=r"holds an adapter \(PEFT\) beside a model, .* move the files adapter_\* away$"
    ):
        resolve(ModelConfig(name=str(beside)))
    (beside / "adapter_config.json").unlink()
    resolve(ModelConfig(name=str(beside)))


def test_quantized_weights(families, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(families["bert"], folder)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(UserError, match=r"its weights are quantized \(gptq\), and cannot be trained"):
        resolve(ModelConfig(name=str(folder)))


def test_a_model_that_lies_deeper_is_pointed_at(families, tmp_path):
    outer = tmp_path / "sentence-transformer"
    shutil.copytree(families["bert"], outer / "0_Transformer")
    (outer / "modules.json").write_text("[]")
    with pytest.raises(UserError, match=f"lies deeper in this folder: model.name={outer}/0_Transformer$"):
        resolve(ModelConfig(name=str(outer)))


def test_the_way_out_of_pickled_weights_works_as_it_stands(families, bare):
    import torch
    from safetensors.torch import load_file

    weights = load_file(Path(families["bert"]) / "model.safetensors")
    names = sorted(weights)
    for part, some in enumerate((names[:5], names[5:])):
        torch.save({name: weights[name] for name in some}, bare / f"pytorch_model-0000{part + 1}-of-00002.bin")
    with pytest.raises(UserError) as raised:
        resolve(ModelConfig(name=str(bare)))
    found = re.search(r'python -c "(.*)" \(', str(raised.value))
    assert found is not None
    exec(found[1], {})
    labels = ["a", "b"]
    ours = build_model(ModelConfig(name=str(bare)), None, labels, 3).state_dict()
    wanted = build_model(ModelConfig(name=str(families["bert"])), None, labels, 3).state_dict()
    assert all(torch.equal(ours[name], wanted[name]) for name in wanted)
