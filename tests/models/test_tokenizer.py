import shutil

import pytest

from skytune.config import ModelConfig, UserError
from skytune.models import check_vocabulary, load_config, load_tokenizer, max_length, resolve, vocabulary_size


def test_a_tokenizer_comes_from_the_model_or_from_elsewhere(families):
    config = ModelConfig(name=families["bert"])
    tokenizer = load_tokenizer(config)
    assert tokenizer("the film")["input_ids"] == load_tokenizer(config, resolve(config))("the film")["input_ids"]
    assert tokenizer.pad_token == "[PAD]"
    other = load_tokenizer(ModelConfig(name=families["bert"], tokenizer=families["gpt2"]))
    assert other.pad_token == "[SEP]"


def test_without_padding_token_the_end_of_text_pads(families):
    tokenizer = load_tokenizer(ModelConfig(name=families["gpt2"]))
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 3
    padded = tokenizer(["the film", "good"], padding=True)
    assert padded["attention_mask"] == [[1, 1, 1, 1], [1, 1, 1, 0]]


def test_a_folder_without_tokenizer_says_which_key_names_another(families, tmp_path):
    shutil.copytree(families["bert"], tmp_path / "bare")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "bare" / name).unlink()
    with pytest.raises(
        UserError, match=r"no usable tokenizer in .*bare \(model.tokenizer=... names another\)"
    ) as caught:
        load_tokenizer(ModelConfig(name=str(tmp_path / "bare")))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("family", "length"), [("bert", 16), ("distilbert", 16), ("bart", 16), ("roberta", 16), ("gpt2", 16)]
)
def test_the_greatest_length_of_every_family_really_works(families, family, length, make_tokenizer, tmp_path):
    import torch

    from skytune.models import build_model

    make_tokenizer(tmp_path, limit=None)
    config = ModelConfig(name=families[family], tokenizer=str(tmp_path))
    tokenizer = load_tokenizer(config)
    assert tokenizer.model_max_length > 10**9
    assert max_length(tokenizer, load_config(config)) == length
    row = tokenizer(" ".join(["film"] * 40), truncation=True, max_length=length, return_tensors="pt")
    row.pop("token_type_ids", None)
    model = build_model(config, None, ["a", "b"], 1)
    assert row["input_ids"].shape == (1, length)
    assert torch.isfinite(model(**row).logits).all()


def test_the_smaller_limit_counts_and_nothing_known_is_none(families):
    from transformers import BertConfig, T5Config

    tokenizer = load_tokenizer(ModelConfig(name=families["bert"]))
    assert max_length(tokenizer, BertConfig(max_position_embeddings=512)) == 16
    assert max_length(tokenizer, BertConfig(max_position_embeddings=8)) == 8
    assert max_length(tokenizer, None) == 16
    tokenizer.model_max_length = int(1e30)
    assert max_length(tokenizer, T5Config()) is None
    assert max_length(None, None) is None


def test_the_vocabulary_must_hold_every_token(families):
    from transformers import BertConfig

    tokenizer = load_tokenizer(ModelConfig(name=families["bert"]))
    assert vocabulary_size(tokenizer) == 24
    check_vocabulary(tokenizer, BertConfig(vocab_size=24))
    check_vocabulary(tokenizer, BertConfig(vocab_size=30))
    check_vocabulary(tokenizer, None)
    with pytest.raises(UserError, match=r"it has 24 tokens, the model's vocabulary 23"):
        check_vocabulary(tokenizer, BertConfig(vocab_size=23))


def test_a_config_that_transformers_does_not_know_is_one_line(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "from-the-future"}')
    with pytest.raises(UserError, match=r"from-the-future") as caught:
        load_config(ModelConfig(name=str(tmp_path)))
    assert "\n" not in str(caught.value)
    (tmp_path / "config.json").write_text("{broken")
    with pytest.raises(UserError, match=r"model.name="):
        load_config(ModelConfig(name=str(tmp_path)))
