"""Whether a row's logits are the same alone and padded, tried out on a few rows before all else.

They are not with a model that has no mask (FNet), whose convolutions look beyond a row's end (ConvBERT), or that counts
positions from the side that is padded. Then a batch may hold rows of one length only; nothing else would be right, and
scores would depend on `eval.batch_size`.
"""

import copy
import logging

import numpy as np
import torch

from ..common.text import first_line
from ..config import UserError
from ..data.batches import Ragged, TokenTable
from ..models.build import seeded
from .prediction import Collect

log = logging.getLogger(__name__)

WITHIN = 1e-5
"""Largest difference, as a share of the largest logit, that passes for rounding. What float32 shows beyond it is looked
at in float64."""

WORK = 2e11
"""Weights times tokens of the longest row that is tried: a second or so on a CPU."""


def check_padding(model: torch.nn.Module, tables: dict[str, TokenTable], collect: Collect) -> str:
    """Return why all rows of a batch must have one length, as a sentence; empty if they need not.

    Args:
        model: not wrapped yet, on the CPU.
        tables: of which rows are tried.
        collect: what is looked at of each row.

    Raises:
        UserError: rows cannot be computed together, or the logits of a row depend on others of the same length.
    """
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), seeded(0):
            reasons = [_check(model, name, table, collect) for name, table in tables.items()]
    finally:
        model.train(training)
    return next(filter(None, reasons), "")


def _check(model: torch.nn.Module, split: str, table: TokenTable, collect: Collect) -> str:
    rows = _chosen(model, table)
    if len(rows) < 2:
        return ""

    def values(model: torch.nn.Module, rows: np.ndarray) -> torch.Tensor:
        batch = table.batch(rows)
        output = model(**{name: tensor for name, tensor in batch.items() if name != "labels"})
        return torch.from_numpy(Ragged.of(collect(output, batch)).values).double()

    def apart(model: torch.nn.Module) -> torch.Tensor:
        return torch.cat([values(model, rows[number : number + 1]) for number in range(len(rows))])

    alone = apart(model)
    try:
        padded = values(model, rows)
    except (ValueError, IndexError, RuntimeError) as error:
        shown = ", ".join(str(row + 1) for row in rows)
        raise UserError(
            f"{type(model).__name__} cannot compute rows {shown} of '{split}' together: "
            f"{first_line(error).rstrip('.')}; data.special_tokens=text may help, or the model's own tokenizer "
            "(model.tokenizer=null)"
        ) from error
    if _close(alone, padded):
        return ""
    try:
        exact = copy.deepcopy(model).double()
        first, both = (values(exact, rows[[0] * times]) for times in (1, 2))
        alone, padded = apart(exact), values(exact, rows)
    except (RuntimeError, TypeError, NotImplementedError):  # a model that has its own ideas of number formats
        first, both = (values(model, rows[[0] * times]) for times in (1, 2))
    if not _close(first.repeat(2), both, 1e-4):
        raise UserError(
            f"{type(model).__name__}: the logits of a row change with the other rows of its batch (row {rows[0] + 1} "
            f"of '{split}', alone and twice), so no prediction is a row's own; look at the model's forward"
        )
    if _close(alone, padded):
        return ""
    without = "has no attention mask" if "attention_mask" not in table.columns else "looks at padding"
    return f"{type(model).__name__} {without}: the logits of a row are not the same alone and padded"


def _chosen(model: torch.nn.Module, table: TokenTable) -> np.ndarray:
    """Return the rows to try: of different lengths, and those with the fewest and the most end tokens."""
    if not isinstance(table.columns.get("input_ids"), Ragged):
        return np.zeros(0, dtype=np.int64)
    longest = np.clip(WORK / max(1, sum(p.numel() for p in model.parameters())), 16, 512)
    order = np.argsort(table.lengths, kind="stable")
    order = order[: max(1, np.searchsorted(table.lengths[order], longest, "right"))]
    chosen = [order[0], order[len(order) // 2], order[-1]]
    end = getattr(getattr(model, "config", None), "eos_token_id", None)
    if isinstance(end, int):
        ends = table.count(end)
        chosen += [ends.argmin(), ends.argmax()] if ends.min() < ends.max() else []
    return np.unique(chosen)


def _close(found: torch.Tensor, wanted: torch.Tensor, within: float = WITHIN) -> bool:
    return bool((found - wanted).abs().max() <= within * wanted.abs().max())
