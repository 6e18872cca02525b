"""How long a cell takes: a model fitted to the cells that ran, and how far it was off where it did not see the answer.

    seconds = setup + samples / devices * a + steps * (b + c * (1 - 1/devices) + d * log2(nodes))

setup is a constant; a is the time of a row on one device; b what a step costs however small it is; c the exchange of
gradients between devices (a ring's volume grows with 1 - 1/devices); d what further nodes add. No term is negative
(Lawson & Hanson's non-negative least squares, in relative residuals, so that short cells count as much as long ones).
Assumed: nothing overlaps, devices are alike, memory suffices. Machines, models, strategies and precisions are not
comparable: each combination has a fit of its own.

The interval is what the leave-one-out errors allow: each cell is predicted by a fit to the others, and the spread of
the logarithms of predicted over measured (or `LEAST`), with Student's t for so many cells, is the width. A fit that is
off by more than a factor of `MOST` predicts nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Row = Mapping[str, Any]

GROUP = ("model", "data", "accelerator", "strategy", "precision")
"""Columns that must be the same for cells to be comparable."""

REPLICATED = ("single", "ddp", "auto")
"""Strategies that are one: a copy of the model on every device."""

UNKNOWN = ("?", "auto")
"""What a cell that did not run may say of a column."""

TERMS = ("setup", "per row", "per step", "exchange", "nodes")

FEWEST = 4
"""With fewer cells there is no fit."""

LEVEL = 0.9
"""Of intervals."""

LEAST = 0.05
"""The least spread that is believed, as a share: one cell's repetitions differ by 2 to 16 % in paid time
(`benchmarks/results`), also where a fit with as many terms as cells goes through all of them."""

MOST = 2.0
"""A fit whose errors are larger than this factor, as a rule, predicts nothing."""


@dataclass(frozen=True)
class Prediction:
    """Seconds that a cell is expected to take."""

    seconds: float
    low: float
    high: float


@dataclass(frozen=True)
class Fit:
    """The model of one group of comparable cells."""

    group: tuple[str, ...]
    coefficients: Mapping[str, float]
    """Seconds, by term of `TERMS`; terms that do not vary among the cells are 0."""

    cells: int
    left_out: Sequence[float]
    """By cell, predicted over measured seconds, where the cell was left out of the fit."""

    @property
    def error(self) -> float:
        """Median of the leave-one-out errors, as a share: 0.1 is 10 % too much or too little."""
        return float(np.median([abs(ratio - 1) for ratio in self.left_out]))

    @property
    def worst(self) -> float:
        """The largest of them."""
        return float(max(abs(ratio - 1) for ratio in self.left_out))

    @property
    def spread(self) -> float:
        """Root mean square of the logarithms of the leave-one-out errors; about 0, since a bias is an error too."""
        return float(np.sqrt(np.mean(np.log(self.left_out) ** 2)))

    @property
    def usable(self) -> bool:
        """Whether cells that it did not see were predicted within a factor of `MOST`, as a rule."""
        return self.spread <= math.log(MOST)

    def predict(self, row: Row) -> Prediction:
        """Return the seconds of a cell with `samples`, `steps`, `devices` and `nodes`, with an interval."""
        from scipy.stats import t

        values = _terms(row)
        seconds = float(sum(self.coefficients[name] * value for name, value in zip(TERMS, values, strict=True)))
        width = float(t.ppf(0.5 + LEVEL / 2, max(1, len(self.left_out) - 1))) * max(self.spread, LEAST)
        return Prediction(seconds, seconds * math.exp(-width), seconds * math.exp(width))


def group_of(row: Row) -> tuple[str, ...]:
    """Return what makes a cell comparable with others."""
    values = {name: str(row.get(name) or "?") for name in GROUP}
    if values["strategy"] in REPLICATED:
        values["strategy"] = "replicated"
    return tuple(values.values())


def nearest(found: Mapping[tuple[str, ...], Fit], row: Row) -> Fit | None:
    """Return the fit to the cells that a cell is comparable with, of which device and precision may be unknown where it
    did not run; None without one. It may be far off: see `Fit.usable`."""
    group = group_of(row)
    if group in found:
        return found[group]
    close = [
        fit for other, fit in found.items() if all(a == b or a in UNKNOWN for a, b in zip(group, other, strict=True))
    ]
    return close[0] if len(close) == 1 else None


def comparable(rows: Sequence[Row]) -> dict[tuple[str, ...], dict[tuple[float, ...], list[Row]]]:
    """Return the cells that ran by group and by what the model sees of them.

    Repetitions of a cell are no other cells: predicting one from the other says nothing about the model.
    """
    found: dict[tuple[str, ...], dict[tuple[float, ...], list[Row]]] = {}
    for row in rows:
        if row.get("status") == "done" and all(row.get(key) for key in ("total_s", "samples", "steps", "devices")):
            found.setdefault(group_of(row), {}).setdefault(_terms(row), []).append(row)
    return {group: cells for group, cells in found.items() if len(cells) >= FEWEST}


def fits(rows: Sequence[Row]) -> dict[tuple[str, ...], Fit]:
    """Return a fit for every group of comparable cells that are enough."""
    found = {}
    for group, cells in comparable(rows).items():
        left_out = []
        for terms, same in cells.items():
            coefficients = _solve([row for other, some in cells.items() if other != terms for row in some])
            predicted = sum(coefficients[name] * value for name, value in zip(TERMS, terms, strict=True))
            measured = float(np.mean([row["total_s"] for row in same]))
            left_out.append(max(predicted, 1e-9) / measured)
        everything = [row for same in cells.values() for row in same]
        found[group] = Fit(group, _solve(everything), len(cells), left_out)
    return found


def _terms(row: Row) -> tuple[float, ...]:
    devices, nodes, steps = float(row["devices"]), float(row.get("nodes") or 1), float(row["steps"])
    samples = float(row["samples"])
    return 1.0, samples / devices, steps, steps * (1 - 1 / devices), steps * math.log2(nodes)


def _solve(rows: Sequence[Row]) -> dict[str, float]:
    from scipy.optimize import nnls

    terms = np.array([_terms(row) for row in rows])
    seconds = np.array([float(row["total_s"]) for row in rows])
    varying = [i for i in range(len(TERMS)) if i == 0 or np.ptp(terms[:, i]) > 0]
    scaled = terms[:, varying] / seconds[:, None]  # relative residuals
    size = np.linalg.norm(scaled, axis=0)
    solution, _ = nnls(scaled / size, np.ones(len(rows)))
    found = dict.fromkeys(TERMS, 0.0)
    for index, value, scale in zip(varying, solution, size, strict=True):
        found[TERMS[index]] = float(value / scale)
    return found
