"""What a stack, or a step, says to the step operator `skypilot` about its machines."""

from typing import Any, get_type_hints

from pydantic import create_model
from zenml.config.base_settings import BaseSettings
from zenml.step_operators import BaseStepOperatorConfig

from ..config import ComputeConfig
from ..launch.remote.machine import MACHINE, ROLE, STORE, merged

_TYPES = get_type_hints(ComputeConfig)
_FIELDS: dict[str, Any] = {key: (_TYPES[key], None) for key in MACHINE}
_Machine: Any = create_model("_Machine", __base__=BaseSettings, **_FIELDS)


class SkyPilotStepOperatorSettings(_Machine):
    """The machines of a step: keys of `compute`, which explains them; a run's own `compute` goes before.

    Any other key is handed to SkyPilot as part of its resources.
    """

    resources: dict[str, Any] = {}  # noqa: RUF012  pydantic copies it
    recovery: dict[str, Any] = {}  # noqa: RUF012

    def machine(self) -> dict[str, Any]:
        """Return what is set, as keys of `compute`.

        Raises:
            ConfigError: a value that makes no sense.
        """
        given = self.model_dump().items()
        values = {key: value for key, value in given if value not in (None, {}) and key not in (STORE, ROLE)}
        known = {*MACHINE, "resources", "recovery"}
        others = {key: value for key, value in values.items() if key not in known}
        found = {key: value for key, value in values.items() if key in known}
        if others:
            found["resources"] = {**found.get("resources", {}), **others}
        merged(found, ComputeConfig())
        return found


class SkyPilotStepOperatorConfig(BaseStepOperatorConfig, SkyPilotStepOperatorSettings):
    """What a stack is registered with."""

    store: str | None = None
    """Where runs that name no `checkpoint.store` keep their checkpoints (a URL: `s3://bucket/folder`)."""

    sagemaker_role: str | None = None
    """Execution role of SageMaker's jobs (ARN)."""

    @property
    def is_remote(self) -> bool:
        """False: the step's Python runs where the orchestrator runs, so ZenML's store need not be a server's."""
        return False
