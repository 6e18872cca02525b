"""Variables of this process that workers on other machines are given, and those among them that nobody may see."""

import os

from ...config import RunConfig, to_dict
from ...config.secrets import looks_secret, named

HANDED_ON = ("HF_ENDPOINT", "WANDB_BASE_URL", "WANDB_ENTITY", "WANDB_PROJECT", "WANDB_MODE", "HF_HUB_OFFLINE")
"""Variables of this process that say where services are."""

SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY")
"""Secrets of this process that workers may need. Those of the cloud are not among them: machines have a role."""


def worker_environment(launch_id: str, processes: int, gpus: int, max_hours: float | None) -> dict[str, str]:
    """Return the variables that every machine of a job is given; see `node.take_part`.

    Args:
        launch_id: of all attempts together, so that the next one takes over the checkpoints of the one before at once.
        processes: on every machine.
        gpus: that every machine must have.
        max_hours: after which the job is ended.
    """
    return {
        "SKYTUNE_LAUNCH": launch_id,
        "SKYTUNE_PROCESSES_EACH": str(processes),
        "SKYTUNE_GPUS_EACH": str(gpus),
        "SKYTUNE_MAX_SECONDS": str(round((max_hours or 24.0) * 3600)),
        **{name: os.environ[name] for name in HANDED_ON if os.environ.get(name)},
    }


def secrets(config: RunConfig) -> dict[str, str]:
    """Return what workers must know and nobody else may."""
    own = [name for name in os.environ if name.startswith("SKYTUNE_") and looks_secret(name)]
    return {
        name: os.environ[name]
        for name in dict.fromkeys([*SECRETS, *own, *named(to_dict(config))])
        if os.environ.get(name)
    }
