"""torch.compile, kept from compiling for ever: rows have many lengths, and each new shape may mean minutes of work.

Without `compile.shapes`, lengths and batch sizes are compiled as variables: one program for all of them (torch still
makes another for a batch of one row, and one for evaluation). With it, rows are padded to so few lengths that each gets
kernels of its own, which are faster, and which CUDA graphs need.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from ..config import CompileMode, RunConfig
from ..data.order import SampleOrder

MODES = {CompileMode.reduce_overhead: "reduce-overhead", CompileMode.max_autotune: "max-autotune"}

WIDTH = 8
"""What padded lengths are multiples of on a GPU, and where kernels are compiled for them."""

SHAPES = 8
"""Lengths where a mode needs fixed ones and `compile.shapes` is empty."""


WORTH_COMPILING, WORTH_TOKENS = 500, 3_000_000
"""Steps of a run, or tokens in all of them, from which on its blocks are compiled. That takes half a minute where
nothing is cached; 0.1 s a step of 16,384 tokens is what it saved a model of 135M weights (H200, 2026-11-29)."""


def is_worth_it(steps: int, order: SampleOrder) -> bool:
    """Whether a run on a GPU is long enough for the time that it takes to compile its blocks; of a resumed run, the
    whole one."""
    return steps >= WORTH_COMPILING or steps * order.global_size * float(order.lengths.mean()) >= WORTH_TOKENS


@contextmanager
def compiled_as_eager() -> Iterator[None]:
    """Have what is compiled within draw the random numbers that torch draws, and leave the gradient of an embedding
    (T5's bias of positions) to torch, which adds it up in a fixed order: the compiler's own code does not."""
    import torch._dynamo
    import torch._inductor.config
    from torch._inductor.decomposition import decompositions

    own = torch.ops.aten.embedding_dense_backward.default
    kept = decompositions.pop(own, None)
    try:
        with torch._inductor.config.patch(fallback_random=True), torch._dynamo.config.patch(recompile_limit=64):
            yield
    finally:
        if kept is not None:
            decompositions[own] = kept


def shapes(config: RunConfig) -> int | None:
    """Return how many padded lengths there may be; None for any."""
    return config.compile.shapes or (SHAPES if config.compile.mode in MODES else None)


def bounded(config: RunConfig, longest: int, device: str) -> RunConfig:
    """Return the configuration with `batch.pad_multiple` set: padded lengths that suit the device, and few enough.

    Args:
        longest: tokens of the longest row of all splits.
        device: torch's name of the kind of device.
    """
    count = shapes(config)
    plain = device == "cpu" and config.compile.mode is CompileMode.off
    multiple = config.batch.pad_multiple or (1 if plain else WIDTH)
    if count is None:
        return replace(config, batch=replace(config.batch, pad_multiple=multiple))
    wide = -(-longest // count)
    return replace(config, batch=replace(config.batch, pad_multiple=-(-wide // multiple) * multiple))


def compile_in_place(module: torch.nn.Module, config: RunConfig) -> None:
    """Have torch.compile take over a module's calls; the module, and the names of its weights, stay what they are."""
    import torch._dynamo

    count = shapes(config)
    if count is not None:
        # Every length with the usual micro-batch, the last one of a step and of an epoch, and both kinds of evaluation,
        # with and without gradients; beyond the limit torch goes back to eager without a word that anybody would see.
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 16, 8 * count)
    module.compile(dynamic=count is None, mode=MODES.get(config.compile.mode))
