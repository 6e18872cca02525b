"""A stand-in for `skytune.stacks.flavor.register`, for checkouts that do not have it yet: ZenML's side alone."""

from typing import Any

from zenml.client import Client
from zenml.enums import StackComponentType
from zenml.step_operators import BaseStepOperator, BaseStepOperatorConfig, BaseStepOperatorFlavor

FLAVOR = "skypilot"


class Config(BaseStepOperatorConfig):
    infra: str | None = None
    region: str | None = None
    use_spot: bool | None = None
    accelerators: str | None = None
    instance_type: str | None = None
    cpus: str | None = None
    memory: str | None = None
    num_nodes: int | None = None
    image_id: str | None = None
    idle_minutes_to_autostop: int | None = None
    max_hourly_usd: float | None = None


class Operator(BaseStepOperator):
    def launch(self, *words: Any, **more: Any) -> None:
        raise NotImplementedError


class Flavor(BaseStepOperatorFlavor):
    name = FLAVOR
    config_class = Config
    implementation_class = Operator


def register(client: Client, stack_name: str, settings: dict[str, Any]) -> None:
    if FLAVOR not in {each.name for each in client.list_flavors(type=StackComponentType.STEP_OPERATOR, name=FLAVOR)}:
        client.create_flavor("flavor_standin.Flavor", StackComponentType.STEP_OPERATOR)
    name = f"skypilot-{stack_name}"
    if not client.list_stack_components(type=StackComponentType.STEP_OPERATOR, name=name).total:
        client.create_stack_component(name, FLAVOR, StackComponentType.STEP_OPERATOR, settings)
    elif client.get_stack_component(StackComponentType.STEP_OPERATOR, name).configuration != settings:
        client.update_stack_component(name, StackComponentType.STEP_OPERATOR, configuration=settings)
    if not client.list_stacks(name=stack_name).total:
        components = {StackComponentType.ORCHESTRATOR: "default", StackComponentType.ARTIFACT_STORE: "default"}
        client.create_stack(stack_name, {**components, StackComponentType.STEP_OPERATOR: name})
