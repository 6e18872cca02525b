"""ZenML's step operator flavor `skypilot`: how a stack with it is registered, and what the active stack has of it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zenml.enums import StackComponentType
from zenml.step_operators import BaseStepOperatorFlavor

from ..config import ComputeConfig, UserError
from ..launch.remote.machine import ROLE, STORE
from .settings import SkyPilotStepOperatorConfig, SkyPilotStepOperatorSettings

if TYPE_CHECKING:
    from zenml.client import Client
    from zenml.models import StackResponse

    from .step_operator import SkyPilotStepOperator

FLAVOR = "skypilot"


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
    role: str | None = None,
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
        role: ARN of the execution role of SageMaker's jobs.
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
    wanted |= {key: value for key, value in ((STORE, store), (ROLE, role)) if value}
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


def check_orchestrator(client: "Client") -> None:
    """Refuse a stack whose orchestrator runs steps elsewhere: they would find neither our code nor this disk.

    Raises:
        UserError: with the way out.
    """
    stack = client.active_stack_model
    (found,) = stack.components[StackComponentType.ORCHESTRATOR]
    if found.flavor_name != "local":
        raise UserError(
            f"stack {stack.name}: its orchestrator is of the flavor {found.flavor_name}; the pipeline runs on this "
            "machine (flavor local), and a step operator brings machines for the training step: `python src/stack.py "
            "register aws` makes such a stack, `zenml stack set aws` takes it"
        )


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
    return str(settings_of_active(client).get(STORE) or "") or None


def role_of(client: "Client") -> str | None:
    """Return the execution role of SageMaker's jobs on the active stack; None where it has none."""
    return str(settings_of_active(client).get(ROLE) or "") or None


def settings_of_active(client: "Client") -> dict[str, Any]:
    """Return what the active stack's step operator was registered with; empty where it has none of ours."""
    found = client.active_stack_model.components.get(StackComponentType.STEP_OPERATOR) or []
    return next((dict(component.configuration) for component in found if component.flavor_name == FLAVOR), {})
