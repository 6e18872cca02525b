"""What a model's forward returned: an object, a dict or a tuple with a loss, logits or both."""

from typing import TYPE_CHECKING

from ..config import UserError

if TYPE_CHECKING:
    import torch


def logits_of(output: object) -> "torch.Tensor":
    """Return the logits of a model's output (an object, a dict or a tuple that ends with them).

    Raises:
        UserError: there are none.
    """
    import torch

    found = _part(output, "logits", -1)
    if not isinstance(found, torch.Tensor):
        kind = type(output).__name__
        raise UserError(f"the model's forward must return logits (with labels: loss and logits), not {kind}")
    return found


def loss_of(output: object) -> "torch.Tensor":
    """Return the loss of a model's output (an object, a dict or a tuple that starts with it).

    Raises:
        UserError: there is none.
    """
    import torch

    found = _part(output, "loss", 0)
    if not isinstance(found, torch.Tensor) or found.ndim != 0:
        raise UserError("the model's forward must return a scalar loss and logits when it is given labels")
    return found


def _part(output: object, name: str, place: int) -> object:
    found = getattr(output, name, None)
    if found is None and isinstance(output, dict):
        found = output.get(name)
    if found is None and isinstance(output, tuple) and (place < 0 or len(output) > 1):
        found = output[place]
    return found
