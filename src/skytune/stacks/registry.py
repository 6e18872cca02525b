"""Stacks as ZenML has them: registered, found again by their labels, deleted. What AWS has of them is in `aws/`."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..aws.skypilot import ACCOUNT, BUCKET, ROLE_LABEL
from ..config import UserError

if TYPE_CHECKING:
    from zenml.client import Client
    from zenml.models import StackResponse

CLOUD, REGION = "skytune.cloud", "skytune.region"


@dataclass(frozen=True)
class Registered:
    """A stack of ours in ZenML's store."""

    name: str
    labels: Mapping[str, Any]
    settings: Mapping[str, Any]
    """What the step operator was registered with."""

    active: bool

    @property
    def region(self) -> str:
        """Where its machines are."""
        return str(self.labels[REGION])

    @property
    def account(self) -> str:
        """Number of the AWS account that it belongs to."""
        return str(self.labels[ACCOUNT])

    @property
    def bucket(self) -> str:
        """Where its checkpoints go."""
        return str(self.labels[BUCKET])


def register(
    client: "Client", name: str, settings: dict[str, Any], labels: dict[str, str], store: str, role: str | None = None
) -> bool:
    """Register the step operator, with its store and SageMaker's role, and the stack; return whether that changed."""
    from .flavor import register as register_operator

    before = find_stack(client, name)
    register_operator(client, name, settings, store=store, role=role)
    client.update_stack(name, labels=labels)
    return before is None or find_stack(client, name) != before


def check_name_free(client: "Client", name: str) -> None:
    """Refuse a name under which somebody registered a stack by hand.

    Raises:
        UserError: there is one.
    """
    if client.list_stacks(name=name).total:
        raise UserError(
            f"stack {name}: ZenML has one of that name that was not registered here: take another name (--file "
            f"{name}), or `zenml stack delete {name}`"
        )


def find_stack(client: "Client", name: str) -> Registered | None:
    """Return a stack of ours by name; None if there is none, or it is none of ours."""
    return next((each for each in stacks(client) if each.name == name), None)


def stacks(client: "Client") -> list[Registered]:
    """Return all stacks that were registered here, by name."""
    from zenml.utils.pagination_utils import depaginate

    active = client.active_stack_model.id
    found = [stack for stack in depaginate(client.list_stacks) if CLOUD in (stack.labels or {})]
    made = [Registered(each.name, each.labels or {}, _settings(each), each.id == active) for each in found]
    return sorted(made, key=lambda each: each.name)


def delete(client: "Client", name: str) -> bool:
    """Delete a stack and its step operator; the default stack becomes the active one if it was active.

    Returns:
        whether there was one.
    """
    from zenml.enums import StackComponentType

    stack = find_stack(client, name)
    if stack is None:
        return False
    if stack.active:
        client.activate_stack("default")
    model = client.get_stack(name)
    operators = [each.id for each in model.components.get(StackComponentType.STEP_OPERATOR, [])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ZenML deletes rows twice, and its database library says so on the screen
        client.delete_stack(model.id)
    for operator in operators:
        if not any(_uses(other, operator) for other in client.list_stacks(size=1000)):
            client.delete_stack_component(operator, StackComponentType.STEP_OPERATOR)
    return True


def labels(cloud: str, region: str, bucket: str, account: str, role: str) -> dict[str, str]:
    """Return the labels of a stack: enough to find everything of it again."""
    return {CLOUD: cloud, REGION: region, BUCKET: bucket, ACCOUNT: account, ROLE_LABEL: role}


def _uses(stack: "StackResponse", component: Any) -> bool:
    return any(each.id == component for those in stack.components.values() for each in those)


def _settings(stack: "StackResponse") -> dict[str, Any]:
    from zenml.enums import StackComponentType

    operators = stack.components.get(StackComponentType.STEP_OPERATOR, [])
    return {key: value for key, value in operators[0].configuration.items() if value is not None} if operators else {}
