"""Logits for every row of a split, each row once, on any number of processes.

Batches are cut from the whole split (sorted by length) before they are dealt out to the processes, so a row is computed
in the same batch, with the same padding, however many processes there are, and no row is there twice to be taken out.
Where memory runs out, a batch is computed in parts, with the padding of the whole.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from ..config import UserError
from ..data.batches import TokenTable
from ..distributed.collectives import gather_bytes
from ..distributed.context import World
from .oom import AtOnce, half, ran_out, release

Autocast = Callable[[], AbstractContextManager[None]]


def eval_batches(lengths: np.ndarray, batch_size: int, limit: int | None, one_length: bool = False) -> list[np.ndarray]:
    """Return the row numbers of every evaluation batch, longest rows first (so a lack of memory shows at once).

    With `limit` the first `limit * batch_size` rows of the split are used, not its longest ones. With `one_length` all
    rows of a batch have the same.
    """
    count = len(lengths) if limit is None else min(len(lengths), limit * batch_size)
    order = np.argsort(-np.asarray(lengths[:count]), kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1) if one_length else [order]
    return [group[start : start + batch_size] for group in groups for start in range(0, len(group), batch_size)]


@torch.no_grad()
def predict(
    model: torch.nn.Module,
    table: TokenTable,
    world: World,
    *,
    batch_size: int,
    limit: int | None = None,
    multiple: int = 8,
    at_once: AtOnce | None = None,
    lockstep: bool = False,
    autocast: Autocast = nullcontext,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows int64 [n] ascending, logits float32 [n, classes]) on every process.

    Collective: all processes must call it. `model` is the strategy's module; it is left in training mode.

    Args:
        at_once: how many rows of a batch fit into memory; found out, and remembered there, where it is less than all.
        autocast: the context of every forward pass: the strategy's precision.
        lockstep: whether the model's forward needs all processes: none may then call it more often than its peers.

    Raises:
        UserError: the model returns no logits of shape [rows, classes], or memory ran out for good.
    """
    at_once = at_once or AtOnce(batch_size)
    model.eval()
    batches = eval_batches(table.lengths, batch_size, limit, table.one_length)
    rows: list[np.ndarray] = []
    logits: list[np.ndarray] = []
    # Every process makes the same number of calls (if memory lasts): a sharded model gathers its weights in each.
    for start in range(0, len(batches), world.size):
        mine = start + world.rank
        batch = batches[mine] if mine < len(batches) else batches[-1]
        tensors = {name: tensor for name, tensor in table.batch(batch, multiple).items() if name != "labels"}
        found = _logits(model, tensors, len(batch), world.device, at_once, lockstep, autocast)
        if mine < len(batches):
            rows.append(batch)
            logits.append(found)
    model.train()
    all_rows, all_logits = _gather(rows, logits, world)
    order = np.argsort(all_rows, kind="stable")
    return all_rows[order], all_logits[order]


def _logits(
    model: torch.nn.Module,
    tensors: dict[str, torch.Tensor],
    count: int,
    device: torch.device,
    at_once: AtOnce,
    lockstep: bool,
    autocast: Autocast,
) -> np.ndarray:
    """Return the logits of one batch, float32 [count, classes], computed in as many parts as memory asks for."""
    parts: list[np.ndarray] = []
    done = 0
    while done < count:
        rows = min(at_once.rows, count - done)
        cut = {name: tensor[done : done + rows] for name, tensor in tensors.items()}
        part = _attempt(model, cut, rows, device, autocast)
        if part is not None:
            parts.append(part)
            done += rows
            continue
        width = max((tensor.shape[1] for tensor in tensors.values() if tensor.ndim > 1), default=1)
        if lockstep and rows > 1:
            raise UserError(
                f"out of memory: {rows} rows of {width} tokens do not fit into the memory of {device} in an "
                f"evaluation; eval.batch_size={half(rows)} may"
            )
        release(device)
        at_once.halve(rows, width, device)
    return np.concatenate(parts)


def _attempt(
    model: torch.nn.Module, tensors: dict[str, torch.Tensor], rows: int, device: torch.device, autocast: Autocast
) -> np.ndarray | None:
    """Return the logits of some rows, None where memory ran out."""
    try:
        with autocast():
            found = logits_of(model(**{name: tensor.to(device) for name, tensor in tensors.items()}))
        if found.ndim != 2 or len(found) != rows:
            raise UserError(f"the model returned logits of shape {list(found.shape)} for {rows} rows")
        return found.float().cpu().numpy()
    except Exception as error:
        if not ran_out(error):
            raise
    return None


def logits_of(output: object) -> torch.Tensor:
    """Return the logits of a model's output (an object, a dict or a tuple that ends with them).

    Raises:
        UserError: there are none.
    """
    found = _part(output, "logits", -1)
    if not isinstance(found, torch.Tensor):
        kind = type(output).__name__
        raise UserError(f"the model's forward must return logits (with labels: loss and logits), not {kind}")
    return found


def loss_of(output: object) -> torch.Tensor:
    """Return the loss of a model's output (an object, a dict or a tuple that starts with it).

    Raises:
        UserError: there is none.
    """
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


def _gather(rows: list[np.ndarray], logits: list[np.ndarray], world: World) -> tuple[np.ndarray, np.ndarray]:
    """Join what all processes computed; a process may have nothing."""

    def joined(parts: list[np.ndarray], kind: type[np.generic]) -> np.ndarray:
        own = b"".join(part.astype(kind, copy=False).tobytes() for part in parts)
        return np.frombuffer(b"".join(gather_bytes(world, own)), kind)

    all_rows = joined(rows, np.int64)
    return all_rows, joined(logits, np.float32).reshape(len(all_rows), -1)
