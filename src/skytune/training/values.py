"""The records of a run as numbers by name, the way trackers and ZenML show them; needs no torch."""

import math
from typing import Any

STEP = ("loss", "lr", "grad_norm", "samples_per_s", "tokens_per_s", "epoch", "rows", "tokens")
"""What a tracker is told of a step."""


def values(record: dict[str, Any]) -> dict[str, float]:
    """Return a record of the history as numbers by name: `train/loss`, `validation/accuracy`, ..."""
    if record["kind"] == "step":
        found = {f"train/{name}": record.get(name) for name in STEP}
    else:
        found = {f"{record['split']}/{name}": value for name, value in record["metrics"].items()}
    return {name: value for name, value in found.items() if isinstance(value, (int, float))}


def last_values(history: list[dict[str, Any]]) -> dict[str, float]:
    """Return the newest value of every name; numbers that JSON does not have are left out."""
    found: dict[str, float] = {}
    for record in history:
        found |= values(record)
    return {name: value for name, value in found.items() if math.isfinite(value)}
