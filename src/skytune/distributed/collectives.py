"""Processes that wait for each other while some do what may take long: reading or writing a store, waiting for a lease.
In one collective operation they would wait no longer than the process group's timeout.

What goes from one process to another is tensors, or JSON as bytes in them: torch's and Accelerate's operations on
objects unpickle what a peer sends, which would let anybody who reaches the process group run code.
"""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch

from ..common.background import Late, Pending
from ..common.json import load_json

if TYPE_CHECKING:
    from .context import DistContext

T = TypeVar("T")

EVERY_SECONDS = 2.0
"""How often they say that they are still at it."""


def main_does(world: "DistContext", function: Callable[[], T]) -> T:
    """Call `function` on rank 0 and return its result on every process (collective): what JSON makes of it.

    Raises:
        whatever `function` raises, on rank 0; the others lose their peer.
    """
    if world.size == 1:
        return function()
    work = Pending(function) if world.main else None
    while True:
        found = _found(work) if work is not None else []
        data = _from_main(world, json.dumps(found).encode())
        if answer := load_json(data, list):
            return found[0] if found else answer[0]


def all_do(world: "DistContext", function: Callable[[], T]) -> T:
    """Call `function` on every process, return once it is done on all (collective).

    Raises:
        whatever `function` raises, on the process where it does; the others lose their peer.
    """
    if world.size == 1:
        return function()
    work = Pending(function)
    while True:
        found = _found(work)
        done = torch.tensor(len(found), device=world.device)
        torch.distributed.all_reduce(done, torch.distributed.ReduceOp.MIN)
        if done:
            return found[0]


def gather_bytes(world: "DistContext", data: bytes) -> list[bytes]:
    """Return the bytes of every process, in the order of their ranks, on every process (collective)."""
    if world.size == 1:
        return [data]
    sizes = [torch.zeros((), dtype=torch.int64, device=world.device) for _ in range(world.size)]
    torch.distributed.all_gather(sizes, torch.tensor(len(data), device=world.device))
    longest = max(1, *map(int, sizes))
    blocks = [torch.empty(longest, dtype=torch.uint8, device=world.device) for _ in sizes]
    torch.distributed.all_gather(blocks, _tensor(world, data.ljust(longest, b"\0")))
    return [_bytes(block)[:size] for block, size in zip(blocks, sizes, strict=True)]


def _found(work: Pending[T]) -> list[T]:
    """Return what it returned in a list, which is empty where it has not yet; raise what it raised."""
    try:
        return [work.wait(seconds=EVERY_SECONDS)]
    except Late:
        return []


def _from_main(world: "DistContext", data: bytes) -> bytes:
    """Return rank 0's bytes on every process."""
    size = torch.tensor(len(data), device=world.device)
    torch.distributed.broadcast(size, 0)
    block = _tensor(world, data if world.main else bytes(int(size)))
    torch.distributed.broadcast(block, 0)
    return _bytes(block)


def _tensor(world: "DistContext", data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(world.device)


def _bytes(block: torch.Tensor) -> bytes:
    return block.cpu().numpy().tobytes()
