"""The room of what ZenML stores: data sets, tokenizers and models as plain files, never as pickles.

ZenML's own Hugging Face integration does not count as installed beside datasets 5 and transformers 5, and then every
such artifact becomes a pickle without a word. `register` puts these materializers in its place for every run.
Importing this room imports neither datasets nor transformers nor torch.
"""

from typing import Any, ClassVar

from zenml.materializers.base_materializer import BaseMaterializer
from zenml.materializers.materializer_registry import materializer_registry

from ..config import UserError
from .dataset import DatasetMaterializer
from .model import ModelFolder, ModelFolderMaterializer
from .tokenizer import StoredTokenizer, TokenizerMaterializer
from .types import ByName, dotted_name

MATERIALIZERS: tuple[type[BaseMaterializer], ...] = (
    DatasetMaterializer,
    TokenizerMaterializer,
    ModelFolderMaterializer,
)
"""For `@step(output_materializers=...)`, where every output of the step is of one of their types."""


class PlainFilesOnly(BaseMaterializer):
    """Stands where ZenML would pickle: refuses, and says what to return instead."""

    SKIP_REGISTRATION: ClassVar[bool] = True
    ASSOCIATED_TYPES: ClassVar[tuple[type, ...]] = (object,)

    def save(self, data: Any) -> None:
        """Refuse.

        Raises:
            UserError: always.
        """
        raise UserError(
            f"a step returned a {dotted_name(type(data))}, which could only be stored as a pickle: return plain "
            "values, a data set, a tokenizer or a ModelFolder, or give the step output_materializers of your own"
        )


def register() -> None:
    """Use these materializers in every run of this process, before ZenML's own; calling it again changes nothing."""
    types = materializer_registry.materializer_types
    if not isinstance(types, ByName):
        names = {}
        for materializer in MATERIALIZERS:
            for kind in materializer.ASSOCIATED_TYPES:
                names[getattr(kind, "path", dotted_name(kind))] = materializer
        materializer_registry.materializer_types = ByName(types, names)
    materializer_registry.default_materializer = PlainFilesOnly
