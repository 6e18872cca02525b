"""An optimizer's state as named tensors and JSON, and back, to the bit: no pickle.

Works on what `torch.optim.Optimizer.state_dict` documents: `state` by parameter number and `param_groups`; anything in
it may be a tensor, a number, text, None, or lists, tuples and dicts of these.
"""

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..config import UserError

if TYPE_CHECKING:
    import torch


def flatten_optimizer(optimizer: "torch.optim.Optimizer") -> tuple[dict[str, "torch.Tensor"], dict[str, Any]]:
    """Return (tensors by name, the rest as JSON); the tensors are the optimizer's own, not copies.

    Raises:
        UserError: the state holds something that is neither a tensor nor plain.
    """
    shapes = [list(parameter.shape) for parameter in _parameters(optimizer)]
    return flatten_state(type(optimizer).__name__, optimizer.state_dict(), shapes)


def flatten_state(
    kind: str, state: Mapping[str, Any], shapes: list[list[int]]
) -> tuple[dict[str, "torch.Tensor"], dict[str, Any]]:
    """Return the same of a state dict.

    Args:
        kind: name of the optimizer's class.
        state: `state` by parameter number, and `param_groups`; states of other processes' parameters may be missing.
        shapes: of all parameters, in the order of their numbers.
    """
    tensors: dict[str, torch.Tensor] = {}
    groups = [{key: value for key, value in group.items() if key != "params"} for group in state["param_groups"]]
    return tensors, {
        "optimizer": kind,
        "params": [group["params"] for group in state["param_groups"]],
        "shapes": shapes,
        "groups": _encode(groups, f"{kind}.group", tensors),
        "state": _encode(state["state"], f"{kind}.state", tensors),
    }


def join_states(parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what `flatten_state` returned beside the tensors as one, from processes that each hold some of it."""
    state: dict[int, Any] = {}
    for part in parts:
        for number, item in part["state"]["dict"]:
            state.setdefault(number, item)
    return {**parts[0], "state": {"dict": [[number, state[number]] for number in sorted(state)]}}


def state_names(values: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of the parameter that every stored tensor belongs to, by the tensor's name."""
    found: dict[str, int] = {}

    def walk(value: Any, number: int) -> None:
        if not isinstance(value, dict):
            return
        ((kind, content),) = value.items()
        if kind == "tensor":
            found[content] = number
        else:
            for item in content:
                walk(item[1] if kind == "dict" else item, number)

    for number, item in values["state"]["dict"]:
        walk(item, number)
    return found


def restored_state(tensors: Mapping[str, "torch.Tensor"], values: Mapping[str, Any]) -> dict[int, Any]:
    """Return the state by parameter number of a flattened state."""
    state: dict[int, Any] = _decode(values["state"], tensors)
    return state


def restore_optimizer(
    optimizer: "torch.optim.Optimizer", tensors: Mapping[str, "torch.Tensor"], values: Mapping[str, Any]
) -> None:
    """Put a flattened state into an optimizer over the same parameters in the same order; tensors are copied.

    Raises:
        UserError: it is another optimizer's, or its parameters have other shapes.
    """
    kind = type(optimizer).__name__
    if values["optimizer"] != kind:
        raise UserError(f"the checkpoint is of the optimizer {values['optimizer']}, this run has {kind}")
    parameters = _parameters(optimizer)
    shapes = [list(parameter.shape) for parameter in parameters]
    if shapes != values["shapes"]:
        both = itertools.zip_longest(values["shapes"], shapes)
        number, (there, here) = next((i, pair) for i, pair in enumerate(both) if pair[0] != pair[1])
        raise UserError(f"the checkpoint's optimizer does not fit: parameter {number} is {there} there, {here} here")
    groups = _decode(values["groups"], tensors)
    for group, numbers in zip(groups, values["params"], strict=True):
        group["params"] = numbers
    state = restored_state(tensors, values)
    try:
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    except ValueError as error:  # other parameter groups
        raise UserError(f"the checkpoint's optimizer does not fit: {error}") from error
    _exact(optimizer, state, parameters)


def _exact(optimizer: "torch.optim.Optimizer", state: dict[int, Any], parameters: "list[torch.Tensor]") -> None:
    """Undo torch's casting of states to the parameter's type, which would lose digits of float32 averages."""
    import torch

    for number, saved in state.items():
        if not isinstance(saved, dict):
            continue
        now = optimizer.state[parameters[number]]
        for name, value in saved.items():
            if torch.is_tensor(value) and torch.is_tensor(now.get(name)) and now[name].dtype != value.dtype:
                now[name] = value.to(now[name].device)


def _parameters(optimizer: "torch.optim.Optimizer") -> "list[torch.Tensor]":
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _encode(value: Any, path: str, tensors: "dict[str, torch.Tensor]") -> Any:
    import torch

    if torch.is_tensor(value):
        tensors[path] = value.detach()
        return {"tensor": path}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        if not all(isinstance(key, (int, str)) for key in value):
            raise UserError(f"{path}: a checkpoint holds no dict with other keys than text and whole numbers")
        return {"dict": [[key, _encode(item, f"{path}.{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        items = [_encode(item, f"{path}.{number}", tensors) for number, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    raise UserError(f"{path}: a checkpoint cannot hold a {type(value).__name__}")


def _decode(value: Any, tensors: "Mapping[str, torch.Tensor]") -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content].clone()  # the file that it is mapped from may be deleted
    if kind == "dict":
        return {key: _decode(item, tensors) for key, item in content}
    items = [_decode(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items
