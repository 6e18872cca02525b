"""How ZenML stores models: safetensors and JSON, as a loaded model or as the folder that training left."""

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from zenml.enums import ArtifactType, VisualizationType
from zenml.metadata.metadata_types import StorageSize
from zenml.utils import io_utils

from ..config import UserError
from ..data.linking import link_or_copy, share
from ..job import read_json
from ..models import load_saved
from .files import FolderMaterializer
from .preview import model_card

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class ModelFolder:
    """A trained model that lies in a folder as plain files: weights (safetensors), config and tokenizer.

    Loaded from a local artifact store, `path` is the artifact's own folder (write nothing there); from a remote store,
    a temporary one that is gone when the step ends.
    """

    path: Path

    def load(self, target: str | None = None) -> "nn.Module":
        """Return the model, on the CPU; `target` is the import path of a network of one's own, which is called."""
        return load_saved(self.path, target)

    def pipeline(self, task: str = "text-classification", **options: Any) -> Any:
        """Return `transformers.pipeline` for this model."""
        from transformers import pipeline

        return pipeline(task, model=str(self.path), **{"trust_remote_code": False, **options})


class ModelFolderMaterializer(FolderMaterializer):
    """Stores a `ModelFolder`: large files hard-linked on the same disk, small ones copied, links resolved. A model that
    an earlier run has stored already, to the bit, is not stored twice.

    Because of the hard links, whoever writes a new model into the original folder must unlink old files first (a
    temporary name and a rename do), never truncate them: the artifact's file is the same one.
    """

    ASSOCIATED_TYPES: ClassVar[tuple[type, ...]] = (ModelFolder,)
    ASSOCIATED_ARTIFACT_TYPE: ClassVar[ArtifactType] = ArtifactType.MODEL

    def write(self, folder: Path, data: ModelFolder) -> None:
        """Link or copy the files.

        Raises:
            UserError: the folder does not exist, is empty, or a link in it leads nowhere.
        """
        source = Path(data.path)
        if not source.is_dir() or not any(source.iterdir()):
            raise UserError(f"there is no model at {source}: the folder is missing or empty")
        for path in _walk(source):
            target = folder / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                raise UserError(f"{path} is a link to a file that does not exist")
            link_or_copy(share(path.resolve(), self._earlier(path.relative_to(source))), target)

    def _earlier(self, name: Path) -> list[Path]:
        """Return the files of that name in the models that earlier runs have stored on this disk, the newest first."""
        if io_utils.is_remote(self.uri):
            return []
        found = (folder / name for folder in Path(self.uri).parent.iterdir() if folder != Path(self.uri))
        return sorted((file for file in found if file.is_file()), key=lambda file: -file.stat().st_mtime)

    def read(self, folder: Path, data_type: type) -> ModelFolder:
        """Return the folder."""
        return ModelFolder(folder)

    def extract_metadata(self, data: ModelFolder) -> dict[str, Any]:
        """Return parameters and dtypes (from the headers of the safetensors files), bytes, architecture and labels."""
        files = [path for path in _walk(Path(data.path)) if path.exists()]
        parameters, dtypes = _weights([path for path in files if path.suffix == ".safetensors"])
        config_file = Path(data.path) / "config.json"
        config = read_json(config_file) if config_file.is_file() else {}
        return {
            "parameters": parameters,
            "dtypes": sorted(dtypes),
            "bytes": StorageSize(sum(path.stat().st_size for path in files)),
            **_of_config(config.get("architectures"), config.get("model_type"), config.get("id2label")),
        }

    def save_visualizations(self, data: ModelFolder) -> dict[str, VisualizationType]:
        """Write a card beside the files."""
        return self.write_preview(model_card(self.extract_metadata(data)))


def _walk(folder: Path) -> list[Path]:
    """Return the files under `folder`, also those in linked folders, each folder once."""
    found, seen = [], set()
    for root, folders, names in os.walk(folder, followlinks=True):
        seen.add(os.path.realpath(root))
        folders[:] = sorted(name for name in folders if os.path.realpath(os.path.join(root, name)) not in seen)
        found += [Path(root) / name for name in sorted(names)]
    return found


def _weights(files: list[Path]) -> tuple[int, set[str]]:
    from safetensors import safe_open

    parameters, dtypes = 0, set()
    for path in files:
        with safe_open(str(path), framework="numpy") as weights:
            for name in weights.keys():  # noqa: SIM118 (not a dict)
                part = weights.get_slice(name)
                parameters += prod(part.get_shape())
                dtypes.add(part.get_dtype())
    return parameters, dtypes


def _of_config(architectures: Any, model_type: Any, id2label: Any) -> dict[str, Any]:
    names = list(dict(id2label or {}).values())
    return {
        **({"architecture": str(architectures[0])} if architectures else {}),
        **({"model_type": str(model_type)} if model_type else {}),
        **({"labels": names[:100]} if names else {}),
    }
