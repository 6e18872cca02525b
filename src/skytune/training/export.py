"""Whether the model that is handed on is whole: other trainers were seen to export what one process had left of it."""

from collections.abc import Mapping

import torch

from ..config import UserError


def shapes_of(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of everything that a model's file must hold, by name; to be called before it is wrapped."""
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def refuse_partial(model: torch.nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse to hand on a model of which something is missing, empty or a shard.

    Raises:
        UserError: with the first such tensor.
    """
    found = model.state_dict()
    for name in sorted(shapes.keys() | found.keys()):
        fault = _fault(found.get(name), shapes.get(name))
        if fault:
            raise UserError(f"the trained model is not whole, so nothing was written: {name} {fault}")


def _fault(tensor: torch.Tensor | None, shape: tuple[int, ...] | None) -> str:
    if tensor is None:
        return "is missing"
    if shape is None:
        return "is not in the model that was to be trained"
    if tensor.is_meta:
        return "has no memory"
    if type(tensor) is not torch.Tensor and not isinstance(tensor, torch.nn.Parameter):
        return f"is a {type(tensor).__name__}"
    if tuple(tensor.shape) != shape:
        return f"is {'empty' if not tensor.numel() else 'a shard'}: {list(tensor.shape)} instead of {list(shape)}"
    return ""
