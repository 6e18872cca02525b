"""How ZenML stores a `datasets.Dataset` or `DatasetDict`: Arrow files, memory-mapped from where they lie."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from zenml.enums import ArtifactType, VisualizationType
from zenml.metadata.metadata_types import StorageSize

from .arrow import hash_dataset, read_dataset, write_dataset
from .files import FolderMaterializer
from .preview import preview
from .summary import summarize
from .types import named_type

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict


class DatasetMaterializer(FolderMaterializer):
    """Stores data sets: rows (selection applied), features with class names, format, split names and their order.

    One class for both kinds, so that an output may be annotated `Dataset | DatasetDict`. A split that is a whole Arrow
    file on the same disk is hard-linked. A split with a transform is refused with a `UserError`.
    """

    ASSOCIATED_TYPES: ClassVar[tuple[type, ...]] = (
        named_type("datasets.arrow_dataset.Dataset"),
        named_type("datasets.dataset_dict.DatasetDict"),
    )
    ASSOCIATED_ARTIFACT_TYPE: ClassVar[ArtifactType] = ArtifactType.DATA
    HASHED: ClassVar[bool] = True

    def write(self, folder: Path, data: "Dataset | DatasetDict") -> None:
        """Write the Arrow and JSON files."""
        write_dataset(data, folder)

    def read(self, folder: Path, data_type: type) -> "Dataset | DatasetDict":
        """Return the data set, memory-mapped."""
        return read_dataset(folder)

    def content_hash(self, folder: Path) -> str:
        """Return a hash of rows, features and format."""
        return hash_dataset(folder)

    def extract_metadata(self, data: "Dataset | DatasetDict") -> dict[str, Any]:
        """Return rows, bytes, features, label counts and token lengths; of a `DatasetDict` by split."""
        if isinstance(data, dict):
            splits = {str(name): finite(summarize(split)) for name, split in data.items()}
            summary = {"rows": sum(split["rows"] for split in splits.values()), **splits}
        else:
            summary = finite(summarize(data))
        return summary if self._bytes is None else {"bytes": StorageSize(self._bytes), **summary}

    def save_visualizations(self, data: "Dataset | DatasetDict") -> dict[str, VisualizationType]:
        """Write the preview beside the rows."""
        return self.write_preview(preview(data))


def finite(value: Any) -> Any:
    """Return nested metadata without NaN and infinity, which JSON has not."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
