"""Words to tokens: which token has a word's tag, whatever the tokenizer makes of the word."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, RobertaTokenizerFast

from skytune.config import DataConfig, ModelConfig, TaskConfig, from_dict
from skytune.data import prepare
from skytune.tasks import find_task


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A model whose tokenizer is RoBERTa's kind: words of several tokens, blanks are part of them."""
    import shutil

    from tokenizers import ByteLevelBPETokenizer

    folder = tmp_path_factory.mktemp("byte-level")
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        ["a good film", "the bad film"] * 50, 300, special_tokens=["<s>", "<pad>", "</s>", "<unk>"]
    )
    trained.save_model(str(folder))
    RobertaTokenizerFast(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt")).save_pretrained(folder)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(tiny_model / name, folder / name)
    text = (folder / "config.json").read_text().replace('"vocab_size": 19', '"vocab_size": 300')
    (folder / "config.json").write_text(text)
    return folder


def test_the_first_token_of_a_word_has_its_tag(byte_level: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text("text\tlabel\n" + "".join(f"good unheard film {n}\tB-x O B-x O\n" for n in range(20)))
    config = from_dict(DataConfig, {"source": "files", "train": str(file), "drop_leaks": False})
    found = prepare(
        config, ModelConfig(name=str(byte_level)), 1, {}, None, find_task(TaskConfig(name="token-classification"))
    )
    row = found.train.with_format(None)[0]
    tokens = found.tokenizer.convert_ids_to_tokens(row["input_ids"])
    tagged = [(token, found.labels[label]) for token, label in zip(tokens, row["labels"], strict=True) if label != -100]
    assert [token[0] for token, _ in tagged] == ["\u0120"] * 4, "each first token begins with a blank"
    assert [tag for _, tag in tagged] == ["B-x", "O", "B-x", "O"]
    assert (tagged[0][0], tagged[2][0]) == ("\u0120good", "\u0120film")
    found.tokenizer.save_pretrained(tmp_path / "saved")
    again = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert (
        again(["good", "film"], is_split_into_words=True)["input_ids"]
        == row["input_ids"][:2] + again(["film"], is_split_into_words=True)["input_ids"][1:]
    )


def test_rows_with_words_beyond_the_limit_are_counted(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text("text\tlabel\n" + "".join(f"{'good ' * (n + 3)}film\t{'B-x ' * (n + 3)}O\n" for n in range(12)))
    values = {"source": "files", "train": str(file), "drop_leaks": False, "max_length": 8}
    task = find_task(TaskConfig(name="token-classification"))
    found = prepare(from_dict(DataConfig, values), ModelConfig(name=str(tiny_model)), 1, {}, None, task)
    assert found.notes["truncated"] == 9  # 8 tokens are 6 words
