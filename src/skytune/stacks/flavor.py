"""ZenML's step operator flavor `skypilot`: what a stack says about machines, and how such a stack is registered."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zenml.config.base_settings import BaseSettings
from zenml.enums import StackComponentType
from zenml.step_operators import BaseStepOperatorConfig, BaseStepOperatorFlavor

from ..config import ComputeConfig
from ..launch.skypilot import STORE, merged
from ..launch.skypilot.machine import MACHINE

if TYPE_CHECKING:
    from zenml.client import Client
    from zenml.models import StackResponse

    from .step_operator import SkyPilotStepOperator

FLAVOR = "skypilot"


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
        values = {key: value for key, value in self.model_dump().items() if value not in (None, {}) and key != STORE}
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

    @property
    def is_remote(self) -> bool:
        """False: the step's Python runs where the orchestrator runs, so ZenML's store need not be a server's."""
        return False


class SkyPilotStepOperatorFlavor(BaseStepOperatorFlavor):
    """The flavor."""

    @property
    def name(self) -> str:
        """Its name."""
        return FLAVOR

    @property
    def config_class(self) -> type[SkyPilotStepOperatorConfig]:
        """What a component of it is registered with."""
        return SkyPilotStepOperatorConfig

    @property
    def implementation_class(self) -> "type[SkyPilotStepOperator]":
        """What does the work."""
        from .step_operator import SkyPilotStepOperator

        return SkyPilotStepOperator


def register(
    client: "Client",
    stack: str,
    settings: Mapping[str, Any] | None = None,
    *,
    store: str | None = None,
    orchestrator: str = "default",
    artifact_store: str = "default",
    more: Mapping[StackComponentType, str] | None = None,
) -> "StackResponse":
    """Register the flavor, a step operator of it and a stack with both, or bring what is there up to date.

    Args:
        client: ZenML's.
        stack: name of the stack and of its step operator.
        settings: keys of `compute` that this stack's machines have unless a run asks for others.
        store: URL for the checkpoints of runs that name no store.
        orchestrator: name of a component that is there.
        artifact_store: likewise.
        more: further components of the stack, by type.

    Returns:
        The stack.

    Raises:
        ConfigError: settings that make no sense.
    """
    kind = StackComponentType.STEP_OPERATOR
    wanted = SkyPilotStepOperatorSettings(**dict(settings or {})).machine()
    if store:
        wanted[STORE] = store
    if not client.list_flavors(name=FLAVOR, type=kind).items:
        client.create_flavor(
            source=f"{SkyPilotStepOperatorFlavor.__module__}.{SkyPilotStepOperatorFlavor.__name__}", component_type=kind
        )
    there = client.list_stack_components(name=stack, type=kind).items
    if not there:
        client.create_stack_component(name=stack, flavor=FLAVOR, component_type=kind, configuration=wanted)
    elif there[0].configuration != wanted:
        gone = {key: None for key in there[0].configuration if key not in wanted}
        client.update_stack_component(name_id_or_prefix=stack, component_type=kind, configuration={**wanted, **gone})
    components = {
        StackComponentType.ORCHESTRATOR: orchestrator,
        StackComponentType.ARTIFACT_STORE: artifact_store,
        kind: stack,
        **(more or {}),
    }
    if client.list_stacks(name=stack).items:
        return client.update_stack(
            name_id_or_prefix=stack, component_updates={each: [name] for each, name in components.items()}
        )
    return client.create_stack(name=stack, components=components)


def operator_of(client: "Client", compute: ComputeConfig) -> str | None:
    """Return the name of the active stack's step operator for machines; None where it has none, or the run wants none.

    Args:
        client: ZenML's.
        compute: the run's.
    """
    if compute.local:
        return None
    found = client.active_stack_model.components.get(StackComponentType.STEP_OPERATOR) or []
    return next((component.name for component in found if component.flavor_name == FLAVOR), None)


def store_of(client: "Client") -> str | None:
    """Return where runs on the active stack keep their checkpoints that name no place; None where it has none."""
    found = client.active_stack_model.components.get(StackComponentType.STEP_OPERATOR) or []
    stores = [component.configuration.get(STORE) for component in found if component.flavor_name == FLAVOR]
    return next((str(store) for store in stores if store), None)
