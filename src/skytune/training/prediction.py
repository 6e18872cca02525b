"""Logits for every row of a split, each row once, on any number of processes.

Batches are cut from the whole split (sorted by length) before they are dealt out to the processes, so a row is computed
in the same batch, with the same padding, however many processes there are, and no row is there twice to be taken out.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from ..config import UserError
from ..data.batches import TokenTable
from .devices import World


def eval_batches(lengths: np.ndarray, batch_size: int, limit: int | None) -> list[np.ndarray]:
    """Return the row numbers of every evaluation batch, longest rows first (so a lack of memory shows at once).

    With `limit` the first `limit * batch_size` rows of the split are used, not its longest ones.
    """
    count = len(lengths) if limit is None else min(len(lengths), limit * batch_size)
    order = np.argsort(-np.asarray(lengths[:count]), kind="stable")
    return [order[start : start + batch_size] for start in range(0, count, batch_size)]


@torch.no_grad()
def predict(
    model: torch.nn.Module,
    table: TokenTable,
    world: World,
    *,
    batch_size: int,
    limit: int | None = None,
    multiple: int = 8,
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows int64 [n] ascending, logits float32 [n, classes]) on every process.

    Collective: all processes must call it. `model` is the strategy's module; it is left in training mode.

    Args:
        autocast: the context of every forward pass: the strategy's precision.

    Raises:
        UserError: the model returns no logits of shape [rows, classes].
    """
    model.eval()
    batches = eval_batches(table.lengths, batch_size, limit)
    rows: list[np.ndarray] = []
    logits: list[np.ndarray] = []
    # Every process makes the same number of calls: a sharded model gathers its weights in each of them.
    for start in range(0, len(batches), world.size):
        mine = start + world.rank
        batch = batches[mine] if mine < len(batches) else batches[-1]
        tensors = {k: v.to(world.device) for k, v in table.batch(batch, multiple).items() if k != "labels"}
        with autocast():
            output = logits_of(model(**tensors))
        if output.ndim != 2 or len(output) != len(batch):
            raise UserError(f"the model returned logits of shape {list(output.shape)} for {len(batch)} rows")
        if mine < len(batches):
            rows.append(batch)
            logits.append(output.float().cpu().numpy())
    model.train()
    found = _gather(rows, logits, world)
    order = np.argsort(found[0], kind="stable")
    return found[0][order], found[1][order]


def logits_of(output: object) -> torch.Tensor:
    """Return the logits of a model's output (an object, a dict or a tuple that ends with them).

    Raises:
        UserError: there are none.
    """
    found = getattr(output, "logits", None)
    if found is None and isinstance(output, dict):
        found = output.get("logits")
    if found is None and isinstance(output, tuple):
        found = output[-1]
    if not isinstance(found, torch.Tensor):
        kind = type(output).__name__
        raise UserError(f"the model's forward must return logits (with labels: loss and logits), not {kind}")
    return found


def loss_of(output: object) -> torch.Tensor:
    """Return the loss of a model's output (an object, a dict or a tuple that starts with it).

    Raises:
        UserError: there is none.
    """
    found = getattr(output, "loss", None)
    if found is None and isinstance(output, dict):
        found = output.get("loss")
    if found is None and isinstance(output, tuple) and len(output) > 1:
        found = output[0]
    if not isinstance(found, torch.Tensor) or found.ndim != 0:
        raise UserError("the model's forward must return a scalar loss and logits when it is given labels")
    return found


def _gather(rows: list[np.ndarray], logits: list[np.ndarray], world: World) -> tuple[np.ndarray, np.ndarray]:
    """Join what all processes computed; a process may have nothing."""
    mine = (np.concatenate(rows), np.concatenate(logits)) if rows else None
    parts = [mine]
    if world.size > 1:
        from accelerate.utils import gather_object

        parts = gather_object([mine])
    present = [part for part in parts if part is not None]
    return np.concatenate([p[0] for p in present]), np.concatenate([p[1] for p in present])
