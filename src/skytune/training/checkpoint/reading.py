"""From the files of a checkpoint back to what was saved in it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...config import UserError
from .shards import INDEX, Stored
from .store import Found

if TYPE_CHECKING:
    import torch


def open_tensors(found: Found, name: str) -> Stored:
    """Return the tensors of `<name>`, read as they are asked for, whether one file holds them or one a process."""
    if f"{name}.safetensors" in found.files:
        return Stored.whole(found.files[f"{name}.safetensors"])
    index = load_document(found, INDEX)
    if name not in index:
        raise UserError(f"{found.location}: holds no {name}")
    return Stored(found.files, index[name])


def load_tensors(found: Found, name: str) -> dict[str, "torch.Tensor"]:
    """Return all tensors of `<name>`, whole, on the CPU."""
    return dict(open_tensors(found, name))


def load_document(found: Found, name: str) -> Any:
    """Return the content of `<name>.json`."""
    return json.loads(_file(found, f"{name}.json").read_bytes())


def _file(found: Found, name: str) -> Path:
    if name not in found.files:
        raise UserError(f"{found.location}: holds no {name}")
    return found.files[name]
