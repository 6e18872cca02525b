"""How ZenML stores tokenizers and image processors: with the files that `save_pretrained` writes."""

from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from zenml.enums import ArtifactType

from ..data.linking import link_or_copy
from ..job import read_json, write_json
from ..models import PROCESSOR, quiet, read_processor
from .files import CLASS_FILE, FolderMaterializer, files_under, read_class, write_class
from .types import named_type

DECODER = "tokenizer.json"
"""The file from which the library `tokenizers` alone turns tokens into text."""


class TokenizerMaterializer(FolderMaterializer):
    """Stores tokenizers of transformers, fast and slow, and image processors."""

    ASSOCIATED_TYPES: ClassVar[tuple[type, ...]] = (
        named_type("transformers.tokenization_utils_base.PreTrainedTokenizerBase"),
        named_type("transformers.image_processing_base.ImageProcessingMixin"),
    )
    ASSOCIATED_ARTIFACT_TYPE: ClassVar[ArtifactType] = ArtifactType.DATA
    HASHED: ClassVar[bool] = True

    def write(self, folder: Path, data: Any) -> None:
        """Write the tokenizer's files."""
        with quiet("transformers"):
            data.save_pretrained(str(folder))
        write_class(folder, data)
        if (folder / PROCESSOR).is_file():
            return
        # `save_pretrained` writes the sides that the tokenizer was made with, not those that were set since.
        config = folder / "tokenizer_config.json"
        sides = {name: getattr(data, name) for name in ("padding_side", "truncation_side")}
        write_json(config, {**read_json(config), **sides})
        if (folder / DECODER).is_file() and _decodes_plainly(data):
            write_class(folder, data, decoder=DECODER)

    def read(self, folder: Path, data_type: type) -> Any:
        """Return the tokenizer."""
        from transformers import PreTrainedTokenizerBase

        if (folder / PROCESSOR).is_file():
            return read_processor(str(folder))
        with quiet("transformers"):
            return read_class(folder, PreTrainedTokenizerBase).from_pretrained(str(folder), local_files_only=True)

    def extract_metadata(self, data: Any) -> dict[str, Any]:
        """Return class, size of the vocabulary (added tokens included), longest input in tokens and padding side."""
        if not hasattr(data, "padding_side"):
            return {"class": type(data).__name__}
        return {
            "class": type(data).__name__,
            "vocab_size": len(data),
            "model_max_length": int(data.model_max_length),
            "padding_side": data.padding_side,
        }


def _decodes_plainly(tokenizer: Any) -> bool:
    """Whether a tokenizer's text is what the library `tokenizers` says, and nothing done to it afterwards."""
    from transformers import PreTrainedTokenizerFast

    if not isinstance(tokenizer, PreTrainedTokenizerFast) or tokenizer.clean_up_tokenization_spaces:
        return False
    base, kind = PreTrainedTokenizerFast, type(tokenizer)
    return kind.decode is base.decode and kind._decode is base._decode


class StoredTokenizer:
    """A tokenizer that lies in an artifact, for whoever needs its files or a few texts.

    The tokenizer itself would import transformers and torch: seconds, and more than all else that a step does.
    """

    def __init__(self, materializer: TokenizerMaterializer) -> None:
        self._materializer = materializer

    @cached_property
    def folder(self) -> Path:
        """The artifact's folder, or the temporary one that it was downloaded to."""
        return self._materializer.fetch()

    def save_pretrained(self, folder: Path) -> None:
        """Lay the tokenizer's files into a folder."""
        for file in files_under(self.folder):
            target = folder / file.relative_to(self.folder)
            if file.name != CLASS_FILE:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.unlink(missing_ok=True)
                link_or_copy(file, target)

    def decode(self, tokens: list[int], skip_special_tokens: bool = False) -> str:
        """Return the text of tokens, as the tokenizer itself does."""
        return str(self._decoder.decode(tokens, skip_special_tokens=skip_special_tokens))

    @cached_property
    def _decoder(self) -> Any:
        file = read_json(self.folder / CLASS_FILE).get("decoder")
        if file is None:
            return self._materializer.read(self.folder, object)
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self.folder / file))
