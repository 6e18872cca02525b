"""How much arithmetic training needs, and how much a device can do: model FLOPs utilization (MFU) is their ratio.

Counted is what the model must do on real tokens, padding and recomputation not: 6 operations a token for every weight
of the layers' matrix products (2 forward, 4 backward; Kaplan et al. 2020, arXiv:2001.08361, section 2.1) and
12 x layers x width x n^2 for the attention of a sequence of n tokens (Chowdhery et al. 2022, arXiv:2204.02311,
appendix B). Embeddings and the head are left out: they are look-ups, and one row a sequence.
"""

from typing import Any

import numpy as np

PEAK_TFLOPS = {
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "A100": 312.0,
    "A10G": 70.0,
    "A10": 125.0,
    "L40S": 362.0,
    "L4": 121.0,
    "V100": 125.0,
    "T4": 65.0,
}
"""Dense 16-bit tensor-core rate in TFLOP/s by a part of the card's name (the first that fits): NVIDIA's datasheets; for
the A10G, which has none, AWS's figure for g5 instances."""


def layer_weights(config: Any) -> int | None:
    """Return the weights in the matrix products of a transformer's layers, None for a model that names no sizes."""
    width = getattr(config, "hidden_size", None) or getattr(config, "dim", None)
    layers = getattr(config, "num_hidden_layers", None) or getattr(config, "n_layers", None)
    inner = getattr(config, "intermediate_size", None) or getattr(config, "hidden_dim", None)
    if not (width and layers and inner):
        return None
    heads = getattr(config, "num_attention_heads", None) or getattr(config, "n_heads", 1)
    grouped = getattr(config, "num_key_value_heads", None) or heads
    head = getattr(config, "head_dim", None) or width // heads
    attention = 2 * width * head * heads + 2 * width * head * grouped
    gated = getattr(config, "hidden_act", "") == "silu"
    return int(layers * (attention + (3 if gated else 2) * width * inner))


def flops_per_row(config: Any, lengths: np.ndarray) -> np.ndarray | None:
    """Return the operations of one training step on every row, float64 [rows]; None where the sizes are unknown.

    Args:
        config: a transformers configuration.
        lengths: tokens of every row, padding not counted.
    """
    weights = layer_weights(config)
    if weights is None:
        return None
    width = getattr(config, "hidden_size", None) or config.dim
    layers = getattr(config, "num_hidden_layers", None) or config.n_layers
    tokens = np.asarray(lengths, dtype=np.float64)
    return 6.0 * weights * tokens + 12.0 * layers * width * tokens**2


def peak_flops(device: str) -> float | None:
    """Return a device's 16-bit rate in operations a second by its name, None for one that is not in the table."""
    for name, rate in PEAK_TFLOPS.items():
        if name in device:
            return rate * 1e12
    return None
