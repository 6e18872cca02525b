"""Which launcher brings the machines of a run: SageMaker's for its own, else SkyPilot's on a stack that has it."""

import json
import os

from ..config import RunConfig
from ..launch import SkyPilotLauncher
from ..launch.remote.machine import VARIABLE
from ..launch.sagemaker import SageMakerLauncher, is_asked
from .sagemaker import launcher


def launcher_of(config: RunConfig) -> SageMakerLauncher | SkyPilotLauncher | None:
    """Return the launcher that the run's machine, and the step operator's, ask for; None where workers run here."""
    stored = os.environ.get(VARIABLE)
    stack = json.loads(stored) if stored else None
    if config.compute.local:
        return None
    if is_asked(config.compute, stack):
        return launcher(stack)
    return SkyPilotLauncher(stack) if stack is not None else None
