"""Rows without their padding inside a model's blocks: these get the tokens of all rows as one row, none of which sees
another, and everything around them (embeddings, poolers, heads) sees padded rows as ever.

It works for models of transformers whose attention is taken from `AttentionInterface`, on a GPU in half precision; so
Zeng et al. 2022 ("Boosting distributed training performance of the unpadded BERT model", arXiv:2208.08124) have it.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from . import parity
from .outputs import logits_of
from .packed_attention import attention, packed

SAME = 1e-3
"""Share of the largest logit by which one may change that has nothing to do with what was changed."""

KEYS = ("token_places", "token_numbers", "borders")
"""What `places` adds to a batch."""


def places(lengths: np.ndarray, width: int, tokens: int, left: bool = False) -> dict[str, torch.Tensor]:
    """Return where the tokens of padded rows lie when they are one row.

    `token_places`, int64 [tokens]: the place of each in the flattened padded rows, -1 where there is none.
    `token_numbers`, int64 [rows * width]: the other way round, -1 for padding. `borders`, int32: where sequences begin
    and end; what fills the row up is cut into some no longer than `width`; their number depends on rows, width and
    tokens alone.

    Args:
        lengths: int [rows], tokens of each.
        width: to which rows are padded; on the left with `left`.
        tokens: places in the one row, at least `lengths.sum()`, and not `width`, by which it is told from a row.
    """
    columns, total = np.arange(width), int(lengths.sum())
    real = (columns >= width - lengths[:, None] if left else columns < lengths[:, None]).ravel()
    numbers = np.where(real, np.cumsum(real) - 1, -1)
    found = np.pad(np.flatnonzero(real), (0, tokens - total), constant_values=-1)
    fill = np.minimum(total + width * np.arange(-(-tokens // width) + 1), tokens)
    borders = np.concatenate([np.cumsum(lengths) - lengths, fill]).astype(np.int32)
    return dict(zip(KEYS, map(torch.from_numpy, (found, numbers, borders)), strict=True))


class Reordered(torch.autograd.Function):
    """Entries of a tensor in another order; 0 where the number is -1. The gradient goes back the same way, gathered and
    not added up, so that nothing depends on the order in which a GPU does it."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, there: torch.Tensor, back: torch.Tensor) -> torch.Tensor:
        """Return [len(there), ...] for values [len(back), ...]."""
        ctx.save_for_backward(there, back)
        return _gather(values, there)

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Return the gradient of the values."""
        _, back = ctx.saved_tensors
        return _gather(slope, back), None, None


def _gather(values: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    none = (there < 0).view(-1, *[1] * (values.ndim - 1))
    return values.index_select(0, there.clamp(min=0)).masked_fill(none, 0)


@dataclass(eq=False)
class Unpadding:
    """One forward pass of rows without padding."""

    tensors: Mapping[str, torch.Tensor]
    """Of `places`, on the device."""
    rows: int
    width: int
    known: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """What was unpadded, or came out of a block, by identity: (it, its unpadded form)."""

    def unpad(self, value: Any) -> Any:
        """Return an argument of a block without padding, where it is padded as rows are."""
        if isinstance(value, tuple):
            return tuple(map(self.unpad, value))
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self.known:
            found = value
            if value.ndim > 1 and value.shape[0] in (1, self.rows) and value.shape[1] == self.width:
                whole = value.expand(self.rows, *value.shape[1:]).flatten(0, 1)
                there, back, _ = (self.tensors[key] for key in KEYS)
                found = Reordered.apply(whole, there, back)[None]
            self.known[id(value)] = value, found
        return self.known[id(value)][1]

    def pad(self, value: Any) -> Any:
        """Return what the last block gave, padded again, with 0."""
        if isinstance(value, tuple):
            return (self.pad(value[0]), *value[1:])
        there, back, _ = (self.tensors[key] for key in KEYS)
        padded = Reordered.apply(value[0], back, there)
        return padded.view(self.rows, self.width, *value.shape[2:])

    def call(self, inner: Any, last: bool, *args: Any, **kwargs: Any) -> Any:
        """Call a block."""
        args, kwargs = self.unpad(args), {name: self.unpad(value) for name, value in kwargs.items()}
        borders = {"cu_seq_lens_q": self.tensors["borders"], "max_length_q": self.width}
        found = inner(*args, **kwargs, **borders)
        first = found[0] if isinstance(found, tuple) else found
        self.known[id(first)] = first, first
        return self.pad(found) if last else found


@contextlib.contextmanager
def unpadded(
    model: Any, blocks: list[torch.nn.Module], batch: dict[str, torch.Tensor], attend: Any = attention
) -> Iterator[None]:
    """Let a model's blocks compute without padding while the context lasts; `places`' tensors are taken out of the
    batch. Nothing is done where the batch has none."""
    if KEYS[0] not in batch:
        yield
        return
    rows, width = batch["input_ids"].shape
    work, before = Unpadding({key: batch.pop(key) for key in KEYS}, rows, width), {}
    for block in blocks:
        before[block] = vars(block).get("_compiled_call_impl")
        inner = before[block] or block._call_impl
        block._compiled_call_impl = partial(work.call, inner, is_last(model, block))
    try:
        with packed(model, attend):
            yield
    finally:
        for block, inner in before.items():
            block._compiled_call_impl = inner


def is_last(model: torch.nn.Module, block: torch.nn.Module) -> bool:
    """Whether a block is the last of its list."""
    lists = (module for module in model.modules() if isinstance(module, torch.nn.ModuleList) and len(module))
    return any(blocks[-1] is block for blocks in lists)


def difference(model: Any, blocks: list[torch.nn.Module], batch: dict[str, torch.Tensor], loss: Any) -> str:
    """Return in what a model without padding differs from itself, dropout apart, as the end of a sentence; empty if in
    nothing. Gradients are none, before and after.

    Args:
        batch: rows with `places`' tensors; not changed.
        loss: of a batch, a scalar.
    """
    calls: list[Any] = []
    elsewhere = f"{type(model).__name__} does not take its attention from transformers' AttentionInterface"

    def counted(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        calls.append(module)
        return attention(module, *args, **kwargs)

    names = [name for name, p in model.named_parameters() if p.requires_grad]
    learned = [p for p in model.parameters() if p.requires_grad]
    training, found = model.training, []
    model.eval()
    try:
        for way in ({key: value for key, value in batch.items() if key not in KEYS}, dict(batch)):
            with unpadded(model, blocks, way, counted):
                value = loss(way)
            found.append((value.detach().float(), torch.autograd.grad(value, learned, allow_unused=True)))
        mixed = _sees_other_rows(model, blocks, batch)
    except Exception as error:  # whatever a model makes of arguments that it does not know
        why = f"trying it failed with {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        return why if calls else elsewhere
    finally:
        model.train(training)
    if len(set(map(id, calls))) < len(blocks):
        return elsewhere
    (expected, slopes), (other, others) = found
    within = parity.WITHIN[torch.bfloat16]
    if not torch.isclose(other, expected, atol=within / 5, rtol=within / 5):
        return f"its loss is {float(other):.4f} without padding, {float(expected):.4f} with it"
    name, off = parity.worst_gradient(names, slopes, others)
    if off > within:
        return f"its gradient of {name} is {off:.0%} off without padding"
    return "a row's answer depends on other rows without padding" if mixed else ""


@torch.no_grad()
def _sees_other_rows(model: Any, blocks: list[torch.nn.Module], batch: dict[str, torch.Tensor]) -> bool:
    """Whether the answers to rows change with the tokens of their neighbours (the order of every second row's): so
    little that a loss or a gradient would not tell, as what a short convolution carries across a border is."""
    rows, width = batch["input_ids"].shape
    real = (batch[KEYS[1]] >= 0).view(rows, width)
    turned = batch["input_ids"].clone()
    told = getattr(model, "config", None)
    kept = 1 if getattr(told, "is_encoder_decoder", False) else 0  # heads of such look for the token that ends a text
    for row in range(0, rows, 2):
        places = real[row].nonzero()[:, 0]
        places = places[: len(places) - kept]
        turned[row, places] = turned[row, places.flip(0)]
    padded = {name: value for name, value in batch.items() if name not in (*KEYS, "labels")}

    def changed(places: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        answers = []
        for ids in (batch["input_ids"], turned):
            way = {**padded, **places, "input_ids": ids}
            with unpadded(model, blocks, way):
                answers.append(logits_of(model(**way))[1::2].float())
        return (answers[1] - answers[0]).abs().amax(), answers[0].abs().amax()

    if rows < 2:
        return False
    (found, most), (rounding, _) = changed({key: batch[key] for key in KEYS}), changed({})
    return bool(found > SAME * most + 2 * rounding)  # experts round otherwise with other rows, padded or not
