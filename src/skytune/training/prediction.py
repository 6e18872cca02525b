"""What a task collects of every row of a split, each row once, on any number of processes.

Batches are cut from the whole split (sorted by length) before they are dealt out to the processes, so a row is computed
in the same batch, with the same padding, however many processes there are, and no row is there twice to be taken out.
Where memory runs out, a batch is computed in parts, with the padding of the whole.

On a CPU what is computed of a row is the row's own, to the bit, whichever rows share its batch, as long as float32 is
computed by torch's own kernels: it is padded to what its own length asks for, as attention adds up in another order at
another width, and matrices are multiplied with `FEWEST` rows at least, as fewer take other kernels.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from ..config import UserError
from ..data.batches import Ragged, TokenTable
from ..distributed.collectives import gather_bytes
from ..distributed.context import DistContext
from .compiling import WIDTH
from .oom import EvalBatchSize, half, ran_out, release

Autocast = Callable[[], AbstractContextManager[None]]
Collect = Callable[[Any, Mapping[str, torch.Tensor]], np.ndarray | list[np.ndarray]]
"""What is kept of a batch, out of the model's output and the batch; see `skytune.tasks.Task`."""


FEWEST = 12
"""Rows from which on matrices are multiplied in one order (MKL with AVX2 and AVX-512, 1 to 8 threads); with fewer, some
threads get less than four, which are added up otherwise."""


class _EnoughRows(TorchFunctionMode):
    """Fills matrices of fewer rows up before they are multiplied with weights."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.nn.functional.linear or len(args) < 2:
            return func(*args, **(kwargs or {}))
        rows = args[0].reshape(-1, args[0].shape[-1])
        lacking = FEWEST - len(rows)
        if lacking <= 0 or not len(rows):
            return func(*args, **(kwargs or {}))
        filled = torch.nn.functional.pad(rows, (0, 0, 0, lacking))
        return func(filled, *args[1:], **(kwargs or {}))[: len(rows)].reshape(*args[0].shape[:-1], -1)


def eval_batches(
    lengths: np.ndarray, batch_size: int, limit: int | None, multiple: int | None = None
) -> list[np.ndarray]:
    """Return the row numbers of every evaluation batch, longest rows first (so a lack of memory shows at once).

    With `limit` the first `limit * batch_size` rows of the split are used, not its longest ones. With `multiple` all
    rows of a batch have the same length once that is rounded up to it.
    """
    count = len(lengths) if limit is None else min(len(lengths), limit * batch_size)
    order = np.argsort(-np.asarray(lengths[:count]), kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(-(lengths[order] // -multiple))) + 1) if multiple else [order]
    return [group[start : start + batch_size] for group in groups for start in range(0, len(group), batch_size)]


@torch.no_grad()
def predict(
    model: torch.nn.Module,
    table: TokenTable,
    world: DistContext,
    collect: Collect,
    *,
    batch_size: int,
    limit: int | None = None,
    multiple: int = 8,
    at_once: EvalBatchSize | None = None,
    lockstep: bool = False,
    autocast: Autocast = nullcontext,
) -> tuple[np.ndarray, Ragged]:
    """Return (rows int64 [n] ascending, what was collected of each) on every process.

    Collective: all processes must call it. `model` is the strategy's module; it is left in the mode that it was in.

    Args:
        collect: what is kept.
        at_once: how many rows of a batch fit into memory; found out, and remembered there, where it is less than all.
        autocast: the context of every forward pass: the strategy's precision.
        lockstep: whether the model's forward needs all processes: none may then call it more often than its peers.

    Raises:
        UserError: the model returns something else than it should, or memory ran out for good.
    """
    at_once = at_once or EvalBatchSize(batch_size)
    if training := any(module.training for module in model.modules()):
        model.eval()
    if exact := world.device.type == "cpu":
        multiple = max(multiple, WIDTH)
    borders = 1 if table.one_length else multiple if exact else None
    batches = eval_batches(table.lengths, batch_size, limit, borders)
    rows: list[np.ndarray] = []
    collected: list[Ragged] = []
    # Every process makes the same number of calls (if memory lasts): a sharded model gathers its weights in each.
    numbers = range(world.rank, -(-len(batches) // world.size) * world.size, world.size)
    own = [batches[min(number, len(batches) - 1)] for number in numbers]
    for number, batch, tensors in zip(numbers, own, _laid_out(table, own, multiple, exact), strict=True):
        found = _collected(model, tensors, len(batch), world.device, collect, at_once, lockstep, autocast)
        if number < len(batches):
            rows.append(batch)
            collected.append(found)
    if training:
        model.train()
    all_rows, everything = gather(rows, Ragged.joined(collected), world)
    order = np.argsort(all_rows, kind="stable")
    return all_rows[order], everything.take(order)


def _laid_out(
    table: TokenTable, batches: list[np.ndarray], multiple: int, exact: bool
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the tensors of batches; where images are decoded for them, of the next one meanwhile."""
    if table.images is None or not batches:
        yield from (table.batch(batch, multiple, own_width=exact) for batch in batches)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        coming = pool.submit(table.batch, batches[0], multiple)
        for batch in batches[1:]:
            tensors, coming = coming.result(), pool.submit(table.batch, batch, multiple)
            yield tensors
        yield coming.result()


def _collected(
    model: torch.nn.Module,
    tensors: dict[str, torch.Tensor],
    count: int,
    device: torch.device,
    collect: Collect,
    at_once: EvalBatchSize,
    lockstep: bool,
    autocast: Autocast,
) -> Ragged:
    """Return what is kept of one batch, computed in as many parts as memory asks for."""
    parts: list[Ragged] = []
    done = 0
    while done < count:
        rows = min(at_once.rows, count - done)
        cut = {name: tensor[done : done + rows] for name, tensor in tensors.items()}
        part = _attempt(model, cut, device, collect, autocast)
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
        at_once.shrink(rows, width, device)
    return Ragged.joined(parts)


def _attempt(
    model: torch.nn.Module,
    tensors: dict[str, torch.Tensor],
    device: torch.device,
    collect: Collect,
    autocast: Autocast,
) -> Ragged | None:
    """Return what is kept of some rows, None where memory ran out."""
    try:
        here = {name: tensor.to(device) for name, tensor in tensors.items()}
        few = device.type == "cpu" and len(next(iter(here.values()))) < FEWEST
        compiled = getattr(model, "_compiled_call_impl", None) is not None
        with autocast(), _EnoughRows() if few and not compiled else nullcontext():
            output = model(**{name: tensor for name, tensor in here.items() if name != "labels"})
        return Ragged.of(collect(output, here))
    except Exception as error:
        if not ran_out(error):
            raise
    return None


def gather(rows: list[np.ndarray], collected: Ragged, world: DistContext) -> tuple[np.ndarray, Ragged]:
    """Join what all processes computed; a process may have nothing."""

    def joined(part: np.ndarray, kind: type[np.generic]) -> np.ndarray:
        return np.frombuffer(b"".join(gather_bytes(world, part.astype(kind, copy=False).tobytes())), kind)

    lengths = joined(np.diff(collected.offsets), np.int64)
    all_rows = joined(np.concatenate([np.zeros(0, dtype=np.int64), *rows]), np.int64)
    return all_rows, Ragged.of_lengths(joined(collected.values, np.float32), lengths)
