"""Attention over sequences that lie one after the other in one row, none of which sees another: torch's
`varlen_attn` (its own Flash Attention), through the interface that transformers' models take their attention from.

It needs a GPU and half precision. Elsewhere the same comes of a mask that transformers makes of the positions, which
takes memory and time of the whole row squared.
"""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch

NAME = "skytune_packed"
"""What transformers calls it."""

GROUPED: dict[str, bool] = {}
"""What torch's is told where heads share keys; nothing before 2.12, which does not ask."""

UNLIKE = ("softcap", "s_aux", "position_bias", "head_mask")
"""What some models ask of attention, and this does not do."""


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int = 0,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Return [1, tokens, heads, size] for a query of [1, heads, tokens, size]; `cu_seq_lens_q` are the borders. What
    comes after a token is hidden from it where the module says so (`is_causal`).

    Raises:
        NotImplementedError: the model asks for more than this does.
    """
    from torch.nn.attention.varlen import varlen_attn

    asked = [name for name in UNLIKE if more.get(name) is not None]
    if asked or cu_seq_lens_q is None:
        raise NotImplementedError(f"packed attention has no {(asked or ['rows of several sequences'])[0]}")
    kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else query.dtype
    q, k, v = (part.transpose(1, 2)[0].to(kind) for part in (query, key, value))
    causal = more.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    reach = -1 if sliding_window is None else sliding_window - 1
    window = (reach, 0 if causal else reach)
    grouped = GROUPED if q.shape[1] != k.shape[1] else {}
    ends, longest = cu_seq_lens_q, max_length_q
    if dropout:  # varlen_attn has none
        sides = {"window_size_left": window[0], "window_size_right": window[1]} if sliding_window else {}
        flash = torch.ops.aten._flash_attention_forward
        return flash(q, k, v, ends, ends, longest, longest, dropout, causal, False, scale=scaling, **sides)[0][
            None
        ], None
    found = varlen_attn(q, k, v, ends, ends, longest, longest, scale=scaling, window_size=window, **grouped)
    assert isinstance(found, torch.Tensor)
    return found[None], None


def has_kernel(device: torch.device) -> bool:
    """Whether rows of several sequences go through this, in the context of a forward pass, and not through a mask."""
    half = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") in (torch.bfloat16, torch.float16)
    return device.type == "cuda" and half


@contextlib.contextmanager
def packed(model: Any, attend: Any = attention) -> Iterator[None]:
    """Let a model's attention be this one, or one that calls it, while the context lasts."""
    from torch.nn.attention.varlen import varlen_attn
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    if "enable_gqa" in inspect.signature(varlen_attn).parameters:
        GROUPED["enable_gqa"] = True
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, lambda *_, **__: None)
    config = model.config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before
