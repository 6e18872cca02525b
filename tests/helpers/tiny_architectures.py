"""A tiny model of every architecture that is trained here, with a tokenizer of the kind that its own has."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
PLACES = {"max_position_embeddings": 64}
BERT = {**SIZES, **PLACES}
ROBERTA = {**SIZES, "max_position_embeddings": 66, "type_vocab_size": 1, "pad_token_id": 1, "eos_token_id": 2}
XLNET = {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}
FUNNEL = {"d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64, "block_sizes": [1, 1], "num_decoder_layers": 1}

# Name: (kind of tokenizer, model type, options of its configuration).
ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("words", "bert", BERT),
    "roberta": ("roberta", "roberta", ROBERTA),
    "xlm-roberta": ("roberta", "xlm-roberta", ROBERTA),
    "distilbert": (
        "words",
        "distilbert",
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, **PLACES},
    ),
    "deberta-v2": (
        "words",
        "deberta-v2",
        {**BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False},
    ),
    "gpt2": ("gpt2", "gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    # Pads with another token than its tokenizer.
    "gpt2-other-pad": (
        "gpt2",
        "gpt2",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "pad_token_id": 70},
    ),
    "gpt2-padded-left": ("gpt2 left", "gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "llama": ("llama", "llama", {**BERT, "num_key_value_heads": 2, "pad_token_id": None}),
    "llama-other-pad": ("llama", "llama", {**BERT, "num_key_value_heads": 2, "pad_token_id": 0}),
    "llama-padded-left": ("llama left", "llama", {**BERT, "num_key_value_heads": 2, "pad_token_id": -1}),
    "qwen2": ("gpt2", "qwen2", {**BERT, "num_key_value_heads": 2, "pad_token_id": None}),
    "modernbert": (
        "words",
        "modernbert",
        {**BERT, "pad_token_id": 0, "local_attention": 16, "global_attn_every_n_layers": 2},
    ),
    "albert": ("words", "albert", {**BERT, "embedding_size": 16, "pad_token_id": 0}),
    "electra": ("words", "electra", {**BERT, "embedding_size": 16}),
    "t5": (
        "t5",
        "t5",
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0},
    ),
    "mobilebert": (
        "words",
        "mobilebert",
        {**BERT, "embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16},
    ),
    "xlnet": ("words left", "xlnet", XLNET),
    "xlnet-as-published": ("xlnet left", "xlnet", XLNET),
    "fnet": ("words", "fnet", {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64, **PLACES}),
    "bart": (
        "roberta",
        "bart",
        {
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "pad_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 2,
            **PLACES,
        },
    ),
    "funnel": ("words", "funnel", FUNNEL),
    "funnel-as-published": ("funnel", "funnel", FUNNEL),
    "mpnet": ("roberta", "mpnet", {**SIZES, "max_position_embeddings": 66, "pad_token_id": 1}),
    "big_bird": ("words", "big_bird", {**BERT, "attention_type": "original_full", "pad_token_id": 0}),
    "squeezebert": ("words", "squeezebert", {**BERT, "embedding_size": 32}),
    "longformer": ("roberta", "longformer", {**ROBERTA, "attention_window": [8, 8]}),
    "convbert": ("words", "convbert", {**BERT, "embedding_size": 32}),
}

# Kind: (special tokens, template of one text and of two).
TEMPLATES: dict[str, tuple[list[str], str, str]] = {
    "words": (["[PAD]", "[UNK]", "[CLS]", "[SEP]"], "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
    "xlnet": (["[PAD]", "[UNK]", "[CLS]", "[SEP]"], "$A [SEP] [CLS]:2", "$A [SEP] $B:1 [SEP]:1 [CLS]:2"),
    "funnel": (["[PAD]", "[UNK]", "[CLS]", "[SEP]"], "[CLS]:2 $A [SEP]", "[CLS]:2 $A [SEP] $B:1 [SEP]:1"),
    "roberta": (["<s>", "<pad>", "</s>", "<unk>"], "<s> $A </s>", "<s> $A </s> </s> $B </s>"),
    "gpt2": (["<|endoftext|>"], "", ""),
    "llama": (["<unk>", "<s>", "</s>"], "<s> $A", "<s> $A $B"),
    "t5": (["<pad>", "</s>", "<unk>"], "$A </s>", "$A </s> $B </s>"),
}
ROLES = {
    "[PAD]": "pad_token",
    "<pad>": "pad_token",
    "[UNK]": "unk_token",
    "<unk>": "unk_token",
    "[CLS]": "cls_token",
    "[SEP]": "sep_token",
    "<s>": "bos_token",
    "</s>": "eos_token",
    "<|endoftext|>": "eos_token",
}


def make_tokenizer(kind: str, corpus: Sequence[str]) -> Any:
    """Return a tokenizer trained on a few texts; `kind` may say that it pads on the `left`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    kind, _, side = kind.partition(" ")
    special, single, pair = TEMPLATES[kind]
    words = special[0] == "[PAD]"
    if words:
        raw = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        raw.train_from_iterator(corpus, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special))
    else:
        raw = Tokenizer(models.BPE())
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        raw.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        raw.train_from_iterator(
            corpus, trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
        )
    if single:
        used = [(token, raw.token_to_id(token)) for token in special if token in pair]
        raw.post_processor = processors.TemplateProcessing(single, pair, used)
    names = ["input_ids", *(["token_type_ids"] if words else []), "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        model_max_length=64,
        padding_side=side or "right",
        model_input_names=names,
        **{ROLES[token]: token for token in special},
    )


def make_model(name: str, folder: Path, corpus: Sequence[str]) -> Path:
    """Write a backbone and its tokenizer into a folder."""
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    kind, model_type, options = ARCHITECTURES[name]
    tokenizer = make_tokenizer(kind, corpus)
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, vocab_size=len(tokenizer), **options)
    model = AutoModelForSequenceClassification.from_config(config).base_model
    with torch.no_grad():
        for weight in model.parameters():  # else all rows have nearly the same logits
            if weight.ndim > 1 and weight.std() < 0.05:
                weight.mul_(8)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
