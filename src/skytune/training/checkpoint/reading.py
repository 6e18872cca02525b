"""From the files of a checkpoint back to what was saved in it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...config import UserError
from .store import Found

if TYPE_CHECKING:
    import torch


def load_tensors(found: Found, name: str) -> dict[str, "torch.Tensor"]:
    """Return the tensors of `<name>.safetensors`, on the CPU."""
    from safetensors.torch import load_file

    tensors: dict[str, torch.Tensor] = load_file(_file(found, f"{name}.safetensors"), device="cpu")
    return tensors


def load_document(found: Found, name: str) -> Any:
    """Return the content of `<name>.json`."""
    return json.loads(_file(found, f"{name}.json").read_bytes())


def _file(found: Found, name: str) -> Path:
    if name not in found.files:
        raise UserError(f"{found.location}: holds no {name}")
    return found.files[name]
