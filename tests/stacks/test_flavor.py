"""The step operator's settings are the machine's part of `compute`, under the same names."""

from dataclasses import fields

import pytest

pytest.importorskip("zenml")

from skytune.config import ComputeConfig, UserError
from skytune.stacks.settings import SkyPilotStepOperatorConfig, SkyPilotStepOperatorSettings

HERE = {"device", "packed", "local", "usd_per_hour"}
"""Keys of `compute` that say how this machine, or any, computes."""


def test_every_key_that_chooses_a_machine_is_there() -> None:
    assert set(SkyPilotStepOperatorSettings.model_fields) == {field.name for field in fields(ComputeConfig)} - HERE


def test_what_is_set_makes_a_valid_compute() -> None:
    settings = SkyPilotStepOperatorSettings(accelerators="A10G:4", num_nodes=2, use_spot=True, disk_tier="best")
    machine = settings.machine()
    assert machine.pop("resources") == {"disk_tier": "best"}
    assert machine == {"accelerators": "A10G:4", "num_nodes": 2, "use_spot": True}
    ComputeConfig(**machine)


def test_the_stacks_store_is_no_part_of_the_machine() -> None:
    assert SkyPilotStepOperatorConfig(infra="aws", store="s3://bucket/runs").machine() == {"infra": "aws"}
    # As ZenML hands a step the stack's own words: all of them, in the settings' class.
    assert SkyPilotStepOperatorSettings(**{"infra": "aws", "store": "s3://bucket/runs"}).machine() == {"infra": "aws"}


def test_the_store_of_the_active_stack_is_found() -> None:
    from types import SimpleNamespace as Of

    from zenml.enums import StackComponentType

    from skytune.stacks.flavor import store_of

    def client(*components: object) -> object:
        return Of(active_stack_model=Of(components={StackComponentType.STEP_OPERATOR: list(components)}))

    ours, other = {"infra": "aws", "store": "s3://bucket/runs"}, {"store": "s3://other"}
    assert store_of(client(Of(flavor_name="skypilot", configuration=ours))) == "s3://bucket/runs"  # type: ignore[arg-type]
    assert store_of(client(Of(flavor_name="skypilot", configuration={}))) is None  # type: ignore[arg-type]
    assert store_of(client(Of(flavor_name="vertex", configuration=other))) is None  # type: ignore[arg-type]
    assert store_of(client()) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("flavor", ["local", "vm_aws", "kubernetes"])
def test_a_pipeline_that_would_run_elsewhere_is_refused(flavor: str) -> None:
    from types import SimpleNamespace as Of

    from zenml.enums import StackComponentType

    from skytune.stacks.flavor import check_orchestrator

    components = {StackComponentType.ORCHESTRATOR: [Of(flavor_name=flavor)]}
    client = Of(active_stack_model=Of(name="theirs", components=components))
    if flavor == "local":
        return check_orchestrator(client)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=rf"stack theirs: its orchestrator is of the flavor {flavor}.* register aws`"):
        check_orchestrator(client)  # type: ignore[arg-type]
