"""How well a language model foretells tokens: the mean over all that count, with its interval."""

import math

import numpy as np


def perplexity(sums: np.ndarray, counts: np.ndarray, z: float = 1.96) -> dict[str, float]:
    """Return `loss` (mean negative log-likelihood a token), `perplexity`, its 95% interval, and the `tokens` counted.

    The interval takes rows as the sample, not tokens, whose losses go together: it is that of a ratio of two sums over
    rows (Cochran 1977, "Sampling techniques", chapter 6), and NaN for a single row.

    Args:
        sums: [rows], summed negative log-likelihoods.
        counts: [rows], tokens that count.
    """
    sums, counts = np.asarray(sums, np.float64), np.asarray(counts, np.float64)
    total, rows = counts.sum(), len(counts)
    mean = float(sums.sum() / total)
    spread = float("nan")
    if rows > 1:
        off = sums - mean * counts
        spread = z * math.sqrt(float((off * off).sum()) * rows / (rows - 1)) / total
    return {
        "perplexity": _exp(mean),
        "loss": mean,
        "perplexity_low": _exp(mean - spread),
        "perplexity_high": _exp(mean + spread),
        "tokens": float(total),
    }


def _exp(value: float) -> float:
    return float("inf") if value > 700 else math.exp(value)
