"""A tokenizer of a few words with a chat template, for tests of language models."""

from pathlib import Path
from typing import Any

WORDS = ["<pad>", "<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"]
WORDS += ["good", "bad", "fine", "poor", "nice", "dull", "the", "a", "film", "plot", "cast", "is", "was", "it"]
WORDS += ["yes", "no", "?", ".", ":"]

TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tokenizer(template: str | None = TEMPLATE, **more: Any) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    own: dict[str, Any] = {"pad_token": "<pad>", "eos_token": "<|end|>", "unk_token": "<unk>", "bos_token": "<s>"}
    made = PreTrainedTokenizerFast(tokenizer_object=words, **{**own, **more})
    made.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|assistant|>", "<|end|>"]})
    made.chat_template = template
    return made


def llama_folder(folder: Path, **more: Any) -> Path:
    """Write a tiny Llama, drawn at random, with this tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    own = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    made = tokenizer()
    ids = {"pad_token_id": made.pad_token_id, "eos_token_id": made.eos_token_id, "bos_token_id": made.bos_token_id}
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS), intermediate_size=64, max_position_embeddings=64, **{**own, **ids, **more}
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    made.save_pretrained(folder)
    return folder
