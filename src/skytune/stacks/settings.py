"""What a stack, or a step, says to the step operator `skypilot` about its machines."""

from typing import Any

from zenml.config.base_settings import BaseSettings
from zenml.step_operators import BaseStepOperatorConfig

from ..config import ComputeConfig
from ..launch.remote.machine import MACHINE, ROLE, STORE, merged


class SkyPilotStepOperatorSettings(BaseSettings):
    """The machines of a step: keys of `compute`, which explains them; a run's own `compute` goes before.

    Any other key is handed to SkyPilot as part of its resources.
    """

    accelerators: str | None = None
    instance_type: str | None = None
    cpus: int | str | None = None
    memory: int | str | None = None
    num_nodes: int | None = None
    use_spot: bool | None = None
    infra: str | None = None
    region: str | None = None
    zone: str | None = None
    disk_size: int | None = None
    image_id: str | None = None
    idle_minutes_to_autostop: int | None = None
    max_hourly_usd: float | None = None
    keep_on_failure: int | float | str | None = None
    max_hours: float | None = None
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
