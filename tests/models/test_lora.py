"""Adapters: what learns, what is written, what comes back, and what is refused."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from skytune.config import ConfigError, LoraConfig, ModelConfig, UserError, from_dict
from skytune.models import load_saved, merge_adapter, save_model, trained_state
from skytune.models.build import build_model
from skytune.models.quantized import count_numbers, is_quantized, quantize

pytest.importorskip("peft")

SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
LABELS = ["bad", "good", "odd"]


def bert() -> Any:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(**SMALL, intermediate_size=64, max_position_embeddings=64), add_pooling_layer=False)


def gpt2() -> Any:
    """Its linear layers are transposed."""
    from transformers import GPT2Config, GPT2Model

    own = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
    return GPT2Model(GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=50, **own))


def roberta() -> Any:
    """Its head has several layers, and there is another one in its file."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    return RobertaForMaskedLM(RobertaConfig(**SMALL, intermediate_size=64, max_position_embeddings=64))


def llama(**more: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**{**SMALL, "intermediate_size": 64, "pad_token_id": 0, **more}))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a maker of folders with a tiny model."""
    root, made = tmp_path_factory.mktemp("bases"), {}

    def make(kind: Callable[[], Any], name: str = "", seed: int = 0) -> Path:
        folder = root / (name or kind.__name__)
        if folder not in made:
            torch.manual_seed(seed)
            kind().save_pretrained(folder)
            made[folder] = True
        return folder

    return make


def build(folder: Path, seed: int = 1, **lora: Any) -> Any:
    return build_model(ModelConfig(name=str(folder), lora=LoraConfig(**lora)), None, LABELS, seed)


def trainable(model: Any) -> list[str]:
    return [name for name, weight in model.named_parameters() if weight.requires_grad]


def moved(model: Any) -> Any:
    """Change what learns, as if it had been trained."""
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=draw) * 0.1)
    return model.eval()


def logits(model: Any) -> torch.Tensor:
    tokens = torch.randint(3, 50, (2, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model.eval()(input_ids=tokens).logits


@pytest.mark.parametrize("how", [{}, {"dora": True}, {"rslora": True, "alpha": 3.0}], ids=["lora", "dora", "rslora"])
@pytest.mark.parametrize("kind", [bert, gpt2, roberta, llama], ids=lambda kind: kind.__name__)
def test_an_adapter_comes_back_everywhere(base: Any, tmp_path: Path, kind: Any, how: dict[str, Any]) -> None:
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification as Auto

    model = moved(build(base(kind), rank=4, **how))
    expected = logits(model)
    save_model(model, tmp_path / "adapter")
    files = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert files == {"adapter_config.json", "adapter_model.safetensors", "skytune_adapter.json"}
    assert torch.equal(logits(load_saved(tmp_path / "adapter")), expected)
    loaded = PeftModel.from_pretrained(Auto.from_pretrained(base(kind), num_labels=3), tmp_path / "adapter")
    assert torch.equal(logits(loaded), expected)
    again = build(base(kind), seed=9, adapter=str(tmp_path / "adapter"))
    assert torch.equal(logits(again), expected) and trainable(again) == trainable(model)
    merge_adapter(tmp_path / "adapter", tmp_path / "merged")
    plain = load_saved(tmp_path / "merged")
    assert (logits(plain) - expected).abs().max() <= 1e-5
    assert not [name for name in plain.state_dict() if "lora" in name]


@pytest.mark.parametrize("kind", [bert, llama], ids=lambda kind: kind.__name__)
def test_a_base_in_four_bits(base: Any, tmp_path: Path, kind: Any) -> None:
    """QLoRA: what was scored is what is saved, continued, merged; the head is whole, and learns whole."""
    pytest.importorskip("bitsandbytes")
    whole = moved(build(base(kind), rank=4))
    model = moved(build(base(kind), rank=4, bits=4))
    expected = logits(model)
    assert 0 < (expected - logits(whole)).abs().max() < 1.5, "nearly the model's own"
    assert trainable(model) == trainable(whole) and trained_state(model).keys() == trained_state(whole).keys()
    sizes = [sum(p.numel() * p.element_size() for p in m.parameters() if not p.requires_grad) for m in (model, whole)]
    assert sizes[0] < 0.55 * sizes[1], "embeddings, a good part of this small one, stay as they are"
    counts = [[count_numbers(p) for p in m.parameters()] for m in (model, whole)]
    assert counts[0] == counts[1], "what is told of size and work is that of the model"
    save_model(model, tmp_path / "adapter")
    assert torch.equal(logits(load_saved(tmp_path / "adapter")), expected)
    again = build(base(kind), seed=9, adapter=str(tmp_path / "adapter"))
    assert torch.equal(logits(again), expected)
    merge_adapter(tmp_path / "adapter", tmp_path / "merged")
    plain = load_saved(tmp_path / "merged")
    assert (logits(plain) - expected).abs().max() <= 1e-5
    assert all(weight.dtype == torch.float32 for weight in plain.state_dict().values() if weight.is_floating_point())
    assert not [name for name in plain.state_dict() if "absmax" in name or "lora" in name]


def test_no_kernel_is_fetched_for_four_bits(base: Any, tmp_path: Path) -> None:
    """bitsandbytes asks the Hub for code on some CPUs, where the package `kernels` is installed."""
    pytest.importorskip("bitsandbytes")
    (tmp_path / "kernels.py").write_text("def get_kernel(*_, **__): open('asked', 'w'); raise OSError('no network')")
    code = (
        "from skytune.config import LoraConfig, ModelConfig; from skytune.models.build import build_model; "
        f"build_model(ModelConfig(name={str(base(bert))!r}, lora=LoraConfig(rank=2)), None, ['a', 'b'], 1)"
    )
    told = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert not (tmp_path / "asked").exists() and "kernels" not in told.stderr


def test_layers_that_share_their_weights_are_not_parted_by_four_bits() -> None:
    pytest.importorskip("bitsandbytes")
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3)))
    model[2].weight = model[0].weight
    quantize(model, [])
    assert [is_quantized(layer) for layer in model] == [False, True, False] and model[0].weight is model[2].weight


def test_nothing_that_could_be_in_four_bits(base: Any) -> None:
    pytest.importorskip("bitsandbytes")
    with pytest.raises(ConfigError, match=r"model.lora.bits=4: GPT2ForSequenceClassification has no linear layer"):
        build(base(gpt2), rank=4, bits=4)


def test_what_learns_is_the_adapter_the_head_and_what_is_new(base: Any) -> None:
    model = build(base(bert), rank=4)
    others = [name for name in trainable(model) if "lora_" not in name]
    # This encoder's file has no pooler.
    assert others == ["bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias"]
    adapted = {name.partition(".lora_")[0] for name in trainable(model)} - set(others)
    assert len(adapted) == 2 * 6
    assert trainable(build(base(bert), rank=4, targets=["query"]))[0].endswith("query.lora_A.default.weight")


def test_new_weights_are_the_seeds_alone(base: Any) -> None:
    def drawn(seed: int) -> Any:
        torch.rand(3)
        return trained_state(build(base(bert), seed=seed, rank=4))

    first, again, other = drawn(1), drawn(1), drawn(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["classifier.weight"], other["classifier.weight"])


def test_checkpoints_hold_less_than_a_fiftieth(base: Any) -> None:
    model = build(base(lambda: llama(vocab_size=8000, hidden_size=128, intermediate_size=256), "wide"), rank=2)
    sizes = [sum(tensor.nbytes for tensor in state.values()) for state in (trained_state(model), model.state_dict())]
    assert 0 < sizes[0] < 0.02 * sizes[1]


def test_one_made_by_peft_goes_on(base: Any, tmp_path: Path) -> None:
    from peft import LoraConfig as Theirs
    from peft import get_peft_model
    from transformers import AutoModelForSequenceClassification as Auto

    plain = Auto.from_pretrained(base(llama), num_labels=3)
    asked = Theirs(r=3, lora_alpha=5, target_modules=["q_proj", "down_proj"], task_type="SEQ_CLS")
    model = get_peft_model(plain, asked)
    expected = logits(moved(model))
    model.save_pretrained(tmp_path / "theirs")
    ours = build(base(llama), adapter=str(tmp_path / "theirs"))
    assert torch.equal(logits(ours), expected)
    assert len(trainable(ours)) == 2 * 2 * 2 + 1


def adapter(base: Any, folder: Path, kind: Any = llama, **lora: Any) -> Path:
    save_model(build(base(kind), **{"rank": 2, **lora}), folder)
    return folder


def rewritten(folder: Path, **values: Any) -> Path:
    """Have the adapter say something else, as one from elsewhere may."""
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
    (folder / "skytune_adapter.json").unlink(missing_ok=True)
    return folder


def test_another_base_is_refused_by_name(base: Any, tmp_path: Path) -> None:
    ours = adapter(base, tmp_path / "ours")
    other = base(llama, "other", seed=3)
    with pytest.raises(UserError, match=rf"was trained on {base(llama)}, and the weights of model.name={other} are"):
        build(other, adapter=str(ours))
    foreign = rewritten(ours, base_model_name_or_path="meta/Llama-3")
    with pytest.raises(UserError, match=r"was trained on meta/Llama-3, and model.name=\S+llama is another: give that"):
        build(base(llama), adapter=str(foreign))
    build(base(llama), adapter=str(rewritten(ours, base_model_name_or_path="somewhere/LLAMA")))


def test_a_resized_vocabulary_is_refused_by_name(base: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = rewritten(adapter(base, tmp_path / "ours"), base_model_name_or_path="llama")
    tensors = load_file(folder / "adapter_model.safetensors")
    tensors["base_model.model.model.embed_tokens.weight"] = torch.zeros(52, 32)
    save_file(tensors, folder / "adapter_model.safetensors")
    with pytest.raises(UserError, match=r"a vocabulary of 52 tokens \(model.embed_tokens.weight\), the model has 50"):
        build(base(llama), adapter=str(folder))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"peft_type": "IA3"}, "is an adapter of the kind IA3; LoRA alone"),
        ({"r": 3}, r"does not fit LlamaForSequenceClassification: \S+lora_A.weight is \[2, 64\] there, \[3, 64\] here"),
        ({"target_modules": ["q_proj"]}, r"does not fit LlamaForSequenceClassification: \S+ is only in the adapter"),
        ({"target_modules": ["nope"]}, "has no such layer that can be adapted: down_proj, "),
        ({"trainable_token_indices": [1]}, "uses trainable_token_indices, which is not done here"),
        ({"bias": "all"}, "uses bias, which is not done here"),
        ({"lora_alpha": "a lot"}, "peft cannot make it: "),
    ],
)
def test_one_that_does_not_fit_is_refused(base: Any, tmp_path: Path, values: dict[str, Any], message: str) -> None:
    folder = rewritten(adapter(base, tmp_path / "ours"), base_model_name_or_path="llama", **values)
    with pytest.raises(UserError, match=message):
        build(base(llama), adapter=str(folder))


def test_no_folder_and_a_damaged_one(base: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no adapter \(adapter_config.json\)"):
        build(base(llama), adapter=str(tmp_path))
    folder = adapter(base, tmp_path / "ours")
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(UserError, match="is damaged"):
        build(base(llama), adapter=str(folder))
    weights.rename(folder / "adapter_model.bin")
    with pytest.raises(UserError, match=r"holds no adapter_model.safetensors \(other formats can run code"):
        build(base(llama), adapter=str(folder))


def test_a_layer_that_shares_its_weights_is_refused(base: Any) -> None:
    from skytune.models.lora import attach

    model = llama(tie_word_embeddings=True)
    asked = ModelConfig(name="llama", pretrained=False, lora=LoraConfig(rank=2, targets="lm_head,q_proj"))
    with pytest.raises(ConfigError, match="lm_head shares its weights with another layer"):
        attach(model, asked, "", set())


def test_nothing_to_merge(base: Any, tmp_path: Path) -> None:
    save_model(build_model(ModelConfig(name=str(base(llama))), None, LABELS, 1), tmp_path / "plain")
    with pytest.raises(UserError, match="holds a whole model, no adapter: there is nothing to merge"):
        merge_adapter(tmp_path / "plain", tmp_path / "merged")
    foreign = rewritten(adapter(base, tmp_path / "ours"))
    with pytest.raises(UserError, match=r"is an adapter \(PEFT\) of .*model.lora.adapter="):
        merge_adapter(foreign, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"lora": {"rank": 0}}, r"model.lora.rank=0: must be at least 1"),
        ({"lora": {"alpha": 8}}, r"model.lora.alpha has an effect only together with model.lora.rank"),
        ({"lora": {"rank": 4, "adapter": "x"}}, r"model.lora.rank has no effect with model.lora.adapter"),
        ({"lora": {"rank": 4, "targets": []}}, r"model.lora.targets=\[\]: must be all-linear or names"),
        ({"lora": {"rank": 4, "bits": 8}}, r"model.lora.bits=8: must be 4, or null"),
        ({"lora": {"bits": 4}}, r"model.lora.bits has an effect only together with model.lora.rank"),
        ({"lora": {"rank": 4, "bits": 4, "dora": True}}, r"model.lora.dora does not go together with model.lora.bits"),
        ({"lora": {"rank": 4}, "freeze_backbone": True}, r"the backbone is frozen anyway"),
        ({"lora": {"rank": 4}, "_target_": "a.B"}, r"model.lora needs a model of transformers"),
    ],
)
def test_settings_that_mean_nothing_are_refused(model: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_dict(ModelConfig, model)
