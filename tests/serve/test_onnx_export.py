"""An exported model computes what the model does, or is not there."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from skytune.config import ConfigError, LoraConfig, ModelConfig, RunConfig, UserError, from_dict
from skytune.models import save_model
from skytune.models.build import build_model
from skytune.pipelines.validation import validated
from skytune.serve import onnx_export
from skytune.serve.onnx_export import export_onnx

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


@pytest.fixture
def asked(tmp_path: Path, texts: Callable[..., list[str]]) -> Callable[..., RunConfig]:
    """Return a maker of configurations that export a model, checked on a file of 40 rows."""
    rows = {"text-classification": lambda text, n: (text, ["low", "even", "high"][n % 3])}
    rows["token-classification"] = lambda text, n: (text.split(), ["O"] * len(text.split()))

    def make(model: Path, task: str = "text-classification", **export: Any) -> RunConfig:
        lines = [dict(zip(("text", "label"), rows[task](text, n), strict=True)) for n, text in enumerate(texts(40))]
        (tmp_path / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        values = {
            "pipeline": "export",
            "checkpoint": {"path": str(model)},
            "data": {"source": "files", "test": str(tmp_path / "test.jsonl")},
            "compute": {"device": "cpu"},
            "export": {"output": str(tmp_path / "out"), **export},
        }
        return validated(from_dict(RunConfig, values))

    return make


def test_it_answers_as_the_model_in_any_size_of_batch_and_length(
    asked: Callable[..., RunConfig], saved: Callable[[str], Path], tmp_path: Path
) -> None:
    import onnxruntime
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = saved("text-classification")
    lines = export_onnx(asked(model, int8=True))
    assert "40 rows" in lines[0] and ["accuracy" in line for line in lines[1:]] == [True] * 3
    numbers = json.loads((tmp_path / "out" / "export.json").read_text())
    assert numbers["model.onnx"]["largest_difference"] < 1e-4 and numbers["rows"] == 40
    assert numbers["model.int8.onnx"]["bytes"] < numbers["model.onnx"]["bytes"]
    assert not list((tmp_path / "out").glob("*.safetensors"))
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "model.onnx"))
    tokenizer, plain = (
        AutoTokenizer.from_pretrained(tmp_path / "out"),
        AutoModelForSequenceClassification.from_pretrained(model),
    )
    for rows in (["good"], ["a good film", "bad " * 60, "the"], ["dull plot"] * 9):
        tokens = tokenizer(rows, padding=True, truncation=True, return_tensors="pt")
        found = session.run(["logits"], {one.name: tokens[one.name].numpy() for one in session.get_inputs()})[0]
        assert np.abs(found - plain(**tokens).logits.detach().numpy()).max() < 1e-4
    export_onnx(asked(model))  # in the place of the one before
    assert not (tmp_path / "out" / "model.int8.onnx").exists()


def test_tags_are_exported_too(asked: Callable[..., RunConfig], saved: Callable[[str], Path]) -> None:
    lines = export_onnx(asked(saved("token-classification"), "token-classification"))
    assert "entity_f1" in lines[1] and lines[1].split("(")[0].split(maxsplit=1)[1] in lines[2]


def test_an_adapter_is_exported_with_its_base_model(
    asked: Callable[..., RunConfig], saved: Callable[[str], Path], tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    base = saved("text-classification")
    config = ModelConfig(name=str(base), lora=LoraConfig(rank=2))
    save_model(build_model(config, None, ["low", "even", "high"], 1), tmp_path / "adapter")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "adapter")
    export_onnx(asked(tmp_path / "adapter"))
    numbers = json.loads((tmp_path / "out" / "export.json").read_text())
    assert numbers["model.onnx"]["largest_difference"] < 1e-4
    assert json.loads((tmp_path / "out" / "config.json").read_text())["id2label"]["2"] == "high"
    assert not [file.name for file in (tmp_path / "out").iterdir() if "adapter" in file.name]


def test_an_export_that_computes_something_else_is_refused(
    asked: Callable[..., RunConfig], saved: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = onnx_export._export

    def wrong(network: Any, table: Any, file: Path) -> None:
        with torch.no_grad():
            network.classifier.bias += 0.002
        right(network, table, file)

    monkeypatch.setattr(onnx_export, "_export", wrong)
    with pytest.raises(UserError, match=r"differ by 0\.002 on 40 rows.*nothing was written"):
        export_onnx(asked(saved("text-classification")))
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "skytune-home") == ["test.jsonl"]


def test_a_folder_of_something_else_stays(
    asked: Callable[..., RunConfig], saved: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match=r"export\.output=.*is there already"):
        export_onnx(asked(saved("text-classification")))
