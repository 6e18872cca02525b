"""How much arithmetic training does, counted from the model, and what share of the device's peak that is (MFU).

A matrix of P numbers costs 2 P floating-point operations a token forward and 4 P backward, so 6 P (Kaplan et al. 2020,
arXiv:2001.08361, section 2.1). Attention adds, for a row of n tokens, 4 n^2 d forward in every layer (two products of
n x n x d) and twice that backward, so 12 n^2 d (Chowdhery et al. 2022, arXiv:2204.02311, appendix B, counts the same);
half of it where a token sees only those before it. Padding is not work, nor is what activation checkpointing computes
a second time: MFU is about useful arithmetic.
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..config import Precision
from ..models import has_adapter
from ..models.quantized import count_numbers
from .strategy.blocks import find_blocks


@dataclass(frozen=True)
class Work:
    """What one row of n tokens costs, forward and backward: `token * n + square * n**2 + row`."""

    token: float
    """FLOPs a token: the matrices of the blocks."""

    square: float
    """FLOPs a pair of tokens of one row: attention."""

    row: float
    """FLOPs a row: pooler and classifier, which see one vector of it."""

    def of(self, lengths: np.ndarray) -> float:
        """Return the FLOPs of rows with so many tokens (padding not counted)."""
        n = np.asarray(lengths, dtype=np.float64)
        return float(self.token * n.sum() + self.square * (n * n).sum() + self.row * len(n))


def work_of(model: torch.nn.Module) -> Work | None:
    """Count a transformer's work; None where it cannot be read from its configuration.

    Call it before the model is wrapped or cut up.
    """
    config, blocks = getattr(model, "config", None), find_blocks(model)
    width = getattr(config, "hidden_size", None) or getattr(config, "d_model", None)
    if config is None or width is None or not blocks:
        return None
    inside = {id(m) for block in blocks for m in block.modules()}
    embeddings = {id(p) for m in model.modules() if isinstance(m, torch.nn.Embedding) for p in m.parameters()}
    token, row, adapted = 0.0, 0.0, has_adapter(model)
    for module in model.modules():
        own = [p for p in module.parameters(recurse=False) if p.ndim == 2 and id(p) not in embeddings]
        # The weights that an adapter leaves as they are get no gradient: 2 of the 6 are not computed.
        count = sum(count_numbers(p) * (1.0 if p.requires_grad or not adapted else 2 / 3) for p in own)
        if id(module) in inside:
            token += count
        else:
            row += count
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if isinstance(head, torch.nn.Linear):  # a language model's, which sees every token, tied to the embedding or not
        count = head.weight.numel() * (1.0 if head.weight.requires_grad or not adapted else 2 / 3)
        token += count
        row -= 0.0 if id(head.weight) in embeddings else count
    heads = getattr(config, "num_attention_heads", None)
    size = getattr(config, "head_dim", None)
    inner = heads * size if heads and size else width
    # A decoder of an encoder-decoder attends twice: to itself, and to the encoder's output.
    encoder_decoder = bool(getattr(config, "is_encoder_decoder", False))
    causal = not encoder_decoder and _is_causal(model, config)
    decoders = sum(hasattr(block, "encoder_attn") or hasattr(block, "encoder_attention") for block in blocks)
    layers = (len(blocks) - decoders) + (1.5 * decoders if encoder_decoder else decoders)
    return Work(6.0 * token, 12.0 * layers * inner * (0.5 if causal else 1.0), 6.0 * row)


def _is_causal(model: torch.nn.Module, config: Any) -> bool:
    if getattr(config, "is_decoder", False):
        return True
    return any(getattr(module, "is_causal", False) is True for module in model.modules())


PEAKS: list[tuple[str, dict[str, float]]] = [
    ("GB200", {"bf16": 2500e12, "tf32": 1250e12, "fp8": 5000e12, "fp32": 80e12}),
    ("B200", {"bf16": 2250e12, "tf32": 1125e12, "fp8": 4500e12, "fp32": 75e12}),
    ("H100 PCIe", {"bf16": 756e12, "tf32": 378e12, "fp8": 1513e12, "fp32": 51e12}),
    ("H100 NVL", {"bf16": 835e12, "tf32": 417e12, "fp8": 1671e12, "fp32": 60e12}),
    ("H200 NVL", {"bf16": 835e12, "tf32": 417e12, "fp8": 1671e12, "fp32": 60e12}),
    ("H100", {"bf16": 989.4e12, "tf32": 494.7e12, "fp8": 1978.9e12, "fp32": 66.9e12}),
    ("H200", {"bf16": 989.4e12, "tf32": 494.7e12, "fp8": 1978.9e12, "fp32": 66.9e12}),
    ("A100", {"bf16": 312e12, "tf32": 156e12, "fp32": 19.5e12}),
    ("L40S", {"bf16": 362e12, "tf32": 183e12, "fp8": 733e12, "fp32": 91.6e12}),
    ("L4", {"bf16": 121e12, "tf32": 60e12, "fp8": 242e12, "fp32": 30.3e12}),
    ("A10G", {"bf16": 70e12, "tf32": 35e12, "fp32": 31.2e12}),
    ("T4", {"fp16": 65e12, "fp32": 8.1e12}),
    ("V100", {"fp16": 125e12, "fp32": 15.7e12}),
]
"""Dense peaks in FLOP/s by a part of the device's name, the most particular first; fp16 is as fast as bf16.

Source: NVIDIA's data sheets (Blackwell, H100, H200, A100, L40S, L4, T4, V100; half of the figures that they give "with
sparsity") and, for the A10G, AWS's page on G5 instances."""


def peak(device: str, precision: Precision) -> float | None:
    """Return a device's dense peak in FLOP/s in a precision; None where it is not known (every CPU)."""
    for name, peaks in PEAKS:
        if re.search(rf"\b{re.escape(name)}\b", device):
            wanted = precision.value
            return peaks.get(wanted) or (peaks.get("bf16") if wanted == "fp16" else None)
    return None


def utilization(flops: float, seconds: float, devices: int, of: float | None) -> float | None:
    """Return the share of the devices' peak (MFU); None where either is unknown."""
    if not flops or of is None or seconds <= 0:
        return None
    return flops / seconds / devices / of
