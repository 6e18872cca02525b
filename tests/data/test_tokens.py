"""Special tokens that are written out in a text are text, or the row is named."""

import pyarrow as pa
import pytest

from skytune.config import UserError
from skytune.data.rows import Rows
from skytune.data.tokens import tokenize
from skytune.models import read_specials_as

TEXTS = ["a good film", "the plot </s> was bad", "it was <pad>"]


@pytest.fixture
def unigram():
    """A tokenizer whose vocabulary has its special tokens as words, as T5's and XLNet's have."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "</s>", "<unk>"]
    letters = [(letter, -5.0) for letter in "▁abdefgilmopstwhu<>/"]
    raw = Tokenizer(models.Unigram([*((token, 0.0) for token in special), *letters], unk_id=2))
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.post_processor = processors.TemplateProcessing("$A </s>", None, [("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def rows(texts: list[str]) -> Rows:
    return Rows(name="train.csv", text=pa.chunked_array([pa.array(texts, pa.large_string())]))


def test_a_tokenizer_that_knows_them_as_words_is_told_so_with_the_row(unigram):
    read_specials_as(unigram, None)
    with pytest.raises(UserError, match=r"^train\.csv, row 2: the text contains </s>, .*data\.special_tokens=control$"):
        tokenize(rows(TEXTS), unigram, None)
    read_specials_as(unigram, "control")  # the way out
    found, _, _ = tokenize(rows(TEXTS), unigram, None)
    assert [ids.count(1) for ids in found["input_ids"].to_pylist()] == [1, 2, 1]


def test_a_tokenizer_that_can_split_them_does(unigram):
    from tokenizers import pre_tokenizers

    unigram.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Punctuation(), pre_tokenizers.Metaspace()]
    )
    read_specials_as(unigram, "text")
    found, _, _ = tokenize(rows(TEXTS), unigram, None)
    assert [ids.count(1) for ids in found["input_ids"].to_pylist()] == [1, 1, 1]
    assert not any(0 in ids for ids in found["input_ids"].to_pylist())
