"""The state of loss scaling (fp16) in one form for torch's scaler and DeepSpeed's, so that a run goes on under either.

{"scale": 65536.0, "steps": 12}        the factor on the loss, and the steps since it was last lowered or raised
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from ...config import UserError


class LossScale(NamedTuple):
    """What loss scaling remembers."""

    scale: float
    """Factor on the loss."""

    steps: int
    """Steps without an overflow since the last one, or since the scale was last raised."""


def read_scaling(values: Mapping[str, Any]) -> LossScale:
    """Return what a checkpoint, or either scaler, says of loss scaling.

    Raises:
        UserError: in none of these forms.
    """
    try:
        if "cur_scale" in values:
            return LossScale(float(values["cur_scale"]), values["cur_iter"] - values["last_overflow_iter"] - 1)
        steps = values["steps"] if "steps" in values else values["_growth_tracker"]
        return LossScale(float(values["scale"]), int(steps))
    except (KeyError, TypeError) as error:
        raise UserError(f"the checkpoint's loss scaling cannot be read: {dict(values)}") from error


def of_torch(scaler: torch.amp.GradScaler) -> dict[str, Any]:
    """Return the state of torch's scaler."""
    return read_scaling(scaler.state_dict())._asdict()


def into_torch(scaler: torch.amp.GradScaler, values: Mapping[str, Any]) -> None:
    """Put a state into torch's scaler, which raises the scale when its count is exactly the interval."""
    found = read_scaling(values)
    steps = found.steps % scaler.get_growth_interval()
    scaler.load_state_dict({**scaler.state_dict(), "scale": found.scale, "_growth_tracker": steps})


def of_deepspeed(scaler: Any) -> dict[str, Any]:
    """Return the state of DeepSpeed's `DynamicLossScaler`."""
    values = {key: getattr(scaler, key) for key in ("cur_scale", "cur_iter", "last_overflow_iter")}
    return read_scaling(values)._asdict()


def into_deepspeed(scaler: Any, values: Mapping[str, Any]) -> None:
    """Put a state into DeepSpeed's scaler, which counts all steps, and knows which of them overflowed last."""
    found = read_scaling(values)
    scaler.cur_scale, scaler.cur_iter, scaler.last_overflow_iter = found.scale, found.steps, -1
