"""Whether two models differ on the same rows, by more than chance: McNemar's test, and a bootstrap over the rows."""

from dataclasses import dataclass

import numpy as np

SAMPLES = 10_000
"""Of the bootstrap."""


@dataclass(frozen=True)
class Paired:
    """Two models on the same rows. Per row a number, more is better: 1 for right and 0 for wrong, or any other."""

    rows: int
    """How many rows both have."""

    means: tuple[float, float]
    """Of each model."""

    interval: tuple[float, float]
    """95 % interval of the difference, the second less the first (percentiles of a bootstrap over the rows)."""

    alone: tuple[int, int] | None
    """How many rows only the first, and only the second one has right; None where a row is not right or wrong."""

    p: float | None
    """Two-sided p-value of McNemar's exact test; None likewise."""

    @property
    def difference(self) -> float:
        """The second less the first."""
        return self.means[1] - self.means[0]


def paired(first: np.ndarray, second: np.ndarray, seed: int = 0) -> Paired:
    """Compare two models by a number of every row.

    McNemar's exact test asks whether the rows that only one of them has right fall to each like the tosses of a coin
    (McNemar 1947; the exact binomial form, which needs no least number of rows).

    Args:
        first: (rows,) of one model.
        second: (rows,) of the other, of the same rows in the same order.
        seed: of the bootstrap.
    """
    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    assert first.shape == second.shape and len(first), (first.shape, second.shape)
    means = float(first.mean()), float(second.mean())
    # Equal differences are one kind of row: how often each kind is drawn is multinomial.
    kinds, counts = np.unique(second - first, return_counts=True)
    random = np.random.default_rng(seed)
    if len(kinds) <= 1000:
        drawn = random.multinomial(len(first), counts / len(first), SAMPLES) @ kinds / len(first)
    else:
        differences = second - first
        drawn = np.array([random.choice(differences, len(first)).mean() for _ in range(SAMPLES // 10)])
    low, high = np.percentile(drawn, [2.5, 97.5])
    alone = p = None
    if np.isin(np.concatenate([first, second]), (0.0, 1.0)).all():
        from scipy.stats import binomtest

        alone = int((first > second).sum()), int((second > first).sum())
        p = float(binomtest(alone[1], sum(alone)).pvalue) if sum(alone) else 1.0
    return Paired(len(first), means, (float(low), float(high)), alone, p)


def matched(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions in two lists of keys of what stands in both, in the order of the first; what stands there
    several times is matched as often as both have it, in order."""
    import pandas as pd

    def numbered(keys: np.ndarray) -> pd.DataFrame:
        rows = pd.DataFrame({"key": keys, "row": np.arange(len(keys))})
        return rows.assign(count=rows.groupby("key").cumcount())  # the number of each among its equals

    found = numbered(first).merge(numbered(second), on=["key", "count"]).sort_values("row_x")
    return found["row_x"].to_numpy(), found["row_y"].to_numpy()
